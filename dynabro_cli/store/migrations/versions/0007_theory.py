"""What the theory is checked by: mean squared gradients of objectives, and the worst inputs that searches find for a rule."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("squared_gradients", sa.Double()))
    op.create_table(
        "verified_kappa",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("byzantine", sa.Integer(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("empirical", sa.Double(), nullable=False),
        sa.Column("unbounded", sa.Boolean(), nullable=False),
        sa.Column("proved", sa.Double()),
        sa.Column("evaluations", sa.Integer(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("worst", sa.Text()),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint(
            *("rule", "workers", "byzantine", "dimension", "restarts", "steps", "seed", "version"), name="one_search"
        ),
    )
