"""The tables of the database: a public interface for SQL of users.

The views ``byzantine_histogram`` and ``final_accuracy`` of ``views.py`` belong to it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.experiment.spec import fields

SCHEMA_VERSION = 12
"""Version of the tables and views. No version before 12 was released, so older databases are
refused, not migrated.
"""
APPLICATION_ID = 0x44594E42
"""``DYNB``: application ID in SQLite's file header."""

STATUSES = ("running", "finished", "diverged", "interrupted", "failed", "pruned")
SWEEP_STATUSES = ("running", "finished", "failed", "interrupted")
TRIAL_STATUSES = ("running", "finished", "pruned", "failed")

RESULT_STATUSES = ("finished", "diverged")
"""Statuses of a run with a result."""
HAS_RESULT = f"status IN {RESULT_STATUSES}"
"""SQL condition for the runs with a result."""
RERUN_SUFFIX = "+rerun"
"""Suffix of a repetition's key until the repetition is complete and replaces the first result."""

metadata = MetaData()
_COMPLETE = get_type_hints(CompleteSpec)


def _columns() -> Iterator[Column[Any]]:
    """Yield the columns of the fields of a run."""
    for name, info in fields().items():
        whole = BigInteger if (info.limits["maximum"] or 0) >= 2**31 else Integer
        kind: type[TypeEngine[Any]] = {str: Text, float: Double, int: whole}[info.type]
        yield Column(
            name, kind, nullable=type(None) in get_args(_COMPLETE[name]), comment=info.column
        )


def _of_run(name: str, *columns: Column[Any], comment: str) -> Table:
    """Return a table whose rows belong to runs, and go with them."""
    run = ForeignKey("runs.id", ondelete="CASCADE")
    first = Column("run_id", Integer, run, primary_key=True, comment="the run")
    return Table(name, metadata, first, *columns, sqlite_with_rowid=False, comment=comment)


runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True, comment="number of the run"),
    Column(
        "run_key",
        String(80),
        nullable=False,
        unique=True,
        comment="SHA-256 of the complete spec; `+rerun` is appended while a repetition is in "
        "progress",
    ),
    Column(
        "status",
        String(16),
        nullable=False,
        comment="`running`, `finished`, `diverged` (with NaN), `interrupted`, `failed`, "
        "`pruned` by search",
    ),
    Column("sweep", Text, comment="name of the sweep; NULL if the run belongs to none"),
    *_columns(),
    Column("spec", Text, nullable=False, comment="the complete spec with all defaults, as JSON"),
    Column(
        "dimension",
        BigInteger,
        nullable=False,
        comment="number of parameters d; 0 if a run of a sweep failed before d was known",
    ),
    Column(
        "noise_bound",
        Double,
        comment="noise bound V that a fail-safe filter used, given or measured",
    ),
    Column("final_accuracy", Double, comment="test accuracy at the last evaluation"),
    Column("final_loss", Double, comment="test loss at the last evaluation"),
    Column("final_gap", Double, comment="f(x) - f* of an objective at the last evaluation"),
    Column(
        "budget_spent", Integer, nullable=False, comment="gradient computations per worker so far"
    ),
    Column("rounds", Integer, nullable=False, comment="rounds so far"),
    Column(
        "switches",
        Integer,
        nullable=False,
        comment="clock ticks at which the Byzantine set changed",
    ),
    Column(
        "dynamic_rounds",
        Integer,
        nullable=False,
        comment="rounds within which the Byzantine set changed",
    ),
    Column("started_at", DateTime, nullable=False, comment="start time, UTC"),
    Column("finished_at", DateTime, comment="end time, UTC"),
    Column("wall_seconds", Double, comment="duration in seconds"),
    Column("device", Text, nullable=False, comment="device of the run, such as `cpu` or `cuda:0`"),
    Column("host", Text, nullable=False, comment="machine of the run"),
    Column("pid", Integer, nullable=False, comment="process ID"),
    Column(
        "environment_id",
        String(16),
        ForeignKey("environments.id"),
        nullable=False,
        comment="the environment: versions of programs, threads and kernels",
    ),
    Column("git_commit", Text, comment="Git commit of the folder that the command was started in"),
    Column("error", Text, comment="reason of a failure"),
    Column("owner", Text, comment="identifier of the process that makes the run"),
    Column(
        "heartbeat_at",
        DateTime,
        comment="last heartbeat of this process, by the clock of the database",
    ),
    Column(
        "checkpoint",
        Text,
        comment="checkpoint file in `checkpoints/` to resume from; NULL if the run has a result",
    ),
    Column(
        "rounds_every",
        Integer,
        nullable=False,
        server_default="1",
        comment="1; K if `dynabro db thin` kept every K-th row of `rounds`, the first and the last",
    ),
    Column(
        "squared_gradients",
        Double,
        comment="sum of the squared norms of grad f(x_t) over the rounds; NULL for networks",
    ),
    Column(
        "code_digests",
        Text,
        comment="digests of components, `engine` and data (`data/TASK`), as JSON; NULL if unknown",
    ),
    Column(
        "heartbeat_clock",
        Text,
        comment="last heartbeat as `MACHINE:SECONDS`, by the monotonic clock of the machine",
    ),
    Column(
        "rows_digest",
        String(64),
        comment="SHA-256 of the run's rows in all tables, compared by `db check`; NULL without "
        "a result",
    ),
    Column("model_file", Text, comment="name of the saved model; NULL if none was saved"),
    Column("model_size", BigInteger, comment="size of the saved model in bytes"),
    Column("model_sha256", String(64), comment="SHA-256 of the saved model"),
    Column("tags", Text, comment="tags as a JSON list of texts; NULL if there are none"),
    Column("note", Text, comment="note of the user"),
    Column(
        "git_diff",
        String(64),
        comment="`diffs.sha256` of the changes in the checkout; NULL if there were none",
    ),
    CheckConstraint(f"status IN {STATUSES}", name="known_status"),
    comment="one row per run",
)

