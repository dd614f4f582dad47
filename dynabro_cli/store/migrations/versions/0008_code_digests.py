"""Digests of the code that a run was made with, and from where on a sweep repeats results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("code_digests", sa.Text()))
    op.add_column("sweeps", sa.Column("rerun_after", sa.Integer()))
