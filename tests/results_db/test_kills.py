"""kill -9 at every statement and commit of a trial's life, and of many writers at random."""

import os
import random
import signal
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event

import results_db
from results_db.checks import check
from results_db.errors import IllegalTransition
from results_db.records import FailureRow, Lease, RankRow, StudyStatus, TrialRecord, TrialStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = Lease(host="node0", pid=7, process_started_at=START, heartbeat_at=START)
RANK = RankRow(
    rank=0, hostname="h", device="cpu", coordinates={"dp": 0}, stages=(0,), layers=(0,),
    num_parameters=1, peak_memory_bytes=1, state_memory_bytes=1, breakdown_s={"forward": 0.1},
    collectives={"all_reduce": {"calls": 1.0}}, timeline=(("F", 0, 0, 0.0, 1.0),),
)  # fmt: skip


def in_child(work):
    """Run `work` in a forked process that never returns here; gives its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons, when threads exist
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return child


def die_at(store, count):
    """Kill this process when its `count`-th statement or commit begins or has ended."""
    left = [count]

    def tick(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = store.database.engine
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, tick)


def life(store, study, outcome):
    """The calls of a trial's life, each with the status that it leaves."""
    record = TrialRecord(study_id=study.id, config_key="k", knobs={"dp": 2})
    trial_id = []

    def add():
        trial_id.append(store.add_trial(record).id)

    return [
        (add, "queued"),
        (lambda: store.claim_trial(trial_id[0], LEASE, "f"), "running"),
        (lambda: store.heartbeat(trial_id[0], START, LEASE), "running"),
        (lambda: store.requeue_trial(trial_id[0], LEASE), "queued"),
        (lambda: store.claim_trial(trial_id[0], LEASE, "f"), "running"),
        (lambda: store.finish_trial(trial_id[0], outcome, lease=LEASE), "completed"),
        (lambda: store.set_study_status(study.id, StudyStatus.COMPLETED), "completed"),
    ]


def run_until_killed(url, study, outcome, count):
    """The calls that were acknowledged before the kill; all of them when it never came."""
    reader, writer = os.pipe()

    def work():
        with results_db.open(url) as store:
            die_at(store, count)
            for call, _ in life(store, study, outcome):
                call()
                os.write(writer, b".")

    child = in_child(work)
    os.close(writer)
    acknowledged = 0
    while data := os.read(reader, 100):
        acknowledged += len(data)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return acknowledged, os.WIFSIGNALED(status)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_write_is_all_or_nothing(url, make_study, make_outcome, stride):
    """Default: every ninth point; slow: all of them."""
    results_db.open(url).close()
    failure = FailureRow(kind="comm", phase="report", message="late")
    outcome = replace(make_outcome(), ranks=(RANK,), other_failures=(failure,))
    statuses = [None] + [status for _, status in life(None, make_study(), outcome)]
    was_killed, count, kills = True, 1, 0
    while was_killed:
        with results_db.open(url) as store:
            study = store.create_study(make_study(f"killed at {count}"))
        acknowledged, was_killed = run_until_killed(url, study, outcome, count)
        with results_db.open(url) as store:
            assert check(store) == []
            found = store.trials(study.id)
            status = found[0].trial.status if found else None
            possible = statuses[acknowledged : acknowledged + 2]
            assert status in possible, f"{acknowledged} calls were acknowledged"
            if found:
                has_all = status == "completed"
                trial_id = found[0].trial.id
                assert (found[0].measurement is not None) == has_all
                assert len(store.steps(trial_id)) == (5 if has_all else 0)
                assert store.ranks(trial_id) == ([RANK] if has_all else [])
                assert len(store.failures(trial_id)) == int(has_all)
        kills += was_killed
        count += stride
    least = 50 if "postgresql" not in url else 36  # few rows of all tables go in one statement
    assert kills * stride >= least, "the life has at least so many points to die at"


def write_trials(url, study_id, worker, log, seconds, outcome):
    """Add trials and finish whichever is queued; every committed call leaves a line in `log`."""
    lease = replace(LEASE, pid=os.getpid())
    with results_db.open(url) as store, log.open("a", buffering=1) as acknowledged:
        give_up_at = time.monotonic() + seconds
        number = 0
        while time.monotonic() < give_up_at:
            key = f"{worker}-{os.getpid()}-{number}"
            record = TrialRecord(study_id=study_id, config_key=key, knobs={"dp": number + 1})
            # one configuration is shared by all, so that its median is contended
            if number % 3 == 0:
                shared = f"{worker}{os.getpid()}{number}"
                record = replace(
                    record, config_key="shared", knobs={"pp": 2}, repeat=int(shared) % 2**60
                )
            added = store.add_trial(record)
            acknowledged.write(f"added {added.number}\n")
            for queued in store.trials(study_id, [TrialStatus.QUEUED])[:2]:
                try:
                    store.claim_trial(queued.trial.id, lease, "f")
                except IllegalTransition:
                    continue  # another was faster
                store.finish_trial(queued.trial.id, outcome, lease=lease)
                acknowledged.write(f"finished {queued.trial.number}\n")
            number += 1


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [(4, 2.0), pytest.param(8, 60.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
)
def test_many_writers_with_kills_at_random(
    url, make_study, make_outcome, tmp_path: Path, workers, seconds
):
    with results_db.open(url) as store:
        study = store.create_study(make_study())
    outcome = make_outcome()
    logs = [tmp_path / f"{worker}.log" for worker in range(workers)]
    give_up_at = time.monotonic() + seconds

    def start(worker):
        left = max(give_up_at - time.monotonic(), 0.0)
        return in_child(lambda: write_trials(url, study.id, worker, logs[worker], left, outcome))

    children = [start(worker) for worker in range(workers)]
    generator, kills = random.Random(7), 0
    while time.monotonic() < give_up_at - 0.5:
        time.sleep(generator.uniform(0.1, 0.4))
        victim = generator.randrange(workers)
        os.kill(children[victim], signal.SIGKILL)
        os.waitpid(children[victim], 0)
        kills += 1
        children[victim] = start(victim)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.WEXITSTATUS(status) == 0

    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
    added = {int(line.split()[1]) for line in lines if line.startswith("added")}
    finished = {int(line.split()[1]) for line in lines if line.startswith("finished")}
    num_finished_lines = sum(line.startswith("finished") for line in lines)
    assert num_finished_lines == len(finished), "no trial was finished twice"
    with results_db.open(url) as store:
        assert check(store) == []
        found = {item.trial.number: item.trial.status for item in store.trials(study.id)}
    completed = {number for number, status in found.items() if status == "completed"}
    assert kills > 0
    assert added
    assert added <= found.keys(), "no acknowledged trial is lost"
    assert finished <= completed, "no acknowledged result is lost"
    # a killed writer may have committed one call that it could not acknowledge
    assert len(found) <= len(added) + kills
    assert len(completed) <= len(finished) + kills
