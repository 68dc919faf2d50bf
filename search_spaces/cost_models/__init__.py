"""Predict step time and memory of a configuration without running it."""
