"""The leaderboard of a study, for people and machines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from tuner.cli import formats, sparks
from tuner.cli.output import print_table
from tuner.errors import ConfigError

if TYPE_CHECKING:
    from results_db.queries import LeaderboardRow
    from results_db.records import StudyRecord, TrialSummary
    from results_db.store import Store


_BARS = "of the best"
_BASELINE = "your current configuration"
"""What the baseline is, unless `search.baseline_name` says something else."""
_WIDTH_WITH_BARS = 130
"""Columns from which on a bar does not push configurations into a second line."""


@dataclass(frozen=True)
class Leaderboard:
    """Configurations of a study, fastest first, and what their speed-ups are measured against."""

    study: "StudyRecord"
    rows: Sequence["LeaderboardRow"]
    """All of them; ties share a position."""
    trials: Sequence["TrialSummary"]
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores by configuration key, where the study has an objective of the user's."""
    unscored: str = ""
    """Why the user's objective could not be asked."""

    @property
    def median_tokens_per_s(self) -> float | None:
        """Throughput of the configuration in the middle."""
        return median(row.tokens_per_s for row in self.rows) if self.rows else None

    @property
    def baseline_tokens_per_s(self) -> float | None:
        """Throughput of the study's baseline, where it has one that ran."""
        keys = {row.trial.config_key for row in self.trials if row.trial.purpose == "baseline"}
        found = [row.tokens_per_s for row in self.rows if row.config_key in keys]
        return found[0] if found else None

    @property
    def without_a_number(self) -> list["TrialSummary"]:
        """Finished trials that gave none."""
        return [row for row in self.trials if row.trial.status.is_terminal and not row.measurement]

    @property
    def num_leaders(self) -> int:
        """Configurations that the measurements cannot tell from the best."""
        return sum(row.position == 1 for row in self.rows)

    def records(self, top: int | None = None) -> list[dict[str, Any]]:
        """The rows for machines, with their speed-ups."""
        return [
            asdict(row)
            | ({"score": self.scores[row.config_key]} if self.scores else {})
            | {
                "speedup_vs_median": _over(row.tokens_per_s, self.median_tokens_per_s),
                "speedup_vs_baseline": _over(row.tokens_per_s, self.baseline_tokens_per_s),
            }
            for row in self.rows[:top]
        ]


def read_leaderboard(store: "Store", study: "StudyRecord") -> Leaderboard:
    """The leaderboard of a stored study, by its objective where it can be loaded."""
    from dataclasses import replace

    from results_db.queries import leaderboard
    from tuner.api.study import Study

    rows, trials = leaderboard(store, study.name), store.trials(study.id or 0)
    if study.objective_metric == "tokens_per_s":
        return Leaderboard(study, rows, trials)
    try:
        ranked = Study(store, study).leaderboard()
    except ConfigError as error:
        return Leaderboard(study, rows, trials, unscored=error.message)
    by_key = {row.config_key: row for row in rows}
    ordered = [replace(by_key[item.config.config_key], position=item.position) for item in ranked]
    scores = {item.config.config_key: item.score for item in ranked}
    return Leaderboard(study, ordered, trials, scores)


def print_leaderboard(board: Leaderboard, top: int | None = None) -> None:
    """The table; a column that no row has a value for is left out."""
    ties = Counter(row.position for row in board.rows)
    table: dict[str, list[str]] = {
        "#": [f"{row.position}{'=' if ties[row.position] > 1 else ''}" for row in board.rows],
        "score": [
            f"{board.scores[row.config_key]:.4g}" if board.scores else formats.UNKNOWN
            for row in board.rows
        ],
        "tokens/s": [formats.throughput(row.tokens_per_s) for row in board.rows],
        "±": [_spread(row) for row in board.rows],
        "step": [formats.step_time(row.step_time_s) for row in board.rows],
        "MFU": [formats.percent(row.mfu) for row in board.rows],
        "memory": [formats.memory(row.peak_memory_bytes) for row in board.rows],
        "vs median": [
            formats.ratio(_over(row.tokens_per_s, board.median_tokens_per_s)) for row in board.rows
        ],
        "vs baseline": [
            formats.ratio(_over(row.tokens_per_s, board.baseline_tokens_per_s))
            for row in board.rows
        ],
        "trial": [str(row.trial_number) for row in board.rows],
        "configuration": [row.label for row in board.rows],
    }
    shown = {name: cells for name, cells in table.items() if set(cells) != {formats.UNKNOWN}}
    if sparks.has_room(min_width=_WIDTH_WITH_BARS):
        best = max(row.tokens_per_s for row in board.rows)
        shown[_BARS] = [sparks.bar(row.tokens_per_s / best) for row in board.rows]
        order = [name for name in shown if name != _BARS]
        order.insert(order.index("±") + 1, _BARS)
        shown = {name: shown[name] for name in order}
    rows = list(zip(*shown.values(), strict=True))[:top]
    right = [place for place, name in enumerate(shown) if name not in (_BARS, "configuration")]
    print_table(list(shown), rows, right=right)


def footnotes(board: Leaderboard, top: int | None = None) -> list[str]:
    """Sentences under the table: what is left out, and what equal positions mean."""
    notes = []
    if board.study.launcher == "simulated":
        notes.append("simulated: a cost model gave these numbers, no machine did")
    if board.scores:
        study = board.study
        notes.append(f"ranked by {study.objective_metric} ({study.objective_direction})")
    if board.unscored:
        notes.append(f"ranked by tokens/s: {board.unscored}")
    if top is not None and len(board.rows) > top:
        hidden = formats.plural(len(board.rows) - top, "more configuration")
        notes.append(f"{hidden}: --top N or --all")
    if lost := board.without_a_number:
        notes.append(f"{formats.plural(len(lost), 'trial')} gave no number: --all shows why")
    if len({row.position for row in board.rows}) < len(board.rows):
        notes.append("= the measurements cannot tell these apart")
    return notes


def against_baseline(board: Leaderboard) -> str:
    """A clause on the best configuration and the baseline; empty where the study has none."""
    if not board.rows or not (ours := [r for r in board.trials if r.trial.purpose == "baseline"]):
        return ""
    name = board.study.section("search").get("baseline_name", _BASELINE)
    speedup = board.records(1)[0]["speedup_vs_baseline"]
    if speedup is not None:
        return f"{formats.ratio(speedup)} over {name}"
    failure = ours[-1].failure
    why = f" ({failure.kind}: {' '.join(failure.message.split())})" if failure else ""
    return f"{name} gave no number{why}"


def _over(value: float, reference: float | None) -> float | None:
    return value / reference if reference else None


def _spread(row: "LeaderboardRow") -> str:
    half = (row.tokens_per_s_high - row.tokens_per_s_low) / 2
    return f"{half / row.tokens_per_s * 100:.1f} %"
