"""The precision of a run: part of its spec, and of what makes a cell. All runs before it were computed in fp32."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


CELL = (
    "task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock, workers, byzantine, budget, "
    "batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every"
)


def upgrade() -> None:
    op.execute("DROP VIEW final_accuracy")
    op.add_column("runs", sa.Column("precision", sa.Text(), server_default="fp32", nullable=False))
    op.execute(
        f"""
        CREATE VIEW final_accuracy AS
        SELECT {CELL}, COUNT(*) AS n, AVG(final_accuracy) AS mean,
               CASE WHEN COUNT(*) > 1
                    THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean)) / (COUNT(*) - 1)) END AS std,
               AVG(final_gap) AS mean_gap,
               SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged,
               precision
        FROM (SELECT runs.*, AVG(final_accuracy) OVER (PARTITION BY {CELL}, precision) AS cell_mean
              FROM runs WHERE status IN ('finished', 'diverged')) AS cells
        GROUP BY {CELL}, precision
        """
    )
