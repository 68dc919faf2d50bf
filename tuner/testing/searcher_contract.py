"""What every searcher must do, as a suite that outsiders can run on theirs too.

Subclass `SearcherContract` in a test module, with a name that pytest collects, and set
`searcher_class`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.errors import ConfigError
from tuner.ports import Candidate, Observation, ObservationState, Searcher

Outcome = Callable[[Candidate], Observation]


def require(condition: bool, message: str) -> None:
    """Raise `AssertionError` with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def make_candidates(num_devices: int = 8, *, has_prior: bool = True) -> list[Candidate]:
    """A small space on `num_devices`, with a made-up prior of two parts."""
    degrees = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
    configs = [
        ParallelConfig(
            tp=tp,
            pp=pp,
            dp=num_devices // (tp * pp),
            micro_batch_size=micro,
            zero_stage=zero,
            recompute=recompute,
        )
        for tp in degrees
        for pp in degrees
        if num_devices % (tp * pp) == 0
        for micro in (1, 2, 4)
        for zero in (0, 1)
        for recompute in ("none", "full")
    ]
    return [_candidate(config, has_prior) for config in configs]


def _candidate(config: ParallelConfig, has_prior: bool) -> Candidate:
    if not has_prior:
        return Candidate(config=config)
    compute = 1.0 + 0.3 * (config.recompute == "full") + 0.2 / config.micro_batch_size
    parts = {"compute": compute, "tp": 0.1 * (config.tp - 1), "bubble": 0.15 * (config.pp - 1)}
    memory = 1e9 * (1 + 8 / (config.tp * config.pp) + 0.4 * config.micro_batch_size)
    return Candidate(
        config=config,
        step_time_s=sum(parts.values()),
        step_time_parts_s=parts,
        peak_memory_bytes=memory,
        probability_fits=float(np.clip(1.6 - memory / 8e9, 0.02, 0.98)),
    )


def completed(candidate: Candidate) -> Observation:
    """A measured result near a made-up truth that depends on several knobs."""
    config = candidate.config
    time = 1.0 + 0.2 * abs(np.log2(config.tp) - 1) + 0.1 * np.log2(config.pp)
    time += 0.3 / config.micro_batch_size + 0.25 * (config.recompute == "full")
    return Observation(
        config=config,
        state=ObservationState.COMPLETED,
        step_time_s=float(time),
        tokens_per_s=float(4096 / time),
        peak_memory_bytes=int(candidate.peak_memory_bytes or 1e9),
    )


def out_of_memory(candidate: Candidate) -> Observation:
    """A trial that did not fit."""
    return Observation(
        config=candidate.config, state=ObservationState.INFEASIBLE, failure=FailureKind.OOM
    )


def crashed(candidate: Candidate) -> Observation:
    """A trial that ended without a number for a reason that may pass."""
    return Observation(
        config=candidate.config, state=ObservationState.FAILED, failure=FailureKind.CRASH
    )


def running(candidate: Candidate) -> Observation:
    """A trial under way."""
    return Observation(config=candidate.config, state=ObservationState.RUNNING)


def drive(
    searcher: Searcher,
    candidates: Sequence[Candidate],
    outcome: Outcome,
    *,
    num_trials: int,
    batch: int = 1,
) -> list[Observation]:
    """Ask and tell for up to `num_trials` trials, checking every proposal; gives what was told."""
    by_config = {candidate.config: candidate for candidate in candidates}
    told: list[Observation] = []
    while len(told) < num_trials:
        searcher.tell(told)
        proposed = searcher.ask(min(batch, num_trials - len(told)))
        if not proposed:
            break
        check_proposals(proposed, by_config, {observation.config for observation in told})
        told += [outcome(by_config[config]) for config in proposed]
    return told


def check_proposals(
    proposed: Sequence[ParallelConfig],
    by_config: dict[ParallelConfig, Candidate],
    told: set[ParallelConfig],
) -> None:
    """Every proposal is a candidate, new, and named once."""
    for config in proposed:
        require(config in by_config, f"proposed a point that is no candidate: {config.short()}")
        require(config not in told, f"proposed a known point again: {config.short()}")
    require(len(set(proposed)) == len(proposed), "proposed one point twice in one ask")