TIMES = tuple(column.name for column in runs.c if isinstance(column.type, DateTime))
"""Columns of ``runs`` with times."""

evaluations = _of_run(
    "evaluations",
    Column("round", Integer, primary_key=True, comment="rounds done before the evaluation"),
    Column("budget", Integer, nullable=False, comment="gradient computations per worker so far"),
    Column(
        "samples",
        BigInteger,
        nullable=False,
        comment="samples of all workers so far: budget x batch size x m (the x-axis of the "
        "paper's curves)",
    ),
    Column("test_accuracy", Double, comment="accuracy on the whole test set"),
    Column("test_loss", Double, comment="loss on the whole test set"),
    Column(
        "train_loss",
        Double,
        comment="mean loss of the honest workers' batches since the last evaluation",
    ),
    Column("gap", Double, comment="f(x) - f*"),
    Column(
        "x",
        Text,
        comment="the model as a JSON list of nine-digit numbers, if it has three numbers at "
        "most; null if not finite",
    ),
    Column(
        "validation_accuracy",
        Double,
        comment="accuracy on the held-out samples; NULL if none are held out",
    ),
    Column(
        "validation_loss", Double, comment="loss on the held-out samples; NULL if none are held out"
    ),
    comment="one row per evaluation; the first one is at x_1",
)

rounds = _of_run(
    "rounds",
    Column("round", Integer, primary_key=True, comment="number of the round, from 0"),
    Column(
        "budget",
        Integer,
        nullable=False,
        comment="gradient computations per worker at the end of the round",
    ),
    Column("level", Integer, comment="level J of the multi-level draw; NULL without MLMC"),
    Column(
        "cost", Integer, nullable=False, comment="gradient computations per worker in this round"
    ),
    Column(
        "byzantine",
        Integer,
        nullable=False,
        comment="number of Byzantine workers; in a dynamic round the largest number at one "
        "computation",
    ),
    Column(
        "switched",
        Boolean,
        nullable=False,
        comment="true if the Byzantine set changed since the last tick before the round, or "
        "within it",
    ),
    Column(
        "dynamic",
        Boolean,
        nullable=False,
        comment="true if the Byzantine set changed within the round",
    ),
    Column(
        "accepted",
        Boolean,
        comment="true if the fail-safe filter accepted the correction; NULL if it had none to "
        "judge",
    ),
    Column("learning_rate", Double, nullable=False, comment="learning rate eta_t"),
    Column("gradient_norm", Double, comment="norm of the update direction g_t; NULL if not finite"),
    Column(
        "aggregation_error",
        Double,
        comment="distance of the aggregate from the honest mean; NULL if no worker was honest",
    ),
    Column(
        "acceptance",
        Double,
        comment="acceptance ratio of the Byzantine messages; NULL if it was not measured",
    ),
    comment="one row per round; some rounds only if the run is thinned",
)

