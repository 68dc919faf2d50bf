"""A prediction that is a sum of parts, each of which may be off by a factor of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.searchers.knobs import Floats


@dataclass(frozen=True)
class PartsPrior:
    """Predicted positive quantity of each candidate as a sum of parts: (candidates, parts).

    The log of the re-weighted sum is linear in the log weights near any of them, with the parts'
    shares as coefficients; that makes a Gaussian process out of "each part may be wrong by a
    factor".
    """

    parts: Floats
    is_informative: bool = True

    def log_sum(self, log_weights: Floats) -> Floats:
        """Log of the re-weighted sum."""
        return np.asarray(np.log(self.parts @ np.exp(log_weights)))

    def shares(self, log_weights: Floats) -> Floats:
        """Each part's share of the re-weighted sum: gradient of `log_sum`."""
        weighted = self.parts * np.exp(log_weights)
        return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))

    @property
    def num_parts(self) -> int:
        """Number of weights."""
        return int(self.parts.shape[1])


def parts_prior(totals: Sequence[float | None], parts: Sequence[Mapping[str, float]]) -> PartsPrior:
    """The prior of candidates whose predictions may lack parts, or be missing altogether.

    Without parts the total is the only one. Without totals for all candidates the prior says
    nothing: a constant.
    """
    names = list(dict.fromkeys(name for each in parts for name in each))
    if names and all(parts) and all(sum(each.values()) > 0 for each in parts):
        table = np.array([[each.get(name, 0.0) for name in names] for each in parts], dtype=float)
        table = np.maximum(table, 0.0)
        return PartsPrior(_merge_small(table))
    if totals and all(total is not None and total > 0 for total in totals):
        return PartsPrior(np.array(totals, dtype=float)[:, None])
    return PartsPrior(np.ones((len(totals), 1)), is_informative=False)


def _merge_small(table: Floats) -> Floats:
    """Drop parts that are nowhere at least 0.1 % of the sum into the largest part."""
    shares = table / table.sum(axis=1, keepdims=True)
    keep = shares.max(axis=0) >= 1e-3
    largest = int(shares.mean(axis=0).argmax())
    merged = table.copy()
    merged[:, largest] += table[:, ~keep].sum(axis=1)
    return np.asarray(merged[:, keep])
