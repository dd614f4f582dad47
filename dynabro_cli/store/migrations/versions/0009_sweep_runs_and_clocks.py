"""The runs that a sweep makes, how long it takes, and heartbeats by a clock that nobody sets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("heartbeat_clock", sa.Text()))
    op.add_column("sweeps", sa.Column("heartbeat_clock", sa.Text()))
    op.add_column("sweeps", sa.Column("wall_seconds", sa.Double()))
    op.create_table(
        "sweep_runs",
        sa.Column("sweep_id", sa.Integer(), sa.ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("run_key", sa.String(80), primary_key=True),
        sa.Column("ended_before", sa.DateTime()),
        sqlite_with_rowid=False,
    )
