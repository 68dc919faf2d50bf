"""Alembic migrations; see `results_db.upgrades` for how they are run."""
