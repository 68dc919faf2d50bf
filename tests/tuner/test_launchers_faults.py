"""The fault matrix on the local launcher: what is stored, how soon, and that nothing is left."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.contract import FailureKind, Phase
from tuner.launchers.local import LocalLauncher
from tuner.testing import study_faults
from tuner.testing.fake_trainer import ENTRY, FakeBehaviour
from tuner.testing.fault_matrix import FAULTS, KILLS, Fault, names
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import long_job, wait_for, wait_for_steps
from tuner.testing.processes import descendants, find_victim, left_after, rank_processes

DOCS = Path(__file__).parents[2] / "docs" / "fault_matrix.md"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    made = LocalLauncher(
        num_devices=4,
        run_folder=tmp_path_factory.mktemp("runs"),
        entry=ENTRY,
        patience={"early_exit_s": 2.0, "teardown_s": 1.0, "settle_s": 0.5},
    )
    before = set(descendants())
    made.open()
    processes = set(descendants()) - before
    yield made
    made.close()
    assert not left_after(processes, 5.0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(launcher: LocalLauncher, tmp_path: Path, fault: Fault) -> None:
    misbehave(tmp_path, fault.behaviour)
    started_s = time.monotonic()
    job = tiny_job(measured_steps=11, hang_s=fault.hang_s, deadline_s=fault.deadline_s)
    output = wait_for(launcher.submit(job, tmp_path))
    assert time.monotonic() - started_s < fault.end_s
    assert not left_after(rank_processes(tmp_path), 1.0)
    if fault.failure is None:
        assert output.result is not None
        assert not output.failures
        return
    assert output.result is None
    first = output.failures[0]
    assert first.failure is fault.failure
    assert fault.message in first.message
    assert first.rank == fault.rank
    if fault.phase is not None:
        assert first.phase is fault.phase


def test_the_docs_have_a_line_for_every_fault() -> None:
    text = DOCS.read_text()
    everything = [*names(), *study_faults.names()]
    assert [name for name in everything if f"| {name} |" not in text] == []


def test_a_dead_fork_server_fails_its_trials_and_is_replaced(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    kill = next(kill for kill in KILLS if kill.victim == "fork server")
    misbehave(tmp_path / "hit", FakeBehaviour(mode="leave_child", rank=0, step=0))
    handle = launcher.submit(long_job(), tmp_path / "hit")
    wait_for_steps(handle, 2)
    find_victim(kill.victim, tmp_path / "hit").kill()
    output = wait_for(handle, 5.0)
    assert output.failures[0].failure is kill.failure
    assert kill.message in output.failures[0].message
    ranks = [process for process in rank_processes(tmp_path / "hit") if process.name() != "sleep"]
    assert not left_after(ranks, 2.0)
    assert wait_for(launcher.submit(tiny_job(), tmp_path / "next")).result is not None
    for process in rank_processes(tmp_path / "hit"):  # what escaped in a session of its own
        process.kill()


def test_a_port_that_was_taken_is_a_communication_failure(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        misbehave(tmp_path, FakeBehaviour(mode="port_taken", phase=Phase.INIT, port=port))
        output = wait_for(launcher.submit(tiny_job(), tmp_path))
    assert output.failures[0].failure is FailureKind.COMM
    assert "in use" in output.failures[0].message


def test_a_full_disk_is_named(launcher: LocalLauncher, tmp_path: Path) -> None:
    """On a small file system of its own, where root may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here: needs root and mount")
    try:
        misbehave(place / "trial", FakeBehaviour(mode="fill_disk", rank=1, step=1))
        output = wait_for(launcher.submit(tiny_job(), place / "trial"))
        refused = wait_for(launcher.submit(tiny_job(), place / "next"))
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert output.failures[0].failure is FailureKind.LAUNCH
    assert "disk of its folder is full" in output.failures[0].message
    assert refused.failures[0].failure is FailureKind.LAUNCH
    assert "No space left" in refused.failures[0].message


def test_a_folder_that_cannot_be_made_fails_that_trial(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    output = wait_for(launcher.submit(tiny_job(), tmp_path / "file" / "trial"))
    assert output.failures[0].failure is FailureKind.LAUNCH
    assert output.failures[0].phase is Phase.LAUNCH
    assert launcher.has_room(4)


def test_other_trials_and_foreign_processes_live_on(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        good = launcher.submit(long_job("good"), tmp_path / "good")
        misbehave(tmp_path / "bad", FakeBehaviour(mode="leave_child_and_die", rank=0, step=1))
        assert wait_for(launcher.submit(tiny_job(), tmp_path / "bad")).result is None
        assert good.poll() is None
        assert bystander.poll() is None
        good.cancel()
        wait_for(good)
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()
