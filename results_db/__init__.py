"""The results database: studies, trials and what was measured, in SQL that people can live in."""
