"""Bridges for users of other search tools: our search in theirs, our trials in their formats."""
