"""One file per form of parallelism."""
