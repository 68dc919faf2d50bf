"""Ways to run trials: one file per launcher and the parts that they share."""
