"""The faults of `tuner.testing.study_faults`, done to real studies of short trials.

Every study has four trials of two fake ranks on the `local` launcher. It is disturbed after its
second one; where it ends by that it is resumed. Then it must hold every point once, completed, its
database must keep all laws, and no process of it may live.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import away
from benchmarks.fault_line import Line
from results_db import engine
from results_db.checks import check
from results_db.errors import ResultsDbError
from results_db.records import StudyStatus, TrialStatus
from results_db.testing.postgres import PostgresUnavailable, private_postgres
from tuner.config import study_config_from
from tuner.controller import StudyOutcome, run_study
from tuner.errors import TunerError
from tuner.ports import StudyProgress, TrialEvent
from tuner.study import Study, create_study, open_study
from tuner.testing.fake_trainer import ENTRY
from tuner.testing.processes import processes_in, wait_until
from tuner.testing.study_faults import AWAY_S, CONTROLLER, DATABASE, WRITES, StudyFault, write_fault

Act = Callable[[], None]
NUM_TRIALS = 4
STRIKE_AFTER = 2
"""Completed trials before the fault."""
_STRUCK = "struck.time"
_SHORT_DEADLINE_S = 1.0


@dataclass
class Watch:
    """Sees a study run; does something at a moment, and notes when the next trial starts."""

    strike: Callable[[], None] = lambda: None
    at: tuple[str, int] = ("completed", STRIKE_AFTER)
    """The event, and the number of its trial."""
    struck_s: float | None = None
    starts_s: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """Strike once, when it is time."""
        del progress
        if event.event == "started":
            self.starts_s.append(time.time())
        if self.struck_s is None and (event.event, event.number) == self.at:
            self.struck_s = time.time()
            self.strike()

    def on_message(self, text: str) -> None:
        """Keep what the user is told."""
        self.messages.append(text)


class _Warnings(logging.Handler):
    """Keeps what the database says while it is away."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def make_study(folder: Path, url: str | None = None, measured_steps: int = 3) -> Study:
    """A study of `NUM_TRIALS` trials in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = {"name": "two", "device_kind": "cpu", "num_nodes": 1, "devices_per_node": 2,
               "memory_gib": 4.0, "peak_tflops": {"fp32": 0.1}}  # fmt: skip
    config = study_config_from(
        {
            "name": "disturbed",
            "model": {"source": "gpt2-tiny"},
            "training": {"sequence_length": 32, "global_batch_size": 16},
            "cluster": cluster,
            "search": {
                "searcher": "random", "max_trials": NUM_TRIALS, "confirm_top": 0,
                "early_stop": False, "check_drift": False,
            },
            "measure": {"warmup_steps": 1, "measured_steps": measured_steps},
            "launcher": {"name": "local", "options": {"entry": ENTRY}},
            "store": {"url": url or f"sqlite:///{(folder / 'results.db').as_posix()}"},
        }
    )  # fmt: skip
    return create_study(config)


def resume(study: Study) -> tuple[Watch, StudyOutcome]:
    """Go on with a study in this process, as `tuner resume` does."""
    again = open_study(study.config.store.url, study.name)
    watch = Watch()
    try:
        return watch, run_study(again, watch)
    finally:
        again.store.close()


def faults_of_end(study: Study, folder: Path) -> list[str]:
    """What is wrong with a study that ended; nothing if it holds every point once."""
    again = open_study(study.config.store.url, study.name)
    try:
        rows = again.store.trials(again.id)
        wrong = [problem.message for problem in check(again.store)]
        if again.store.get_study(again.id).status is not StudyStatus.COMPLETED:
            wrong.append("the study is not completed")
        statuses = Counter(row.trial.status for row in rows)
        if statuses != {TrialStatus.COMPLETED: NUM_TRIALS}:
            wrong.append(f"its trials are {dict(statuses)}")
        if len({row.trial.config_key for row in rows}) != NUM_TRIALS:
            wrong.append("a point ran twice")
        if len(again.store.untried(again.id)) != len(again.candidates) - NUM_TRIALS:
            wrong.append("untried points are missing")
    finally:
        again.store.close()
    wait_until(lambda: not left_in(folder), 5.0)
    return wrong


def left_in(folder: Path) -> list[str]:
    """Processes of a study that still live; this one may have its folder as its own."""
    pids = {process.pid for process in processes_in(folder)} - {os.getpid()}
    return [f"process {pid}" for pid in sorted(pids)]


def line_of(
    fault: StudyFault, folder: Path, study: Study, message: str, struck_s: float, watch: Watch
) -> Line:
    """The line of a study that has ended: by itself, or resumed."""
    wrong = faults_of_end(study, folder)
    study.store.close()
    later = [start_s for start_s in watch.starts_s if start_s >= struck_s]
    next_s = (later[0] if later else time.time()) - struck_s
    return Line(
        fault.name, "study", fault.course, "; ".join(wrong) or message,
        not wrong and fault.message in message, next_s,
        left_in(folder),
        stored=f"{fault.course}; every point once",
    )  # fmt: skip


def disturbed(
    fault: StudyFault, folder: Path, study: Study, act: Act, undo: Act = lambda: None
) -> Line:
    """Run a study that is struck in this process, and resume it if it ended by that."""
    watch = Watch(act)
    warnings = _Warnings()
    logging.getLogger("results_db.engine").addHandler(warnings)
    message = ""
    try:
        outcome = run_study(study, watch)
    except (ResultsDbError, TunerError) as error:
        message, course = error.message, "stops, resumes"
    else:
        stopped = outcome.status is StudyStatus.INTERRUPTED
        course = "stops, resumes" if stopped else "goes on"
        message = outcome.reason if stopped else "; ".join(warnings.texts[:1])
    finally:
        logging.getLogger("results_db.engine").removeHandler(warnings)
    if course != fault.course:
        message = f"the study {course} instead: {message}"
    struck_s = watch.struck_s or time.time()
    if course != "goes on":
        undo()
        watch, _ = resume(study)
    return line_of(fault, folder, study, message, struck_s, watch)


def database_faults(root: Path, away_s: float) -> Iterator[Line]:
    """One line per fault of `DATABASE`; without a PostgreSQL server its line is left out."""
    locked, for_long, moved, read_only, full, gone = DATABASE
    for number, (fault, strike, deadline_s) in enumerate((
        (locked, away.lock(away_s), None),
        (for_long, away.lock(3 * _SHORT_DEADLINE_S), _SHORT_DEADLINE_S),
        (moved, away.move(away_s), None),
        (read_only, away.forbid_writes, None),
        (full, away.fill_disk, None),
    )):  # fmt: skip
        try:
            with _patience(deadline_s):
                yield _struck(fault, root / f"database{number}", strike)
        except away.CannotStrike as reason:
            print(f"left out: {fault.name}: {reason}")
    try:
        with private_postgres(durable=True) as server, chdir(_made(root / "server")):
            study = make_study(Path.cwd(), server.url())
            yield disturbed(gone, Path.cwd(), study, lambda: server.restart(away_s))
    except PostgresUnavailable as reason:
        print(f"left out: {gone.name}: {reason}")


def _struck(fault: StudyFault, folder: Path, strike: away.Strike) -> Line:
    with strike(folder) as change:
        study = make_study(folder)
        return disturbed(fault, folder, study, lambda: change.act(study), change.undo)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@contextmanager
def _patience(deadline_s: float | None) -> Iterator[None]:
    """With a shorter waiting time for locks, so that the measurement ends soon."""
    if deadline_s is None:
        yield
        return
    with (
        mock.patch.object(engine, "WRITE_DEADLINE_S", deadline_s),
        mock.patch.object(engine, "BUSY_TIMEOUT_S", deadline_s / 2),
    ):
        yield


def controller_faults(root: Path) -> Iterator[Line]:
    """One line per fault of `CONTROLLER`."""
    for write, call in WRITES:
        for when in ("before", "after"):
            fault = write_fault(write, when)  # type: ignore[arg-type]
            yield _killed(fault, root / f"{when}_{write}", _dies_at(write, call, when))
    running, stopped, second, jump = CONTROLLER[-4:]
    yield _killed(running, root / "running", _dies_in_a_step, measured_steps=300)

    stop = threading.Event()
    folder = root / "stopped"
    study = make_study(folder, measured_steps=300)
    watch = Watch(stop.set, at=("step", STRIKE_AFTER))
    outcome = run_study(study, watch, stop)
    again, _ = resume(study)
    yield line_of(stopped, folder, study, outcome.reason, watch.struck_s or 0.0, again)

    folder = root / "second"
    study = make_study(folder)
    refusals: list[str] = []
    watch = Watch(lambda: refusals.append(_run_elsewhere(study, folder)))
    run_study(study, watch)
    yield line_of(second, folder, study, "".join(refusals), watch.struck_s or 0.0, watch)

    yield _struck(jump, root / "jump", away.clock_set_back)


Death = Callable[[Study, Callable[[], None]], Watch]
"""Prepares a study so that the given function ends its process; gives its observer."""


def _dies_at(write: str, call: int, when: str) -> Death:
    def prepare(study: Study, die: Callable[[], None]) -> Watch:
        real, calls = getattr(study.store, write), [0]

        def dying(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == call and when == "before":
                die()
            result = real(*arguments, **options)
            if calls[0] == call:
                die()
            return result

        setattr(study.store, write, dying)
        return Watch()

    return prepare


def _dies_in_a_step(study: Study, die: Callable[[], None]) -> Watch:
    del study
    return Watch(die, at=("step", STRIKE_AFTER))


def _killed(fault: StudyFault, folder: Path, death: Death, measured_steps: int = 3) -> Line:
    """Run a study in a process that dies, then resume it here."""
    study = make_study(folder, measured_steps=measured_steps)
    study.store.close()

    def die() -> None:
        (folder / _STRUCK).write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        mine = open_study(study.config.store.url, study.name)
        run_study(mine, death(mine, die))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise SystemExit(f"{fault.name}: the controller was not killed")
    struck_s = float((folder / _STRUCK).read_text())
    watch, _ = resume(study)
    told = next((text for text in watch.messages if "had died" in text), "")
    return line_of(fault, folder, study, told, struck_s, watch)


def _run_elsewhere(study: Study, folder: Path) -> str:
    """What a controller in another process is told that runs the same study."""

    def work() -> None:
        again = open_study(study.config.store.url, study.name)
        try:
            run_study(again, Watch())
        except TunerError as error:
            (folder / "refusal.txt").write_text(error.message)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    path = folder / "refusal.txt"
    return path.read_text() if path.exists() else "it was not refused"


def study_faults(root: Path, *, is_quick: bool) -> Iterator[Line]:
    """One line per fault of whole studies."""
    yield from controller_faults(root)
    yield from database_faults(root, 2.0 if is_quick else AWAY_S)
    shutil.rmtree(root, ignore_errors=True)
