"""Compare searchers on problems whose best configuration is known.

    python -m benchmarks.search tables [--table FILE.csv] [--calibrate-table OTHER.csv]
    python -m benchmarks.search emulated
    python -m benchmarks.search frontier
    python -m benchmarks.search warm-start
    python -m benchmarks.search overhead
    python -m benchmarks.search live

Prints medians over problems and seeds per searcher; with --json the last line is one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.search.emulated import QUALITIES, emulated_problem
from benchmarks.search.frontier import frontier_figures
from benchmarks.search.overhead import ask_tell_ms
from benchmarks.search.problem import Problem, SearcherFactory, Trace, run, summarise
from benchmarks.search.tables import MIN_ROWS, table_problems
from benchmarks.search.warm import warm_start_figures
from tuner.errors import ConfigError, TunerError
from tuner.ports import Candidate, Searcher
from tuner.registry import load, names

DEFAULT_SEARCHERS = "cbo,prior,cbo-plain,optuna,random"
TABLE = Path("reference/measured/nanotron_h100.csv")
GENERAL = ("cbo-plain", "optuna", "random")
"""Tuners without a cost model, of which the best is the yardstick."""


def factory(name: str) -> SearcherFactory:
    """Searchers by their registered name."""
    searcher_class = load("searchers", name)

    def make(candidates: Sequence[Candidate], seed: int) -> Searcher:
        searcher: Searcher = searcher_class(candidates, seed=seed)
        return searcher

    return make


def find_table() -> Path | None:
    """The reference table in a `shared` folder beside the repository, if there is one."""
    here = Path(__file__).resolve().parents[2]
    found = here.parent / "shared" / TABLE
    return found if found.exists() else None


def compare(
    problems: Sequence[tuple[Problem, Sequence[int]]], searchers: Sequence[str], num_trials: int
) -> dict[str, Any]:
    """Run every searcher on every problem and seed; figures by searcher."""
    figures: dict[str, Any] = {}
    for name in searchers:
        start = time.perf_counter()
        by_problem: dict[str, list[Trace]] = {}
        for problem, seeds in problems:
            traces = [run(problem, factory(name), seed, num_trials) for seed in seeds]
            by_problem.setdefault(problem.name, []).extend(traces)
        every = [trace for traces in by_problem.values() for trace in traces]
        figures[name] = summarise(every)
        trials = sum(len(trace.regret) for trace in every)
        figures[name]["ms_per_trial"] = round(1e3 * (time.perf_counter() - start) / trials, 1)
        _print_row(name, figures[name])
        if len(by_problem) <= 40:
            figures[name]["by_problem"] = {key: summarise(t) for key, t in by_problem.items()}
    return figures


def _print_row(name: str, figures: dict[str, Any]) -> None:
    def shown(key: str) -> str:
        value = figures[key]
        return "-" if value is None else f"{value:g}"

    trials = "  ".join(
        f"{percent} %: {shown(f'trials_to_{percent}_percent'):>5}"
        f" ({shown(f'trials_to_{percent}_percent_q1')} to"
        f" {shown(f'trials_to_{percent}_percent_q3')})"
        for percent in (3, 1)
    )
    print(
        f"{name:12s} {trials}  failed in first 10: {shown('failed_in_first_10')}"
        f" (mean {shown('failed_in_first_10_mean')})"
        f"  regret at 10 / 20: {shown('regret_at_10')} / {shown('regret_at_20')}",
        flush=True,
    )


def run_tables(options: argparse.Namespace, searchers: Sequence[str]) -> dict[str, Any]:
    """Figures on a table: its rows that no flag marks, and all of them."""
    path = options.table or find_table()
    if path is None:
        raise TunerError("no table to run on", hint="name one with --table FILE.csv")
    for file in (path, options.calibrate_table):
        if file is not None and not file.is_file():
            raise ConfigError(f"there is no table at {file}")
    figures: dict[str, Any] = {}
    for subset, is_clean in (("clean", True), ("all", False)):
        problems = table_problems(path, options.calibrate_table, is_clean=is_clean)
        print(f"{path.name}, {subset} rows: {len(problems)} groups, {options.seeds} seeds")
        if not problems:
            continue
        seeds = range(options.seeds)
        figures[subset] = compare([(p, seeds) for p in problems], searchers, options.trials)
        figures[subset]["speedup_over_best_general_tuner"] = _speedup(figures[subset])
        figures[subset]["num_groups"] = len(problems)
    if not figures:
        raise ConfigError(
            f"{path.name} has no group of {MIN_ROWS} configurations of which one ran",
            hint="a group is one model, device, number of devices, sequence length and batch",
        )
    return {**figures.get("clean", figures["all"]), "all_rows": figures["all"]}


def _speedup(figures: dict[str, Any]) -> dict[str, float | None]:
    """How many times fewer trials `cbo` needs than the best general tuner; none if that is open."""
    speedups: dict[str, float | None] = {}
    for percent in (3, 1):
        key = f"trials_to_{percent}_percent"
        general = [figures[n][key] for n in GENERAL if n in figures and figures[n][key]]
        ours = figures.get("cbo", {}).get(key)
        speedups[key] = round(min(general) / ours, 1) if general and ours else None
    return speedups


def run_emulated(options: argparse.Namespace, searchers: Sequence[str]) -> dict[str, Any]:
    """Figures on the emulated machines, by quality of the prior."""
    figures: dict[str, Any] = {}
    blind = [name for name in searchers if name in GENERAL]
    for quality in QUALITIES:
        print(f"emulated, 22B on 64 devices, {quality} prior: {options.seeds} worlds")
        problems = [(emulated_problem(quality, s), [s]) for s in range(options.seeds)]
        # Searchers that see no prediction do the same whatever the prior.
        names = [name for name in searchers if name not in blind or not figures]
        figures[quality] = compare(problems, names, options.trials)
        first = figures[QUALITIES[0]]
        figures[quality].update({name: first[name] for name in blind})
    return figures


def run_overhead(searchers: Sequence[str]) -> dict[str, float]:
    """Milliseconds of one tell and ask of the default searcher, or of the first one named."""
    name = "cbo" if "cbo" in searchers else searchers[0]
    figures = {f"ask_tell_ms_{n}": ask_tell_ms(factory(name), n) for n in (100, 1000)}
    print(f"ask and tell of {name}, 12,687 candidates, ms: {figures}")
    return figures


def run_live(options: argparse.Namespace, searchers: Sequence[str]) -> dict[str, Any]:
    """Sweep a small model on this machine's cores, then search it live."""
    from benchmarks.search.live import live_figures

    return live_figures(options, {name: factory(name) for name in searchers})


