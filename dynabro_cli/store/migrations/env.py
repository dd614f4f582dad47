"""Run by alembic: migrate the connection that the caller put into the configuration, in the caller's transaction."""

from __future__ import annotations

from alembic import context

from dynabro_cli.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
