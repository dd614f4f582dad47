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


def required(name: str, kind: Any, comment: str) -> Column[Any]:
    """Return a column in which every row has a value."""
    return Column(name, kind, nullable=False, comment=comment)


def optional(name: str, kind: Any, comment: str) -> Column[Any]:
    """Return a column that may be NULL."""
    return Column(name, kind, comment=comment)


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
    required(
        "status",
        String(16),
        "`running`, `finished`, `diverged` (with NaN), `interrupted`, `failed`, `pruned` by search",
    ),
    optional("sweep", Text, "name of the sweep; NULL if the run belongs to none"),
    *_columns(),
    required("spec", Text, "the complete spec with all defaults, as JSON"),
    required(
        "dimension",
        BigInteger,
        "number of parameters d; 0 if a run of a sweep failed before d was known",
    ),
    optional(
        "noise_bound", Double, "noise bound V that a fail-safe filter used, given or measured"
    ),
    optional("final_accuracy", Double, "test accuracy at the last evaluation"),
    optional("final_loss", Double, "test loss at the last evaluation"),
    optional("final_gap", Double, "f(x) - f* of an objective at the last evaluation"),
    required("budget_spent", Integer, "gradient computations per worker so far"),
    required("rounds", Integer, "rounds so far"),
    required("switches", Integer, "clock ticks at which the Byzantine set changed"),
    required("dynamic_rounds", Integer, "rounds within which the Byzantine set changed"),
    required("started_at", DateTime, "start time, UTC"),
    optional("finished_at", DateTime, "end time, UTC"),
    optional("wall_seconds", Double, "duration in seconds"),
    required("device", Text, "device of the run, such as `cpu` or `cuda:0`"),
    required("host", Text, "machine of the run"),
    required("pid", Integer, "process ID"),
    Column(
        "environment_id",
        String(16),
        ForeignKey("environments.id"),
        nullable=False,
        comment="the environment: versions of programs, threads and kernels",
    ),
    optional("git_commit", Text, "Git commit of the folder that the command was started in"),
    optional("error", Text, "reason of a failure"),
    optional("owner", Text, "identifier of the process that makes the run"),
    optional(
        "heartbeat_at", DateTime, "last heartbeat of this process, by the clock of the database"
    ),
    optional(
        "checkpoint",
        Text,
        "checkpoint file in `checkpoints/` to resume from; NULL if the run has a result",
    ),
    Column(
        "rounds_every",
        Integer,
        nullable=False,
        server_default="1",
        comment="1; K if `dynabro db thin` kept every K-th row of `rounds`, the first and the last",
    ),
    optional(
        "squared_gradients",
        Double,
        "sum of the squared norms of grad f(x_t) over the rounds; NULL for networks",
    ),
    optional(
        "code_digests",
        Text,
        "digests of components, `engine` and data (`data/TASK`), as JSON; NULL if unknown",
    ),
    optional(
        "heartbeat_clock",
        Text,
        "last heartbeat as `MACHINE:SECONDS`, by the monotonic clock of the machine",
    ),
    optional(
        "rows_digest",
        String(64),
        "SHA-256 of the run's rows in all tables, compared by `db check`; NULL without a result",
    ),
    optional("model_file", Text, "name of the saved model; NULL if none was saved"),
    optional("model_size", BigInteger, "size of the saved model in bytes"),
    optional("model_sha256", String(64), "SHA-256 of the saved model"),
    optional("tags", Text, "tags as a JSON list of texts; NULL if there are none"),
    optional("note", Text, "note of the user"),
    optional(
        "git_diff",
        String(64),
        "`diffs.sha256` of the changes in the checkout; NULL if there were none",
    ),
    CheckConstraint(f"status IN {STATUSES}", name="known_status"),
    comment="one row per run",
)

TIMES = tuple(column.name for column in runs.c if isinstance(column.type, DateTime))
"""Columns of ``runs`` with times."""

