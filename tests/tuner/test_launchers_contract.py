"""The launcher contract, run over every launcher of the registry."""

import sys
from pathlib import Path

import pytest

from tuner import registry
from tuner.launchers.command import CommandLauncher
from tuner.launchers.local import LocalLauncher
from tuner.launchers.ray_launcher import RayLauncher
from tuner.launchers.simulated import SimulatedLauncher
from tuner.ports import Launcher
from tuner.testing.fake_trainer import ENTRY
from tuner.testing.launcher_contract import NUM_DEVICES, LauncherContract

PROGRAM = """
import json, os, sys, time
from pathlib import Path
job = json.loads(Path("job.json").read_text())
measure, fault = job["measure"], job["fault"]
report = Path("report.0.jsonl").open("a", buffering=1)
total = measure["warmup_steps"] + measure["measured_steps"]
for step in range(total):
    if fault and step == fault["step"]:
        kinds = {"oom": "oom", "crash": "crash", "diverge": "diverged", "sigkill": "crash"}
        answer = {"kind": "failure", "failure": kinds[fault["kind"]], "phase": fault["phase"],
                  "rank": fault["rank"], "message": "told to"}
        print(json.dumps(answer), file=report)
        sys.exit(1)
    time.sleep(0.002)
    line = {"kind": "step", "step": step, "is_warmup": step < measure["warmup_steps"],
            "step_time_s": 0.002, "loss": None, "tokens": 128}
    print(json.dumps(line), file=report)
Path("result.json").write_text(json.dumps({"step_time_s": 0.002}))
"""


class TestLocal(LauncherContract):
    def make(self, run_folder: Path) -> Launcher:
        return LocalLauncher(num_devices=NUM_DEVICES, run_folder=run_folder, entry=ENTRY)


@pytest.mark.ray
class TestRay(LauncherContract):
    def make(self, run_folder: Path) -> Launcher:
        return RayLauncher(num_devices=NUM_DEVICES, run_folder=run_folder, entry=ENTRY)


class TestSimulated(LauncherContract):
    def make(self, run_folder: Path) -> Launcher:
        return SimulatedLauncher(num_devices=NUM_DEVICES, run_folder=run_folder, time_scale=1.0)


class TestSimulatedAtOnce(LauncherContract):
    takes_time = False

    def make(self, run_folder: Path) -> Launcher:
        return SimulatedLauncher(num_devices=NUM_DEVICES, run_folder=run_folder)


class TestCommand(LauncherContract):
    def make(self, run_folder: Path) -> Launcher:
        program = PROGRAM.replace("{", "{{").replace("}", "}}")
        return CommandLauncher(
            num_devices=NUM_DEVICES,
            run_folder=run_folder,
            command=[sys.executable, "-c", program],
        )


def test_every_launcher_of_the_registry_is_covered() -> None:
    covered = {LocalLauncher, RayLauncher, SimulatedLauncher, CommandLauncher}
    loaded = {registry.load("launchers", name) for name in registry.LAUNCHERS}
    assert loaded == covered
    assert {launcher.name for launcher in covered} == set(registry.LAUNCHERS)
