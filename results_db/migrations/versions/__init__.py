"""One file per change of the schema, named after its version."""
