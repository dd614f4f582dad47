"""How much Byzantine messages count, how runs recover from switches, schedules no seed tells, and partial participation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


CELL = (
    "task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock, workers, byzantine, budget, "
    "batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every"
)


def upgrade() -> None:
    op.execute("DROP VIEW final_accuracy")
    op.add_column("runs", sa.Column("participation", sa.Double(), server_default="1", nullable=False))
    op.add_column("rounds", sa.Column("acceptance", sa.Double()))
    op.create_table(
        "identities",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("tick", sa.Integer(), nullable=False),
        sa.Column("byzantine", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "tick"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "recovery",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("switches_seen", sa.Integer(), nullable=False),
        sa.Column("recoveries", sa.Integer(), nullable=False),
        sa.Column("dip", sa.Double()),
        sa.Column("largest_dip", sa.Double()),
        sa.Column("recovery_rounds", sa.Double()),
        sa.Column("recovery_budget", sa.Double()),
        sa.Column("worst_window", sa.Double()),
        sa.Column("acceptance", sa.Double()),
        sa.Column("aggregation_error", sa.Double()),
        sa.Column("reason", sa.Text()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
        sqlite_with_rowid=False,
    )
    op.execute(
        f"""
        CREATE VIEW final_accuracy AS
        SELECT {CELL}, COUNT(*) AS n, AVG(final_accuracy) AS mean,
               CASE WHEN COUNT(*) > 1
                    THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean)) / (COUNT(*) - 1)) END AS std,
               AVG(final_gap) AS mean_gap,
               SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged,
               precision, participation
        FROM (SELECT runs.*, AVG(final_accuracy) OVER (PARTITION BY {CELL}, precision, participation) AS cell_mean
              FROM runs WHERE status IN ('finished', 'diverged')) AS cells
        GROUP BY {CELL}, precision, participation
        """
    )
