"""The tables, in three groups; `results_db.schema` gathers them."""
