"""Expected improvement where a trial may fail, maximised by DeepHyper's CBO over a shortlist."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from tuner.searchers.calibrated_model import Mixture
from tuner.searchers.deephyper_engine import quiet_deephyper
from tuner.searchers.kernels import Rows
from tuner.searchers.knobs import Floats

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SURE = 0.99
"""Share of the likeliest point's probability from which on a point counts as no riskier."""
_SAFE = 0.97
"""The same for points that are worth a trial however little they promise."""
_LAST = -600.0
"""Log gain below that of every point worth its risk."""


@dataclass(frozen=True)
class Shortlist:
    """Untried candidates with the belief in their log cost and their probability of running."""

    rows: Rows
    belief: Mixture
    probability: Floats

    aversion: float = 1.0
    """Power of the probability in the gain: 1 is the expected improvement, more shuns risk."""
    failure_cost: float = 0.0
    """What a failed trial costs, in units of log step time."""

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation of the log cost."""
        return np.asarray(self.belief.moments()[1])

    def log_improvement(self, goal: float) -> Floats:
        """Log of the gain expected on log cost `goal`: improvement, discounted by the risk.

        Each hypothesis has its own expected improvement, and they are averaged: one that leaves
        room for surprises counts in full, however narrow the others are.

        Only the risk beyond that of the likeliest point counts: what all share is no reason to
        prefer one. Points whose gain is smaller than the cost of a failure come after all others,
        the likeliest first.
        """
        belief = self.belief
        each = np.log(belief.spreads) + _log_h((goal - belief.means) / belief.spreads)
        improvement = logsumexp(each, axis=0, b=belief.weights[:, None])
        odds = self.probability / max(float(self.probability.max()), 1e-12)
        odds = np.where(odds > _SURE, 1.0, np.maximum(odds, 1e-12))
        gain = improvement + self.aversion * np.log(odds)
        cost = np.log(np.maximum((1 - odds) * self.failure_cost, 1e-300))
        last = _LAST - 20 * (1 - odds) + np.maximum(gain, -1000.0) / 100
        return np.asarray(np.where((gain > cost) | (odds >= _SAFE), gain, last))

    def discounted_mean(self, goal: float) -> Floats:
        """Means whose plain expected improvement is what `log_improvement` says.

        DeepHyper's acquisition knows one mean and one spread alone; raising the mean until the
        expected improvement has shrunk to the expected gain hands it the risk as well.
        """
        mean, spread = self.belief.moments()
        z = (goal - mean) / spread
        wanted = self.log_improvement(goal) - np.log(spread)
        for _ in range(25):  # Newton on a concave function
            step = (_log_h(z) - wanted) / np.exp(log_ndtr(z) - _log_h(z))
            z = z - np.clip(step, -5.0, 5.0)
        return np.asarray(goal - z * spread)


def _log_h(z: Floats) -> Floats:
    """Log of `z Phi(z) + phi(z)`, the expected improvement in units of the spread."""
    z = np.asarray(z, dtype=float)
    density = np.exp(-0.5 * z**2 - _LOG_SQRT_2PI)
    near = np.log(np.maximum(z * ndtr(z) + density, 1e-300))
    far = np.minimum(z, -1.0)
    tail = -0.5 * far**2 - _LOG_SQRT_2PI - 2 * np.log(-far) - 3 / far**2
    return np.asarray(np.where(z > -6.0, near, tail))


def propose_improvement(
    shortlist: Shortlist, costs: Sequence[tuple[int, float]], *, num_rows: int, seed: int
) -> int:
    """The row that DeepHyper's CBO proposes: the argmax of expected improvement.

    Args:
        shortlist: where to look.
        costs: measured rows with their log cost, lies for running trials included; not empty.
        num_rows: of the candidate table; DeepHyper's one hyperparameter is the row.
        seed: of DeepHyper's randomness, which breaks ties at most.
    """
    goal = min(cost for _, cost in costs)
    order = np.argsort(-shortlist.log_improvement(goal), kind="stable")
    surrogate = _tabulated(shortlist, goal, num_rows)
    with quiet_deephyper() as folder:
        return _ask(surrogate, shortlist.rows[order], costs, num_rows, seed, folder)


def _ask(
    surrogate: Any,
    rows: Rows,
    costs: Sequence[tuple[int, float]],
    num_rows: int,
    seed: int,
    folder: str,
) -> int:
    import pandas as pd
    from deephyper.hpo import CBO, HpProblem

    problem = HpProblem()
    problem.add_hyperparameter((0, max(num_rows - 1, 1)), "row")
    pool = pd.DataFrame({"row": rows})  # best first: where improvements vanish, the first is taken
    problem.set_sampling_fn(lambda _size: pool)
    search = CBO(
        problem,
        random_state=seed % 2**31,
        log_dir=folder,
        checkpoint_history_to_csv=False,
        surrogate_model=surrogate,
        acq_func="EI",
        acq_func_kwargs={"xi": 0.0, "scheduler": {"type": "constant", "delay": 0}},
        acq_optimizer="sampling",
        acq_optimizer_kwargs={"max_total_failures": -1, "outliers_iqr_factor": float("inf")},
        n_initial_points=1,
        objective_scaler="identity",
    )
    search.tell([({"row": row}, -cost) for row, cost in costs])
    return int(search.ask(1)[0]["row"])


def _tabulated(shortlist: Shortlist, goal: float, num_rows: int) -> Any:
    """A scikit-learn regressor that looks its predictions up by row."""
    from sklearn.base import BaseEstimator, RegressorMixin

    mean, spread = np.full(num_rows, goal + 10.0), np.full(num_rows, 1e-9)
    mean[shortlist.rows] = shortlist.discounted_mean(goal)
    spread[shortlist.rows] = shortlist.spread

    class Tabulated(RegressorMixin, BaseEstimator):  # type: ignore[misc,no-untyped-call,unused-ignore]
        """The surrogate was conditioned on the study beforehand: fitting has nothing left to do."""

        def __sklearn_clone__(self) -> "Tabulated":
            return self

        def fit(self, points: Any, costs: Any) -> "Tabulated":
            """Accept DeepHyper's call."""
            return self

        def predict(self, points: Any, return_std: bool = False) -> Any:
            """Mean, and standard deviation if wanted, of the rows in the one column."""
            rows = np.asarray(points, dtype=float)[:, 0].round().astype(int)
            return (mean[rows], spread[rows]) if return_std else mean[rows]

    return Tabulated()
