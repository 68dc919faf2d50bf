"""Measurements behind the figures in the docs: `python -m benchmarks.NAME [--quick] [--json]`."""
