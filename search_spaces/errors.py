"""Errors of the search space.

SearchSpaceError
├── ModelSpecError      a model description that cannot be read or is not supported
├── ClusterSpecError    a cluster description that cannot be read
└── SpaceError          an impossible domain, or a space without a legal point
"""


class SearchSpaceError(Exception):
    """Base of this package: one sentence that says what is wrong, and a hint on what helps."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ModelSpecError(SearchSpaceError):
    """A model description is missing, malformed or of an architecture that is not supported."""


class ClusterSpecError(SearchSpaceError):
    """A cluster description is missing or malformed."""


class SpaceError(SearchSpaceError):
    """A domain is impossible, or no point of the space is legal."""
