"""What the Ray launcher does when parts of it are killed, and that nothing is left."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.errors import LauncherError
from tuner.launchers.ray_launcher import RayLauncher
from tuner.testing.fake_trainer import ENTRY, FakeBehaviour
from tuner.testing.fault_matrix import KILLS, Kill
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import long_job, wait_for, wait_for_steps
from tuner.testing.processes import descendants, find_victim, left_after, rank_processes

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def ray_folders() -> set[str]:
    return {str(path) for path in Path(tempfile.gettempdir()).glob("tuner-ray-*")}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayLauncher]:
    before = ray_folders()
    made = RayLauncher(num_devices=4, run_folder=tmp_path_factory.mktemp("runs"), entry=ENTRY)
    others = set(descendants())
    made.open()
    processes = set(descendants()) - others
    yield made
    made.close()
    assert not left_after(processes, 10.0)
    assert ray_folders() <= before


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.name)
def test_killing_a_part_fails_the_trial_and_the_next_one_runs(
    launcher: RayLauncher, tmp_path: Path, kill: Kill
) -> None:
    handle = launcher.submit(long_job(), tmp_path / "hit")
    wait_for_steps(handle, 1)
    ranks = rank_processes(tmp_path / "hit")
    find_victim(kill.victim, tmp_path / "hit").kill()
    output = wait_for(handle, 30.0)
    assert output.result is None
    assert output.failures[0].failure is kill.failure
    assert kill.message in output.failures[0].message
    assert not left_after(ranks, 10.0)
    assert wait_for(launcher.submit(tiny_job(), tmp_path / "next")).result is not None


def test_a_hang_stores_the_stacks_of_all_ranks(launcher: RayLauncher, tmp_path: Path) -> None:
    misbehave(tmp_path, FakeBehaviour(mode="hang_deaf", rank=1, step=1))
    handle = launcher.submit(tiny_job(hang_s=1.0), tmp_path)
    failure = wait_for(handle).failures[0]
    assert failure.failure is FailureKind.HANG
    assert "_hang" in failure.traceback
    assert "in meet" in failure.traceback
    assert not left_after(rank_processes(tmp_path), 2.0)


def test_trials_see_their_own_folder_and_nothing_of_the_callers(
    launcher: RayLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.py").write_text("raise SystemExit('a user file was imported')")
    monkeypatch.chdir(tmp_path)
    handle = launcher.submit(tiny_job(), tmp_path / "trial")
    assert wait_for(handle).result is not None
    noted = json.loads((tmp_path / "trial" / "noted.0.json").read_text())
    assert noted["cwd"] == str(tmp_path / "trial")
    assert "" not in noted["path"]
    assert str(tmp_path) not in noted["path"]
    assert noted["pgid"] == noted["pid"]
    assert noted["env"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert {path.name for path in tmp_path.iterdir()} == {"trainer.py", "trial"}


def test_ranks_are_not_slowed_in_favour_of_other_processes(
    launcher: RayLauncher, tmp_path: Path
) -> None:
    handle = launcher.submit(long_job(), tmp_path / "trial")
    wait_for_steps(handle, 1)
    nices = [process.nice() for process in rank_processes(tmp_path / "trial")]
    handle.cancel()
    wait_for(handle)
    assert nices == [psutil.Process().nice()] * 2


def test_every_port_of_a_local_cluster_is_on_loopback(launcher: RayLauncher) -> None:
    ours = {process.pid for process in descendants()}
    listening = [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.pid in ours and connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    for connection in listening:
        assert connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1"), connection


def test_a_trial_that_can_never_fit_is_told_what_is_missing(
    launcher: RayLauncher, tmp_path: Path
) -> None:
    with pytest.raises(LauncherError, match="4 CPU slots are missing"):
        launcher.submit(tiny_job(config=ParallelConfig(tp=2, dp=4)), tmp_path)


def test_an_address_where_no_ray_is_gives_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = RayLauncher(num_devices=1, run_folder=tmp_path, entry=ENTRY, address=f"127.0.0.1:{port}")
    with pytest.raises(LauncherError, match="cannot be used"):
        made.open()


CONTROLLER = """
import sys, time
from pathlib import Path
from tuner.launchers.ray_launcher import RayLauncher
from tuner.testing.launcher_contract import long_job
launcher = RayLauncher(num_devices=2, run_folder=Path(sys.argv[1]), entry=sys.argv[2])
launcher.open()
handle = launcher.submit(long_job(), Path(sys.argv[1]) / "trial")
while not handle.progress().steps:
    time.sleep(0.01)
print("running", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_after_kill_minus_nine_of_the_controller(tmp_path: Path) -> None:
    before = ray_folders()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path), ENTRY], stdout=subprocess.PIPE, text=True
    )
    try:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "running\n"
        processes = descendants(controller.pid)
        assert len(processes) > 5
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(controller.pid, signal.SIGKILL)
        controller.communicate()
    assert not left_after(processes, 20.0)
    assert ray_folders() <= before


def test_trials_on_gpus_get_disjoint_devices_from_ray(tmp_path: Path) -> None:
    """Ray counts the GPUs that it is told of; the ranks are fake, so none is needed."""
    gpus = RayLauncher(num_devices=3, run_folder=tmp_path, entry=ENTRY, device_kind="cuda")
    gpus.open()
    try:
        assert gpus.num_devices() == 3
        jobs = [long_job("pair", dp=2), long_job("single", dp=1)]
        handles = [
            gpus.submit(job.model_copy(update={"device_kind": "cuda"}), tmp_path / job.trial_id)
            for job in jobs
        ]
        for handle in handles:
            wait_for_steps(handle, 1)
            handle.cancel()
            wait_for(handle)
    finally:
        gpus.close()
    noted = [
        json.loads((tmp_path / name).read_text())
        for name in ("pair/noted.0.json", "pair/noted.1.json", "single/noted.0.json")
    ]
    seen = [note["env"]["CUDA_VISIBLE_DEVICES"].split(",") for note in noted]
    assert seen[0] == seen[1]
    assert sorted(seen[0] + seen[2]) == ["0", "1", "2"]
    assert [note["local_rank"] for note in noted] == [0, 1, 0]
