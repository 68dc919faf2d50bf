"""The default searcher: DeepHyper's CBO on the points that are thought to fit in memory."""

from collections.abc import Sequence

from pydantic import Field

from tuner.searchers.cbo_plain import CboPlainOptions, CboPlainSearcher


class CboOptions(CboPlainOptions):
    """`min_probability_fits`: points less likely to fit are left to the end."""

    min_probability_fits: float = Field(default=0.1, ge=0, le=1)


class CboSearcher(CboPlainSearcher):
    """Bayesian optimisation on the list of legal, fitting points."""

    name = "cbo"
    options_model = CboOptions
    _options: CboOptions

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        limit = self._options.min_probability_fits
        fitting = [r for r in untried if self._candidates[r].probability_fits >= limit]
        chosen = list(super()._choose(fitting, min(count, len(fitting)))) if fitting else []
        rest = (row for row in untried if row not in set(fitting))
        return chosen + [row for row, _ in zip(rest, range(count - len(chosen)), strict=False)]