def run_frontier(options: argparse.Namespace, searchers: Sequence[str]) -> dict[str, Any]:
    """The Frontier study's space on a simulated Frontier."""
    makers = {name: factory(name) for name in searchers}
    return frontier_figures(makers, range(options.seeds), options.trials)


def run_warm_start(options: argparse.Namespace) -> dict[str, Any]:
    """Trials with and without the results of an earlier study."""
    table = options.table or find_table()
    return warm_start_figures(factory("cbo"), range(options.seeds), options.trials, table)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    modes = ("tables", "emulated", "live", "frontier", "warm-start", "overhead")
    parser.add_argument("mode", choices=modes)
    parser.add_argument("--table", type=Path, help="CSV with the columns of the reference tables")
    parser.add_argument("--calibrate-table", type=Path, help="fit the prior to this table instead")
    parser.add_argument("--seeds", type=_from_one, default=20, metavar="N")
    parser.add_argument(
        "--trials", type=_from_one, default=60, metavar="N", help="budget of one run"
    )
    parser.add_argument(
        "--searchers", default=DEFAULT_SEARCHERS, help=", ".join(names("searchers"))
    )
    parser.add_argument("--sweep", type=Path, help="live: file of the sweep, made when absent")
    parser.add_argument("--quick", action="store_true", help="2 seeds and 20 trials")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.trials = 2, 20
    return options


def _from_one(text: str) -> int:
    """A whole number from 1 on, as argparse takes it."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _searchers(text: str) -> list[str]:
    """Registered names, each once, in the order given.

    Raises:
        ConfigError: a name is unknown, or there is none.
    """
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not wanted:
        raise ConfigError("--searchers names none", hint=f"known: {', '.join(names('searchers'))}")
    for name in wanted:
        load("searchers", name)
    return wanted


def main(arguments: Sequence[str]) -> int:
    """Run one mode."""
    options = parse(arguments)
    modes: dict[str, Callable[[Sequence[str]], dict[str, Any]]] = {
        "tables": lambda searchers: run_tables(options, searchers),
        "emulated": lambda searchers: run_emulated(options, searchers),
        "live": lambda searchers: run_live(options, searchers),
        "frontier": lambda searchers: run_frontier(options, searchers),
        "warm-start": lambda _: run_warm_start(options),
        "overhead": lambda _: {},
    }
    try:
        searchers = _searchers(options.searchers)
        figures = modes[options.mode](searchers)
        if options.mode not in ("live", "frontier"):
            figures.update(run_overhead(searchers))
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps({"benchmark": "search", "mode": options.mode, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
