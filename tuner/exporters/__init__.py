"""Exporters: a configuration in the words of a trainer."""
