"""The life of trials against a dict, on both databases, whatever order events come in."""

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import results_db
from results_db.checks import check
from results_db.errors import AlreadyExists, IllegalTransition, LeaseLost
from results_db.intervals import Interval, combine, throughput_interval
from results_db.queries import leaderboard
from results_db.records import FailureRow, Lease, StepRow, TrialOutcome, TrialRecord, TrialStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
OWNERS = [
    Lease(host=f"node{n}", pid=n, process_started_at=START, heartbeat_at=START) for n in range(2)
]
KEYS = [(f"k{n}", {"dp": n + 1}) for n in range(3)]
_names = itertools.count()


class TrialLife(RuleBasedStateMachine):
    """Trials of one study; `self.model` maps a number to what the store must say of it."""

    url = ""
    make_study = staticmethod(lambda name: None)
    make_outcome = staticmethod(lambda speed: None)

    def __init__(self):
        super().__init__()
        self.store = results_db.open(self.url)
        self.study = self.store.create_study(self.make_study(f"life{next(_names)}"))
        self.model = {}
        self.ids = {}

    def pick(self, choice):
        return (choice % len(self.model)) + 1 if self.model else None

    @rule(key=st.integers(0, 2), repeat=st.integers(0, 2), attempt=st.integers(1, 2))
    def add(self, key, repeat, attempt):
        name, knobs = KEYS[key]
        record = TrialRecord(
            study_id=self.study.id, config_key=name, knobs=knobs, repeat=repeat, attempt=attempt
        )
        place = (name, repeat, attempt)
        if any(trial["place"] == place for trial in self.model.values()):
            with pytest.raises(AlreadyExists):
                self.store.add_trial(record)
            return
        added = self.store.add_trial(record)
        assert added.number == len(self.model) + 1
        self.ids[added.number] = added.id
        self.model[added.number] = {"place": place, "status": "queued", "owner": None}

    @rule(choice=st.integers(0, 20), owner=st.integers(0, 1))
    def claim(self, choice, owner):
        number = self.pick(choice)
        if number is None:
            return
        trial = self.model[number]
        if trial["status"] != "queued":
            with pytest.raises(IllegalTransition):
                self.store.claim_trial(self.ids[number], OWNERS[owner], "folder")
            return
        self.store.claim_trial(self.ids[number], OWNERS[owner], "folder")
        trial |= {"status": "running", "owner": owner, "beat": START}

    @rule(choice=st.integers(0, 20), owner=st.integers(0, 1), seconds=st.integers(1, 100))
    def beat(self, choice, owner, seconds):
        number = self.pick(choice)
        if number is None:
            return
        when = START + timedelta(seconds=seconds)
        trial = self.model[number]
        mine = trial["status"] == "running" and trial["owner"] == owner
        assert self.store.heartbeat(self.ids[number], when, OWNERS[owner]) == int(mine)
        if mine:
            trial["beat"] = when

    @rule(choice=st.integers(0, 20), owner=st.integers(0, 1))
    def requeue(self, choice, owner):
        number = self.pick(choice)
        if number is None:
            return
        trial = self.model[number]
        if trial["status"] == "running" and trial["owner"] == owner:
            self.store.requeue_trial(self.ids[number], OWNERS[owner])
            trial |= {"status": "queued", "owner": None}
            return
        lost = LeaseLost if trial["status"] == "running" else IllegalTransition
        with pytest.raises(lost):
            self.store.requeue_trial(self.ids[number], OWNERS[owner])

    @rule(
        choice=st.integers(0, 20),
        owner=st.integers(0, 1),
        status=st.sampled_from(["completed", "completed", "infeasible", "failed", "cancelled"]),
        speed=st.floats(1.0, 1e6),
    )
    def finish(self, choice, owner, status, speed):
        number = self.pick(choice)
        if number is None:
            return
        trial = self.model[number]
        outcome = self.outcome(status, speed)
        may = trial["status"] == "running" and trial["owner"] == owner
        if may:
            self.store.finish_trial(self.ids[number], outcome, lease=OWNERS[owner])
            trial |= {"status": status, "speed": outcome.measurement and speed}
            return
        with pytest.raises(IllegalTransition):
            self.store.finish_trial(self.ids[number], outcome, lease=OWNERS[owner])

    def outcome(self, status, speed):
        if status == "completed":
            return self.make_outcome(speed)
        reason = FailureRow(kind="crash", phase="forward", message="no")
        step = StepRow(step=0, is_warmup=True, step_time_s=0.5, loss=math.inf, tokens=1)
        return TrialOutcome(status=TrialStatus(status), failure=reason, steps=(step,))

    @rule()
    def reopen(self):
        self.store.close()
        self.store = results_db.open(self.url)

    @invariant()
    def the_store_says_what_the_dict_says(self):
        found = {item.trial.number: item for item in self.store.trials(self.study.id)}
        assert found.keys() == self.model.keys()
        for number, expected in self.model.items():
            item = found[number]
            trial = item.trial
            assert trial.status == expected["status"]
            assert (trial.config_key, trial.repeat, trial.attempt) == expected["place"]
            if expected["status"] == "running":
                lease = OWNERS[expected["owner"]]
                assert trial.lease == replace(lease, heartbeat_at=expected["beat"])
            if expected["status"] == "queued":
                assert trial.lease is None
                assert trial.folder is None
            assert (item.measurement is not None) == (expected["status"] == "completed")
            assert trial.status.is_terminal == (trial.finished_at is not None)

    @invariant()
    def the_leaderboard_is_that_of_the_dict(self):
        speeds = {}
        for trial in self.model.values():
            if trial["status"] == "completed":
                speeds.setdefault(trial["place"][0], []).append(trial["speed"])
        rows = leaderboard(self.store, self.study.id)
        assert {row.config_key: row.num_trials for row in rows} == {
            key: len(values) for key, values in speeds.items()
        }
        intervals = {key: combine([self.interval(v) for v in vs]) for key, vs in speeds.items()}
        for row in rows:
            assert row.tokens_per_s == pytest.approx(median(speeds[row.config_key]))
            mine = intervals[row.config_key]
            above = sum(other.low > mine.high for other in intervals.values())
            assert row.position == 1 + above

    def interval(self, speed):
        row = self.make_outcome(speed).measurement
        found = throughput_interval(row.tokens_per_step, row.step_time_s, row.step_time_iqr_s, 3)
        return Interval(speed, found.low * speed / found.median, found.high * speed / found.median)

    def teardown(self):
        assert check(self.store) == []
        self.store.close()


def test_any_order_of_events(url, make_study, make_outcome):
    results_db.open(url).close()

    class Machine(TrialLife):
        pass

    Machine.url = url
    Machine.make_study = staticmethod(make_study)
    Machine.make_outcome = staticmethod(make_outcome)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=5,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
