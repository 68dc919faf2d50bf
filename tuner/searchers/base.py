"""What all searchers share: the candidate list, what is known of it, and checked options."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.parallel_config import ParallelConfig
from tuner.errors import ConfigError
from tuner.ports import Candidate, Observation
from tuner.searchers.history import History
from tuner.searchers.knobs import Knob, varying_knobs
from tuner.searchers.threads import single_threaded


class SearcherOptions(BaseModel):
    """Options of a searcher; subclasses add theirs, each with a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CandidateSearcher(ABC):
    """A searcher over a finite list of candidates; subclasses say how to choose among the untried.

    Args:
        candidates: the legal points; repeated ones are taken once.
        seed: of all random choices. Equal candidates, seed and observations give equal proposals.
        **options: as in `options_model`.

    Raises:
        ConfigError: an option is unknown or has a wrong value.
    """

    name: ClassVar[str]
    lookahead: ClassVar[int] = 1
    options_model: ClassVar[type[SearcherOptions]] = SearcherOptions

    def __init__(self, candidates: Sequence[Candidate], *, seed: int, **options: Any) -> None:
        distinct = {candidate.config: candidate for candidate in candidates}
        self._candidates = tuple(distinct.values())
        self._rows = {config: row for row, config in enumerate(distinct)}
        self._seed = seed
        self._options = self._checked(options)
        self._history = History.of((), self._rows)

    def tell(self, observations: Sequence[Observation]) -> None:
        """Replace what is known of the study; points outside the candidates are left out."""
        self._history = History.of(observations, self._rows)

    def ask(self, count: int) -> list[ParallelConfig]:
        """Propose up to `count` untried candidates, the most promising first."""
        untried = self._untried()
        count = min(count, len(untried))
        if count <= 0:
            return []
        with single_threaded():
            rows = self._choose(untried, count)
        return [self._candidates[row].config for row in rows]

    @abstractmethod
    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        """Pick `count` distinct rows of `untried`, which holds at least that many."""

    @cached_property
    def _knobs(self) -> list[Knob]:
        """The knobs that vary among the candidates."""
        return varying_knobs([candidate.config for candidate in self._candidates])

    def _untried(self) -> list[int]:
        return [row for row in range(len(self._candidates)) if row not in self._history.known]

    @classmethod
    def _checked(cls, options: dict[str, Any]) -> SearcherOptions:
        try:
            return cls.options_model(**options)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            legal = ", ".join(cls.options_model.model_fields) or "none"
            if first["type"] == "extra_forbidden":
                message = f"the searcher {cls.name!r} has no option {name!r}"
            else:
                message = f"option {name!r} of the searcher {cls.name!r}: {first['msg']}"
            raise ConfigError(message, hint=f"its options: {legal}") from None
