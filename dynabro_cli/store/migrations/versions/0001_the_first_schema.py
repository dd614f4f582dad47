"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


CELL = (
    "task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock, workers, byzantine, budget, "
    "batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every"
)


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_key", sa.String(length=80), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=True),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("aggregator", sa.Text(), nullable=False),
        sa.Column("pre_aggregators", sa.Text(), nullable=False),
        sa.Column("attack", sa.Text(), nullable=False),
        sa.Column("attack_entry", sa.Text(), nullable=False),
        sa.Column("switching", sa.Text(), nullable=False),
        sa.Column("clock", sa.Text(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("byzantine", sa.Integer(), nullable=False),
        sa.Column("budget", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("lr_rule", sa.Text(), nullable=False),
        sa.Column("lr_drop", sa.Text(), nullable=False),
        sa.Column("weight_decay", sa.Double(), nullable=False),
        sa.Column("eval_every", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("dimension", sa.BigInteger(), nullable=False),
        sa.Column("noise_bound", sa.Double(), nullable=True),
        sa.Column("final_accuracy", sa.Double(), nullable=True),
        sa.Column("final_loss", sa.Double(), nullable=True),
        sa.Column("final_gap", sa.Double(), nullable=True),
        sa.Column("budget_spent", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("switches", sa.Integer(), nullable=False),
        sa.Column("dynamic_rounds", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.Column("wall_seconds", sa.Double(), nullable=True),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("git_commit", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('running', 'finished', 'diverged', 'interrupted', 'failed')", name="known_status"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_key"),
    )
    op.create_index("runs_cell", "runs", ["task", "method", "switching"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("budget", sa.Integer(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("test_accuracy", sa.Double(), nullable=True),
        sa.Column("test_loss", sa.Double(), nullable=True),
        sa.Column("train_loss", sa.Double(), nullable=True),
        sa.Column("gap", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rounds",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("budget", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("cost", sa.Integer(), nullable=False),
        sa.Column("byzantine", sa.Integer(), nullable=False),
        sa.Column("switched", sa.Boolean(), nullable=False),
        sa.Column("dynamic", sa.Boolean(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=True),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("gradient_norm", sa.Double(), nullable=True),
        sa.Column("aggregation_error", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round"),
        sqlite_with_rowid=False,
    )
    op.execute(
        """
        CREATE VIEW byzantine_histogram AS
        SELECT run_id, byzantine, COUNT(*) AS rounds FROM rounds GROUP BY run_id, byzantine
        """
    )
    op.execute(
        f"""
        CREATE VIEW final_accuracy AS
        SELECT {CELL}, COUNT(*) AS n, AVG(final_accuracy) AS mean,
               CASE WHEN COUNT(*) > 1
                    THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean)) / (COUNT(*) - 1)) END AS std,
               AVG(final_gap) AS mean_gap,
               SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged
        FROM (SELECT runs.*, AVG(final_accuracy) OVER (PARTITION BY {CELL}) AS cell_mean
              FROM runs WHERE status IN ('finished', 'diverged')) AS cells
        GROUP BY {CELL}
        """
    )
