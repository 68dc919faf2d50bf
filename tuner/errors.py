"""Errors of the tuner and the exit codes that the command line gives them.

TunerError                 1  a fault of ours, or anything not named below
├── UsageError             2  a wrong command line
│   └── ConfigError        2  a study file or option that cannot be used
├── NothingFeasibleError   3  no legal point, or no trial gave a number
├── EnvironmentProblem     4  the machine lacks what a study needs (devices, packages, cluster)
│   └── LauncherError      4  trials cannot be started at all
├── StorageProblem         5  the results database cannot be read or written
└── NotExpressible         6  the trainer cannot be told the configuration
"""

from typing import ClassVar


class TunerError(Exception):
    """Base of this package: one sentence that says what is wrong, and a hint on what helps."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(TunerError):
    """The command line asks for something that does not exist."""

    exit_code = 2


class ConfigError(UsageError):
    """A study file, override or option has a wrong key or value."""


class NothingFeasibleError(TunerError):
    """No point of the space is legal, or no trial gave a number."""

    exit_code = 3


class EnvironmentProblem(TunerError):
    """The machine or cluster lacks what the study needs."""

    exit_code = 4


class LauncherError(EnvironmentProblem):
    """No trial can be started: Ray is missing or unreachable, or too few devices exist."""


class StorageProblem(TunerError):
    """The results database cannot be opened, read or written."""

    exit_code = 5


class NotExpressible(TunerError):
    """The trainer that an export is for has no words for a knob's value."""

    exit_code = 6
