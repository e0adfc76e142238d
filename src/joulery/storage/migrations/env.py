"""Run the steps on the connection that :mod:`joulery.storage.migrate` hands over."""

from __future__ import annotations

from alembic import context

from joulery.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