evaluations = _of_run(
    "evaluations",
    Column("round", Integer, primary_key=True, comment="rounds done before the evaluation"),
    required("budget", Integer, "gradient computations per worker so far"),
    required(
        "samples",
        BigInteger,
        "samples of all workers so far: budget x batch size x m (the x-axis of the paper's curves)",
    ),
    optional("test_accuracy", Double, "accuracy on the whole test set"),
    optional("test_loss", Double, "loss on the whole test set"),
    optional(
        "train_loss", Double, "mean loss of the honest workers' batches since the last evaluation"
    ),
    optional("gap", Double, "f(x) - f*"),
    optional(
        "x",
        Text,
        "the model as a JSON list of nine-digit numbers, if it has three numbers at "
        "most; null if not finite",
    ),
    optional(
        "validation_accuracy", Double, "accuracy on the held-out samples; NULL if none are held out"
    ),
    optional("validation_loss", Double, "loss on the held-out samples; NULL if none are held out"),
    comment="one row per evaluation; the first one is at x_1",
)

rounds = _of_run(
    "rounds",
    Column("round", Integer, primary_key=True, comment="number of the round, from 0"),
    required("budget", Integer, "gradient computations per worker at the end of the round"),
    optional("level", Integer, "level J of the multi-level draw; NULL without MLMC"),
    required("cost", Integer, "gradient computations per worker in this round"),
    required(
        "byzantine",
        Integer,
        "number of Byzantine workers; in a dynamic round the largest number at one computation",
    ),
    required(
        "switched",
        Boolean,
        "true if the Byzantine set changed since the last tick before the round, or within it",
    ),
    required("dynamic", Boolean, "true if the Byzantine set changed within the round"),
    optional(
        "accepted",
        Boolean,
        "true if the fail-safe filter accepted the correction; NULL if it had none to judge",
    ),
    required("learning_rate", Double, "learning rate eta_t"),
    optional("gradient_norm", Double, "norm of the update direction g_t; NULL if not finite"),
    optional(
        "aggregation_error",
        Double,
        "distance of the aggregate from the honest mean; NULL if no worker was honest",
    ),
    optional(
        "acceptance",
        Double,
        "acceptance ratio of the Byzantine messages; NULL if it was not measured",
    ),
    comment="one row per round; some rounds only if the run is thinned",
)

byzantine_counts = _of_run(
    "byzantine_counts",
    Column("byzantine", Integer, primary_key=True, comment="a number of Byzantine workers"),
    required("rounds", Integer, "rounds with this number, of all rounds of the run"),
    comment="histogram of Byzantine workers, only for thinned runs, whose `rounds` no longer "
    "have it",
)

identities = _of_run(
    "identities",
    Column(
        "tick", Integer, primary_key=True, comment="clock tick from which this set is Byzantine"
    ),
    required("byzantine", Text, "numbers of the Byzantine workers, from 1 to m, as a JSON list"),
    comment="one row per change of the Byzantine set, for runs with a schedule that no seed "
    "determines (`adaptive`, `evade`, `trace`)",
)

recovery = _of_run(
    "recovery",
    required(
        "switches_seen", Integer, "switches with an evaluation before them and one after them"
    ),
    required(
        "recoveries",
        Integer,
        "switches after which the accuracy came back to its value before, less 0.01 at most",
    ),
    optional("dip", Double, "mean fall of the test accuracy after a switch"),
    optional("largest_dip", Double, "largest fall of the test accuracy after a switch"),
    optional(
        "recovery_rounds", Double, "median time to recover in rounds, as coarse as the evaluations"
    ),
    optional(
        "recovery_budget", Double, "median time to recover in gradient computations per worker"
    ),
    optional(
        "worst_window",
        Double,
        "lowest mean accuracy of five evaluations in a row, after the first fifth of the budget",
    ),
    optional("acceptance", Double, "mean of `rounds.acceptance`"),
    optional("aggregation_error", Double, "mean of `rounds.aggregation_error`"),
    optional("reason", Text, "why columns are NULL, such as `diverged`, `thinned` or `no switch`"),
    comment="one row per run with a result: how the run recovers from switches",
)

