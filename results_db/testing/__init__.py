"""Help for tests and benchmarks of whoever builds on the results database."""