byzantine_counts = _of_run(
    "byzantine_counts",
    Column("byzantine", Integer, primary_key=True, comment="a number of Byzantine workers"),
    Column(
        "rounds",
        Integer,
        nullable=False,
        comment="rounds with this number, of all rounds of the run",
    ),
    comment="histogram of Byzantine workers, only for thinned runs, whose `rounds` no longer "
    "have it",
)

identities = _of_run(
    "identities",
    Column(
        "tick", Integer, primary_key=True, comment="clock tick from which this set is Byzantine"
    ),
    Column(
        "byzantine",
        Text,
        nullable=False,
        comment="numbers of the Byzantine workers, from 1 to m, as a JSON list",
    ),
    comment="one row per change of the Byzantine set, for runs with a schedule that no seed "
    "determines (`adaptive`, `evade`, `trace`)",
)

recovery = _of_run(
    "recovery",
    Column(
        "switches_seen",
        Integer,
        nullable=False,
        comment="switches with an evaluation before them and one after them",
    ),
    Column(
        "recoveries",
        Integer,
        nullable=False,
        comment="switches after which the accuracy came back to its value before, less 0.01 at "
        "most",
    ),
    Column("dip", Double, comment="mean fall of the test accuracy after a switch"),
    Column("largest_dip", Double, comment="largest fall of the test accuracy after a switch"),
    Column(
        "recovery_rounds",
        Double,
        comment="median time to recover in rounds, as coarse as the evaluations",
    ),
    Column(
        "recovery_budget",
        Double,
        comment="median time to recover in gradient computations per worker",
    ),
    Column(
        "worst_window",
        Double,
        comment="lowest mean accuracy of five evaluations in a row, after the first fifth of "
        "the budget",
    ),
    Column("acceptance", Double, comment="mean of `rounds.acceptance`"),
    Column("aggregation_error", Double, comment="mean of `rounds.aggregation_error`"),
    Column(
        "reason", Text, comment="why columns are NULL, such as `diverged`, `thinned` or `no switch`"
    ),
    comment="one row per run with a result: how the run recovers from switches",
)

worker_labels = _of_run(
    "worker_labels",
    Column("worker", Integer, primary_key=True, comment="number of the worker, from 0"),
    Column("label", Integer, primary_key=True, comment="a label"),
    Column(
        "count", Integer, nullable=False, comment="training samples of the worker with this label"
    ),
    comment="training samples by worker and label, for runs with `data` other than `iid`",
)

metrics = _of_run(
    "metrics",
    Column("round", Integer, primary_key=True, comment="rounds done before the evaluation"),
    Column("name", Text, primary_key=True, comment="name of the metric"),
    Column("value", Double, comment="the metric; NULL if not finite"),
    comment="one row per evaluation and metric of the user",
)

environments = Table(
    "environments",
    metadata,
    Column(
        "id", String(16), primary_key=True, comment="first 16 digits of the SHA-256 of `versions`"
    ),
    Column(
        "versions",
        Text,
        nullable=False,
        comment="versions of dynabro, Python and torch, number of threads and compiled "
        "kernels, as JSON",
    ),
    sqlite_with_rowid=False,
    comment="programs behind the numbers; one row serves all runs that share them",
)

diffs = Table(
    "diffs",
    metadata,
    Column(
        "sha256", String(64), primary_key=True, comment="SHA-256 of the text, as in `runs.git_diff`"
    ),
    Column(
        "content", LargeBinary, nullable=False, comment="output of `git diff`, compressed with zlib"
    ),
    comment="changes in users' checkouts; one row serves all runs of a sweep",
)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", Integer, primary_key=True, comment="number"),
    Column(
        "name",
        Text,
        nullable=False,
        comment="name of the sweep, as in `runs.sweep`; of a shard, such as `demo 2/4`",
    ),
    Column(
        "status",
        String(16),
        nullable=False,
        comment="`running`, `finished`, `failed` (a run failed, or an error ended it) or "
        "`interrupted`",
    ),
    Column("runs", Integer, nullable=False, comment="number of runs in the sweep"),
    Column(
        "stored_before",
        Integer,
        nullable=False,
        comment="runs that were stored before, and are not made again",
    ),
    Column("jobs", Integer, nullable=False, comment="runs at a time"),
    Column(
        "executor", Text, nullable=False, comment="`local` (processes of this machine) or `ray`"
    ),
    Column("started_at", DateTime, nullable=False, comment="start time, UTC"),
    Column("ended_at", DateTime, comment="end time, UTC; NULL if the sweep has not ended"),
    Column("heartbeat_at", DateTime, nullable=False, comment="last heartbeat of the process"),
    Column("owner", Text, nullable=False, comment="identifier of the process"),
    Column("host", Text, nullable=False, comment="machine of the process"),
    Column("pid", Integer, nullable=False, comment="process ID"),
    Column(
        "rerun_after",
        Integer,
        comment="with `--rerun`: the largest run `id` to repeat; NULL when complete",
    ),
    Column("heartbeat_clock", Text, comment="last heartbeat by the monotonic clock of the machine"),
    Column(
        "wall_seconds", Double, comment="duration in seconds, independent of changes of the clock"
    ),
    Column("yaml", Text, comment="text of the sweep's file; NULL if unknown"),
    CheckConstraint(f"status IN {SWEEP_STATUSES}", name="known_sweep_status"),
    comment="one row for each time that a sweep is run",
)