class SearcherContract:
    """The laws; `searcher_class` and `options` say what is under test."""

    searcher_class: ClassVar[Callable[..., Searcher]]
    options: ClassVar[dict[str, Any]] = {}

    def make(self, candidates: Sequence[Candidate], seed: int = 0) -> Searcher:
        """A fresh searcher."""
        return type(self).searcher_class(candidates, seed=seed, **self.options)

    def test_has_a_name(self) -> None:
        """The registry's key is the searcher's own."""
        require(bool(self.make(make_candidates()).name), "a searcher needs a name")

    def test_never_repeats_and_ends(self) -> None:
        """All candidates are proposed once, then none."""
        candidates = make_candidates(4)
        told = drive(self.make(candidates), candidates, completed, num_trials=10**6, batch=5)
        require(len(told) == len(candidates), f"tried {len(told)} of {len(candidates)} points")

    def test_is_deterministic(self) -> None:
        """Equal seed, candidates and history give equal proposals, in new objects."""
        candidates = make_candidates()
        runs = [
            drive(self.make(candidates, seed=7), candidates, completed, num_trials=8)
            for _ in range(2)
        ]
        require(runs[0] == runs[1], "two runs with one seed differ")

    def test_state_is_the_history_alone(self) -> None:
        """A new object that is told the same rows goes on as the old one would (resume)."""
        candidates = make_candidates()
        searcher = self.make(candidates, seed=3)
        told = drive(searcher, candidates, completed, num_trials=12)
        fresh = self.make(candidates, seed=3)
        for each in (searcher, fresh):
            each.tell(told)
        require(searcher.ask(2) == fresh.ask(2), "a resumed study would go another way")

    def test_survives_failures_alone(self) -> None:
        """150 failures in a row, of all kinds, neither stop the search nor repeat a point."""
        candidates = make_candidates(32)
        for outcome in (out_of_memory, crashed):
            told = drive(self.make(candidates), candidates, outcome, num_trials=150, batch=10)
            require(len(told) == 150, f"stopped after {len(told)} failures")

    def test_goes_on_after_mixed_outcomes(self) -> None:
        """Failures among results do no harm."""
        candidates = make_candidates()

        def outcome(candidate: Candidate) -> Observation:
            config = candidate.config
            if config.recompute == "none" and config.micro_batch_size == 4:
                return out_of_memory(candidate)
            return crashed(candidate) if config.pp == 4 else completed(candidate)

        told = drive(self.make(candidates), candidates, outcome, num_trials=25)
        require(len(told) == 25, "stopped early")

    def test_running_points_are_taken(self) -> None:
        """Points under way are not proposed again, with results or without."""
        candidates = make_candidates()
        by_config = {candidate.config: candidate for candidate in candidates}
        for results in ([], [completed(candidate) for candidate in candidates[:12]]):
            told = results + [running(candidate) for candidate in candidates[12:16]]
            searcher = self.make(candidates)
            searcher.tell(told)
            proposed = searcher.ask(4)
            require(len(proposed) == 4, "fewer points than asked for while some are left")
            check_proposals(proposed, by_config, {observation.config for observation in told})

    def test_tell_replaces(self) -> None:
        """What was told before is forgotten."""
        candidates = make_candidates(2)
        searcher = self.make(candidates)
        searcher.tell([completed(candidate) for candidate in candidates])
        require(searcher.ask(1) == [], "all points are known, none is left")
        searcher.tell([])
        require(len(searcher.ask(1)) == 1, "nothing is known, every point is left")

    def test_works_without_a_prior(self) -> None:
        """Candidates without predictions are searched all the same."""
        candidates = make_candidates(has_prior=False)
        told = drive(self.make(candidates), candidates, completed, num_trials=20)
        require(len(told) == 20, "stopped early")

    def test_tiny_spaces(self) -> None:
        """No candidate, one candidate, and one candidate named twice."""
        one = make_candidates(1)[:1]
        require(self.make([]).ask(3) == [], "no candidate, no proposal")
        for candidates in (one, one * 2):
            require(self.make(candidates).ask(3) == [one[0].config], "one candidate")

    def test_foreign_points_do_no_harm(self) -> None:
        """Rows of a study whose space was narrowed since are ignored or used, never proposed."""
        candidates, foreign = make_candidates(4), make_candidates(8)
        searcher = self.make(candidates)
        searcher.tell([completed(candidate) for candidate in foreign])
        check_proposals(searcher.ask(3), {c.config: c for c in candidates}, set())

    def test_unknown_option_is_refused(self) -> None:
        """A misspelt option is an error that names the legal ones, never dropped."""
        try:
            type(self).searcher_class(make_candidates(2), seed=0, no_such_option=1)
        except ConfigError as error:
            require("no_such_option" in str(error), "the error must name the option")
        else:
            raise AssertionError("an unknown option was accepted")
