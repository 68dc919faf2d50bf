"""Contract suites and fakes, for our own tests and for those of plug-ins."""