sweep_runs = Table(
    "sweep_runs",
    metadata,
    Column(
        "sweep_id",
        Integer,
        ForeignKey("sweeps.id", ondelete="CASCADE"),
        primary_key=True,
        comment="the sweep",
    ),
    Column(
        "run_key",
        String(80),
        primary_key=True,
        comment="key of the run, which may not be stored yet",
    ),
    Column(
        "ended_before",
        DateTime,
        comment="end time of the result or failure that was stored before; NULL if there was none",
    ),
    sqlite_with_rowid=False,
    comment="one row per run of a sweep, whichever sweep made it, for the last sweep of each name",
)

trials = Table(
    "trials",
    metadata,
    Column("search", Text, primary_key=True, comment="name of the search, as in `sweeps.name`"),
    Column("number", Integer, primary_key=True, comment="number of the trial, from 0"),
    Column(
        "sweep_id",
        Integer,
        ForeignKey("sweeps.id", ondelete="SET NULL"),
        comment="the command that makes the trial",
    ),
    Column(
        "status", String(16), nullable=False, comment="`running`, `finished`, `pruned` or `failed`"
    ),
    Column("parameters", Text, nullable=False, comment="the choices of the trial, as JSON"),
    Column(
        "run_keys", Text, nullable=False, comment="keys of its runs, one per seed, as a JSON list"
    ),
    Column(
        "value", Double, comment="mean over its runs of what the search optimises; NULL if unknown"
    ),
    CheckConstraint(f"status IN {TRIAL_STATUSES}", name="known_trial_status"),
    sqlite_with_rowid=False,
    comment="one row per trial of a search",
)

KAPPA_KEY = ("rule", "workers", "byzantine", "dimension", "restarts", "steps", "seed", "version")
"""Columns of ``verified_kappa`` that determine the others on any machine, if a search is
complete.
"""

verified_kappa = Table(
    "verified_kappa",
    metadata,
    Column("id", Integer, primary_key=True, comment="number"),
    Column("rule", Text, nullable=False, comment="the rule, with its pre-aggregators"),
    Column("workers", Integer, nullable=False, comment="number of workers m"),
    Column("byzantine", Integer, nullable=False, comment="number of Byzantine workers f"),
    Column("dimension", Integer, nullable=False, comment="dimension d of the messages"),
    Column("restarts", Integer, nullable=False, comment="number of starts"),
    Column("steps", Integer, nullable=False, comment="steps per start"),
    Column("seed", BigInteger, nullable=False, comment="seed of the search"),
    Column("empirical", Double, nullable=False, comment="largest ratio found"),
    Column(
        "unbounded",
        Boolean,
        nullable=False,
        comment="true if the ratio exceeds a million, or a hundred times the proved kappa if "
        "that is larger",
    ),
    Column("proved", Double, comment="proved kappa of the rule; NULL if no kappa is proved"),
    Column("evaluations", Integer, nullable=False, comment="number of inputs tried"),
    Column(
        "complete",
        Boolean,
        nullable=False,
        comment="true if the search ended before its time limit",
    ),
    Column("worst", Text, comment="input with the largest ratio, as JSON"),
    Column("version", Text, nullable=False, comment="version of dynabro"),
    Column("created_at", DateTime, nullable=False, comment="time of the search, UTC"),
    UniqueConstraint(*KAPPA_KEY, name="one_search"),
    comment="one row per search of `dynabro verify kappa`",
)

Index("runs_cell", runs.c.task, runs.c.method, runs.c.switching)
