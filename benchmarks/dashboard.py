"""How quick the dashboard and the report are: pages over 100,000 trials, a report of 3,000.

The database is made anew: one study with nine tenths of the trials, among them failures, and
ordinary studies beside it. Pages are asked over HTTP from a server in a process of its own, as
`tuner serve` starts it; a figure is the median of its repeats, and `first_page_ms` and `filter_ms`
are the slowest of the pages that a person meets first and of the filters.
"""

import http.client
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import results_db
from benchmarks import harness
from benchmarks.database import BATCH, batch, make_study
from results_db.maintenance import analyze
from results_db.records import FailureRow, TrialOutcome, TrialRecord, TrialStatus
from results_db.store import Store

REPEATS = 7
FIRST_PAGES = {
    "studies": "/",
    "study": "/studies/1",
    "trials": "/studies/1/trials",
    "trials_by_speed": "/studies/1/trials?sort=-tokens_per_s",
}
FILTERS = {
    "knobs": "tp=2&pp=4",
    "knobs_by_speed": "tp=2&pp=4&sort=-tokens_per_s",
    "words": "q=tp2+pp4&sort=-tokens_per_s",
    "failure_text": "q=out+of+memory",
    "status": "status=infeasible&sort=wall_s",
    "speed_and_memory": "min_speed=150000&max_memory=20&sort=peak_memory_bytes",
    "nothing_found": "q=nowhere",
}
_OOM = TrialOutcome(
    status=TrialStatus.INFEASIBLE,
    failure=FailureRow(kind="oom", phase="forward", rank=1, stage=0, step=0,
                       message="out of memory: 2.00 GiB wanted, 1.20 GiB free",
                       traceback="Traceback (most recent call last): ..."),
)  # fmt: skip


def fill(store: Store, num_trials: int) -> None:
    """Nine tenths of the trials in one study, the others in studies of a thousand."""
    generator = random.Random(0)
    sizes = [num_trials - num_trials // 10]
    sizes += [1000] * (num_trials // 10 // 1000)
    for number, size in enumerate(sizes):
        study_id = make_study(store, number)
        for first in range(0, size, BATCH):
            pairs = batch(study_id, first, min(BATCH, size - first), generator)
            store.add_results(study_id, [_spoiled(first + n, pair) for n, pair in enumerate(pairs)])
    analyze(store)


def _spoiled(
    number: int, pair: tuple[TrialRecord, TrialOutcome]
) -> tuple[TrialRecord, TrialOutcome]:
    """Every tenth trial ran out of memory."""
    return (pair[0], _OOM) if number % 10 == 3 else pair


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """The address of a dashboard in a process of its own."""
    command = [sys.executable, "-m", "tuner.cli", "serve", "--store", url, "--port", "0", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            sys.exit("the dashboard did not start")
        try:
            yield address
        finally:
            process.terminate()


def timed_ms(address: str, path: str, headers: dict[str, str] | None = None) -> float:
    """Median milliseconds from the question to the whole answer."""
    host = urlsplit(address).netloc
    seconds = []
    for _ in range(REPEATS):
        connection = http.client.HTTPConnection(host, timeout=60)
        start = time.perf_counter()
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        answer.read()
        seconds.append(time.perf_counter() - start)
        connection.close()
        if answer.status != 200:
            sys.exit(f"{path} was answered with {answer.status}")
    return 1e3 * statistics.median(seconds)


def cold_ms(address: str, path: str) -> float:
    """Milliseconds of the very first question to a new server."""
    host = urlsplit(address).netloc
    start = time.perf_counter()
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", path)
    connection.getresponse().read()
    return 1e3 * (time.perf_counter() - start)


def pages(url: str) -> dict[str, float]:
    """Milliseconds of the pages."""
    figures: dict[str, float] = {}
    with dashboard(url) as address:
        figures["first_page_cold_ms"] = cold_ms(address, "/studies/1/trials")
        for name, path in FIRST_PAGES.items():
            figures[f"page_{name}_ms"] = timed_ms(address, path)
        for name, query in FILTERS.items():
            path = f"/studies/1/trials?{query}"
            # what htmx asks when a filter is changed
            figures[f"filter_{name}_ms"] = timed_ms(address, path, {"HX-Request": "true"})
        figures["trial_ms"] = timed_ms(address, "/trials/5")
        figures["compare_ms"] = timed_ms(address, "/compare?id=5&id=6&id=7&id=8")
        figures["live_unchanged_ms"] = timed_ms(address, "/studies/1", {"HX-Request": "true"})
    first = [value for name, value in figures.items() if name.startswith(("page_", "first_"))]
    filters = [value for name, value in figures.items() if name.startswith("filter_")]
    return {"first_page_ms": max(first), "filter_ms": max(filters), **figures}


def report(folder: Path, num_trials: int) -> dict[str, float]:
    """Seconds and size of the report of a simulated study, as a user makes both."""
    url = folder / "simulated.db"
    study = Path(__file__).parent.parent / "examples" / "gpt3-175b-simulated.toml"
    _tuner("run", str(study), "--searcher", "random", "--max-trials", str(num_trials),
           "--name", "simulated", "--store", str(url))  # fmt: skip
    target = folder / "report.html"
    start = time.perf_counter()
    _tuner("report", "simulated", "--store", str(url), "-o", str(target))
    return {
        "report_3000_trials_s": time.perf_counter() - start,
        "report_mb": target.stat().st_size / 1e6,
        "report_trials": num_trials,
    }


def _tuner(*arguments: str) -> None:
    command = [sys.executable, "-m", "tuner.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tuner {' '.join(arguments)} failed: {done.stderr}")


def main() -> None:
    """Measure and print."""
    parser = harness.parser(__doc__)
    parser.add_argument("--trials", type=int, help="default 100,000; --quick 10,000")
    parser.add_argument("--no-report", action="store_true", help="pages only")
    args = parser.parse_args()
    num_trials = args.trials or (10_000 if args.quick else 100_000)
    figures: dict[str, Any] = {"num_trials": num_trials}
    with tempfile.TemporaryDirectory(prefix="tuner_dashboard_") as name:
        folder = Path(name)
        url = str(folder / "results.db")
        with results_db.open(url) as store:
            fill(store, num_trials)
        figures |= pages(url)
        if not args.no_report:
            figures |= report(folder, 300 if args.quick else 3000)
    harness.finish(args, figures)


if __name__ == "__main__":
    main()
