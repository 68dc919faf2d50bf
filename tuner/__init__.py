"""The tuner: proposes parallel configurations, runs trials, remembers and ranks them."""

__version__ = "0.1.0"
