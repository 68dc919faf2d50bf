"""Alembic's entry: migrates the connection that `results_db.upgrades` passes in."""

from alembic import context

from results_db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
