"""The tables of the database: a public interface, written against in SQL by its users.

The views ``byzantine_histogram`` and ``final_accuracy`` belong to it too.
"""

from __future__ import annotations

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
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 9
APPLICATION_ID = 0x44594E42
"""``DYNB``, in SQLite's header field for the application that a file belongs to."""

STATUSES = ("running", "finished", "diverged", "interrupted", "failed")
SWEEP_STATUSES = ("running", "finished", "failed", "interrupted")

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_key", String(80), nullable=False, unique=True),
    Column("status", String(16), nullable=False),
    Column("sweep", Text),
    Column("task", Text, nullable=False),
    Column("model", Text),
    Column("method", Text, nullable=False),
    Column("aggregator", Text, nullable=False),
    Column("pre_aggregators", Text, nullable=False),
    Column("attack", Text, nullable=False),
    Column("attack_entry", Text, nullable=False),
    Column("switching", Text, nullable=False),
    Column("clock", Text, nullable=False),
    Column("workers", Integer, nullable=False),
    Column("byzantine", Integer, nullable=False),
    Column("budget", Integer, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("learning_rate", Double, nullable=False),
    Column("lr_rule", Text, nullable=False),
    Column("lr_drop", Text, nullable=False),
    Column("weight_decay", Double, nullable=False),
    Column("eval_every", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("dimension", BigInteger, nullable=False),
    Column("noise_bound", Double),
    Column("final_accuracy", Double),
    Column("final_loss", Double),
    Column("final_gap", Double),
    Column("budget_spent", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("switches", Integer, nullable=False),
    Column("dynamic_rounds", Integer, nullable=False),
    Column("started_at", DateTime, nullable=False),
    Column("finished_at", DateTime),
    Column("wall_seconds", Double),
    Column("device", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("versions", Text, nullable=False),
    Column("git_commit", Text),
    Column("error", Text),
    Column("precision", Text, nullable=False, server_default="fp32"),
    Column("owner", Text),
    Column("heartbeat_at", DateTime),
    Column("checkpoint", Text),
    Column("rounds_every", Integer, nullable=False, server_default="1"),
    Column("participation", Double, nullable=False, server_default="1"),
    Column("data", Text, nullable=False, server_default="iid"),
    Column("validation", Double, nullable=False, server_default="0"),
    Column("squared_gradients", Double),
    Column("code_digests", Text),
    Column("heartbeat_clock", Text),
    CheckConstraint(f"status IN {STATUSES}", name="known_status"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("budget", Integer, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("test_accuracy", Double),
    Column("test_loss", Double),
    Column("train_loss", Double),
    Column("gap", Double),
    Column("x", Text),
    Column("validation_accuracy", Double),
    Column("validation_loss", Double),
    sqlite_with_rowid=False,
)

rounds = Table(
    "rounds",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("budget", Integer, nullable=False),
    Column("level", Integer),
    Column("cost", Integer, nullable=False),
    Column("byzantine", Integer, nullable=False),
    Column("switched", Boolean, nullable=False),
    Column("dynamic", Boolean, nullable=False),
    Column("accepted", Boolean),
    Column("learning_rate", Double, nullable=False),
    Column("gradient_norm", Double),
    Column("aggregation_error", Double),
    Column("acceptance", Double),
    sqlite_with_rowid=False,
)

byzantine_counts = Table(
    "byzantine_counts",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("byzantine", Integer, primary_key=True),
    Column("rounds", Integer, nullable=False),
    sqlite_with_rowid=False,
)

identities = Table(
    "identities",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("tick", Integer, primary_key=True),
    Column("byzantine", Text, nullable=False),
    sqlite_with_rowid=False,
)

recovery = Table(
    "recovery",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("switches_seen", Integer, nullable=False),
    Column("recoveries", Integer, nullable=False),
    Column("dip", Double),
    Column("largest_dip", Double),
    Column("recovery_rounds", Double),
    Column("recovery_budget", Double),
    Column("worst_window", Double),
    Column("acceptance", Double),
    Column("aggregation_error", Double),
    Column("reason", Text),
    sqlite_with_rowid=False,
)

worker_labels = Table(
    "worker_labels",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("worker", Integer, primary_key=True),
    Column("label", Integer, primary_key=True),
    Column("count", Integer, nullable=False),
    sqlite_with_rowid=False,
)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("runs", Integer, nullable=False),
    Column("stored_before", Integer, nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("executor", Text, nullable=False),
    Column("started_at", DateTime, nullable=False),
    Column("ended_at", DateTime),
    Column("heartbeat_at", DateTime, nullable=False),
    Column("owner", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("rerun_after", Integer),
    Column("heartbeat_clock", Text),
    Column("wall_seconds", Double),
    CheckConstraint(f"status IN {SWEEP_STATUSES}", name="known_sweep_status"),
)

sweep_runs = Table(
    "sweep_runs",
    metadata,
    Column("sweep_id", Integer, ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True),
    Column("run_key", String(80), primary_key=True),
    Column("ended_before", DateTime),
    sqlite_with_rowid=False,
)

SEARCH = ("rule", "workers", "byzantine", "dimension", "restarts", "steps", "seed", "version")
"""The columns of ``verified_kappa`` that determine its others, on any machine, where a search is complete."""

verified_kappa = Table(
    "verified_kappa",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("rule", Text, nullable=False),
    Column("workers", Integer, nullable=False),
    Column("byzantine", Integer, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("empirical", Double, nullable=False),
    Column("unbounded", Boolean, nullable=False),
    Column("proved", Double),
    Column("evaluations", Integer, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("worst", Text),
    Column("version", Text, nullable=False),
    Column("created_at", DateTime, nullable=False),
    UniqueConstraint(*SEARCH, name="one_search"),
)

Index("runs_cell", runs.c.task, runs.c.method, runs.c.switching)

_CELL = (
    "task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock, workers, byzantine, budget, "
    "batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every"
)
_ADDED = "precision, participation, data, validation"
VIEWS = {
    "byzantine_histogram": """
        CREATE VIEW byzantine_histogram AS
        SELECT rounds.run_id, rounds.byzantine, COUNT(*) AS rounds
        FROM runs JOIN rounds ON rounds.run_id = runs.id WHERE runs.rounds_every = 1
        GROUP BY rounds.run_id, rounds.byzantine
        UNION ALL
        SELECT byzantine_counts.run_id, byzantine_counts.byzantine, byzantine_counts.rounds
        FROM runs JOIN byzantine_counts ON byzantine_counts.run_id = runs.id WHERE runs.rounds_every <> 1
    """,
    "final_accuracy": f"""
        CREATE VIEW final_accuracy AS
        SELECT {_CELL}, COUNT(*) AS n, AVG(final_accuracy) AS mean,
               CASE WHEN COUNT(*) > 1
                    THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean)) / (COUNT(*) - 1)) END AS std,
               AVG(final_gap) AS mean_gap,
               SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged,
               {_ADDED}
        FROM (SELECT runs.*, AVG(final_accuracy) OVER (PARTITION BY {_CELL}, {_ADDED}) AS cell_mean
              FROM runs WHERE status IN ('finished', 'diverged')) AS cells
        GROUP BY {_CELL}, {_ADDED}
    """,
}
"""The views as the migrations leave them."""
