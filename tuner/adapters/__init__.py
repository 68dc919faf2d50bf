"""Adapters: run a user's own trainer as the trial."""
