"""Run the migrations on the connection that ``joulery.storage._migrate`` hands over."""

from __future__ import annotations

from alembic import context

from joulery.storage._schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
