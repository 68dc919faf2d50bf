"""Functions of the user: an objective that ranks trials, a constraint that refuses configurations.

A study file names one as `package.module:function` or `path/to/file.py:function`; a program passes
the function itself. A study stores the name, so that another process can go on with it.
"""

import importlib
import importlib.util
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import KNOBS, ParallelConfig
from tuner.config import Direction, StudyConfig
from tuner.errors import ConfigError
from tuner.trial import Trial

log = logging.getLogger(__name__)

ObjectiveFunction = Callable[[Trial], float]
"""A measured trial in, a positive number out; what is better is the study's direction."""

ConstraintFunction = Callable[[ParallelConfig, Setting], str | None]
"""A legal configuration and its setting (model, recipe, cluster) in; why not, or none, out."""


@dataclass(frozen=True)
class UserFunctions:
    """What a program gives to a study in place of names in its file."""

    objective: ObjectiveFunction | None = None
    constraint: ConstraintFunction | None = None

    def named_in(self, config: StudyConfig) -> StudyConfig:
        """The config with the functions' names, so that they are stored with the study."""
        search, space = config.search, config.space
        if self.objective is not None:
            search = search.model_copy(update={"objective": reference_of(self.objective)})
        if self.constraint is not None:
            space = space.model_copy(update={"constraint": reference_of(self.constraint)})
        return config.model_copy(update={"search": search, "space": space})


@dataclass(frozen=True)
class Objective:
    """What a study maximises or minimises in place of tokens a second."""

    function: ObjectiveFunction
    reference: str
    direction: Direction

    def score(self, trial: Trial) -> float | None:
        """The objective of a trial; none where it gave no number.

        Raises:
            ConfigError: the function failed, or gave no positive number.
        """
        if not trial.is_measured:
            return None
        where = f"the objective {self.reference!r} for trial {trial.number} ({trial.label})"
        try:
            value = float(self.function(trial))
        except Exception as error:  # it is the user's code
            log.info("%s failed", where, exc_info=True)
            raise ConfigError(f"{where} failed: {type(error).__name__}: {error}") from error
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"{where} gave {value:g}, which is no positive number",
                hint="shift it, or minimise it in place of its negative",
            )
        return value

    def gain(self, trial: Trial) -> float | None:
        """The objective as a positive number of which more is better; none without a number."""
        value = self.score(trial)
        return value if value is None or self.direction == "maximize" else 1 / value


@dataclass
class UserConstraint:
    """A user's rule over legal configurations, with what it has refused so far."""

    function: ConstraintFunction
    reference: str
    answers: dict[ParallelConfig, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name among the rules of the space."""
        return f"user:{self.reference.rpartition(':')[2]}"

    @property
    def refused(self) -> Mapping[ParallelConfig, str]:
        """Configurations that nothing but this rule forbids, with its reasons."""
        return {config: why for config, why in self.answers.items() if why is not None}

    def rule(self) -> Constraint:
        """The rule as the space asks it: last, and once for each configuration."""
        return Constraint(
            self.name,
            KNOBS,
            lambda config, setting: self._why(config, setting) is None,
            lambda config, setting: self._why(config, setting) or "",
            suggests=False,
        )

    def _why(self, config: ParallelConfig, setting: Setting) -> str | None:
        if config not in self.answers:
            own = config.model_copy()  # the enumeration writes the one that it passes
            self.answers[own] = self._asked(own, setting)
        return self.answers[config]

    def _asked(self, config: ParallelConfig, setting: Setting) -> str | None:
        where = f"the constraint {self.reference!r} for {config.short()}"
        try:
            why: object = self.function(config, setting)
        except Exception as error:  # it is the user's code
            log.info("%s failed", where, exc_info=True)
            raise ConfigError(f"{where} failed: {type(error).__name__}: {error}") from error
        if why is None or (isinstance(why, str) and why.strip()):
            return why
        raise ConfigError(
            f"{where} gave {why!r}", hint="return a sentence that says why not, or None"
        )


def objective_of(config: StudyConfig, given: ObjectiveFunction | None = None) -> Objective | None:
    """The objective that a program gave or the study names; none for tokens a second.

    Raises:
        ConfigError: the study names a function that cannot be loaded.
    """
    reference = config.search.objective
    if given is not None:
        return Objective(given, reference_of(given), config.search.objective_direction)
    if reference is None:
        return None
    function = load_function(reference, "search.objective")
    return Objective(function, reference, config.search.objective_direction)


def constraint_of(
    config: StudyConfig, given: ConstraintFunction | None = None
) -> UserConstraint | None:
    """The constraint that a program gave or the study names; none without one.

    Raises:
        ConfigError: the study names a function that cannot be loaded.
    """
    if given is not None:
        return UserConstraint(given, reference_of(given))
    reference = config.space.constraint
    if reference is None:
        return None
    return UserConstraint(load_function(reference, "space.constraint"), reference)


def reference_of(function: Callable[..., Any]) -> str:
    """The name that a study stores for a function, e.g. `my_rules:small_stages`."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '')}:{name}"


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """The function behind `package.module:function` or `path/to/file.py:function`.

    Raises:
        ConfigError: there is none; the message names `key`.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f"`{key}` is {reference!r}, but should be a function",
            hint="write package.module:function or path/to/file.py:function",
        )
    if place == "__main__" or "<" in name:
        raise ConfigError(
            f"`{key}` is {name.strip('<>')!r}, a function of the program that made the study",
            hint=f"pass it again: tuner.resume(..., {key.rpartition('.')[2]}=...)",
        )
    try:
        found = getattr(_module_at(place), name)
    except Exception as error:  # a user's module may raise anything at import
        log.info("%s cannot be loaded", reference, exc_info=True)
        raise ConfigError(f"`{key}` {reference!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(f"`{key}` {reference!r} is not a function")
    return found  # type: ignore[no-any-return]


def _module_at(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