worker_labels = _of_run(
    "worker_labels",
    Column("worker", Integer, primary_key=True, comment="number of the worker, from 0"),
    Column("label", Integer, primary_key=True, comment="a label"),
    required("count", Integer, "training samples of the worker with this label"),
    comment="training samples by worker and label, for runs with `data` other than `iid` that are "
    "not thinned",
)

metrics = _of_run(
    "metrics",
    Column("round", Integer, primary_key=True, comment="rounds done before the evaluation"),
    Column("name", Text, primary_key=True, comment="name of the metric"),
    optional("value", Double, "the metric; NULL if not finite"),
    comment="one row per evaluation and metric of the user",
)

environments = Table(
    "environments",
    metadata,
    Column(
        "id", String(16), primary_key=True, comment="first 16 digits of the SHA-256 of `versions`"
    ),
    required(
        "versions",
        Text,
        "versions of dynabro, Python and torch, number of threads and compiled kernels, as JSON",
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
    required("content", LargeBinary, "output of `git diff`, compressed with zlib"),
    comment="changes in users' checkouts; one row serves all runs of a sweep",
)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", Integer, primary_key=True, comment="number"),
    required("name", Text, "name of the sweep, as in `runs.sweep`; of a shard, such as `demo 2/4`"),
    required(
        "status",
        String(16),
        "`running`, `finished`, `failed` (a run failed, or an error ended it) or `interrupted`",
    ),
    required("runs", Integer, "number of runs in the sweep"),
    required("stored_before", Integer, "runs that were stored before, and are not made again"),
    required("jobs", Integer, "runs at a time"),
    required("executor", Text, "`local` (processes of this machine) or `ray`"),
    required("started_at", DateTime, "start time, UTC"),
    optional("ended_at", DateTime, "end time, UTC; NULL if the sweep has not ended"),
    required("heartbeat_at", DateTime, "last heartbeat of the process"),
    required("owner", Text, "identifier of the process"),
    required("host", Text, "machine of the process"),
    required("pid", Integer, "process ID"),
    optional(
        "rerun_after", Integer, "with `--rerun`: the largest run `id` to repeat; NULL when complete"
    ),
    optional("heartbeat_clock", Text, "last heartbeat by the monotonic clock of the machine"),
    optional("wall_seconds", Double, "duration in seconds, independent of changes of the clock"),
    optional("yaml", Text, "text of the sweep's file; NULL if unknown"),
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
    optional(
        "ended_before",
        DateTime,
        "end time of the result or failure that was stored before; NULL if there was none",
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
    required("status", String(16), "`running`, `finished`, `pruned` or `failed`"),
    required("parameters", Text, "the choices of the trial, as JSON"),
    required("run_keys", Text, "keys of its runs, one per seed, as a JSON list"),
    optional("value", Double, "mean over its runs of what the search optimises; NULL if unknown"),
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
    required("rule", Text, "the rule, with its pre-aggregators"),
    required("workers", Integer, "number of workers m"),
    required("byzantine", Integer, "number of Byzantine workers f"),
    required("dimension", Integer, "dimension d of the messages"),
    required("restarts", Integer, "number of starts"),
    required("steps", Integer, "steps per start"),
    required("seed", BigInteger, "seed of the search"),
    required("empirical", Double, "largest ratio found"),
    required(
        "unbounded",
        Boolean,
        "true if the ratio exceeds a million, or a hundred times the proved kappa if "
        "that is larger",
    ),
    optional("proved", Double, "proved kappa of the rule; NULL if no kappa is proved"),
    required("evaluations", Integer, "number of inputs tried"),
    required("complete", Boolean, "true if the search ended before its time limit"),
    optional("worst", Text, "input with the largest ratio, as JSON"),
    required("version", Text, "version of dynabro"),
    required("created_at", DateTime, "time of the search, UTC"),
    UniqueConstraint(*KAPPA_KEY, name="one_search"),
    comment="one row per search of `dynabro verify kappa`",
)

Index("runs_cell", runs.c.task, runs.c.method, runs.c.switching)
