"""The read-only dashboard over a results database: `tuner serve`."""
