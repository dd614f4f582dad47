"""How the training set is shared out among the workers, and evaluations on samples that are held out of it.

Both are parts of the spec, and of what makes a cell. In all runs before, every worker had the whole training set.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


CELL = (
    "task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock, workers, byzantine, budget, "
    "batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every"
)
ADDED = "precision, participation, data, validation"


def upgrade() -> None:
    op.execute("DROP VIEW final_accuracy")
    op.add_column("runs", sa.Column("data", sa.Text(), server_default="iid", nullable=False))
    op.add_column("runs", sa.Column("validation", sa.Double(), server_default="0", nullable=False))
    op.add_column("evaluations", sa.Column("validation_accuracy", sa.Double()))
    op.add_column("evaluations", sa.Column("validation_loss", sa.Double()))
    op.create_table(
        "worker_labels",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Integer(), nullable=False),
        sa.Column("label", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "worker", "label"),
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
               {ADDED}
        FROM (SELECT runs.*, AVG(final_accuracy) OVER (PARTITION BY {CELL}, {ADDED}) AS cell_mean
              FROM runs WHERE status IN ('finished', 'diverged')) AS cells
        GROUP BY {CELL}, {ADDED}
        """
    )
