"""The Ray launcher on several nodes: placement, ranks on each, loss of a node."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.errors import LauncherError
from tuner.launchers.ray_launcher import RayLauncher
from tuner.testing.fake_trainer import ENTRY, FakeBehaviour
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import long_job, wait_for, wait_for_steps
from tuner.testing.processes import descendants, left_after, rank_processes
from tuner.testing.ray_nodes import RayNodes, environment, ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RayLauncher, RayNodes]]:
    """Nodes of 3, 2 and 2 slots."""
    variables = environment()
    with pytest.MonkeyPatch.context() as patch, ray_nodes((3, 2, 2), variables) as nodes:
        for name, value in variables.items():
            patch.setenv(name, value)
        launcher = RayLauncher(
            num_devices=None, run_folder=Path.cwd(), address=nodes.address, entry=ENTRY
        )
        before = set(descendants())
        launcher.open()
        processes = set(descendants()) - before
        yield launcher, nodes
        launcher.close()
    assert not left_after(processes, 15.0)


def noted(folder: Path, rank: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / f"noted.{rank}.json").read_text())
    return found


def test_one_trial_spans_nodes_with_whole_tensor_groups(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    launcher, _ = cluster
    assert launcher.num_devices() == 7
    output = wait_for(launcher.submit(tiny_job(config=ParallelConfig(tp=2, dp=3)), tmp_path))
    assert output.result is not None, output.failures
    # The node of three slots gives two of them: a tensor-parallel pair is never torn.
    assert [noted(tmp_path, rank)["local_rank"] for rank in range(6)] == [0, 1] * 3
    methods = {str(noted(tmp_path, rank)["init_method"]) for rank in range(6)}
    assert len(methods) == 1
    assert methods.pop().startswith("tcp://127.0.0.1:")


def test_uneven_nodes_are_filled_by_slots(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    launcher, _ = cluster
    output = wait_for(launcher.submit(tiny_job(config=ParallelConfig(dp=7)), tmp_path))
    assert output.result is not None, output.failures
    local_ranks = [noted(tmp_path, rank)["local_rank"] for rank in range(7)]
    assert local_ranks == [0, 1, 2, 0, 1, 0, 1]


def test_what_can_never_fit_is_said(cluster: tuple[RayLauncher, RayNodes], tmp_path: Path) -> None:
    launcher, _ = cluster
    with pytest.raises(LauncherError, match="tensor-parallel groups of 4"):
        launcher.submit(tiny_job(config=ParallelConfig(tp=4)), tmp_path)
    with pytest.raises(LauncherError, match="1 CPU slots are missing"):
        launcher.submit(tiny_job(config=ParallelConfig(dp=8)), tmp_path)


def test_several_trials_at_once_on_disjoint_devices(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    launcher, _ = cluster
    handles = [
        launcher.submit(tiny_job(f"t{n}", measured_steps=200), tmp_path / f"{n}") for n in range(3)
    ]
    assert launcher.has_room(1)
    assert not launcher.has_room(2)
    assert all(wait_for(handle).result is not None for handle in handles)
    assert launcher.has_room(7)


def test_a_hang_dumps_the_stacks_on_every_node(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    launcher, _ = cluster
    misbehave(tmp_path, FakeBehaviour(mode="hang", rank=5, step=1))
    config = ParallelConfig(tp=2, dp=3)
    failure = wait_for(launcher.submit(tiny_job(config=config, hang_s=2.0), tmp_path)).failures[0]
    assert failure.failure is FailureKind.HANG
    for rank in range(6):
        assert f"--- rank {rank} ---" in failure.traceback
    assert not left_after(rank_processes(tmp_path), 5.0)


def test_a_rank_that_dies_on_one_node_ends_all_and_names_itself(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    launcher, _ = cluster
    misbehave(tmp_path, FakeBehaviour(mode="sigsegv", rank=4, step=1))
    output = wait_for(launcher.submit(tiny_job(config=ParallelConfig(tp=2, dp=3)), tmp_path))
    assert output.failures[0].failure is FailureKind.CRASH
    assert output.failures[0].rank == 4
    assert "SIGSEGV" in output.failures[0].message
    assert not left_after(rank_processes(tmp_path), 5.0)


def test_a_lost_node_is_preemption_and_the_study_goes_on(
    cluster: tuple[RayLauncher, RayNodes], tmp_path: Path
) -> None:
    """Last in this file: the node does not come back."""
    launcher, nodes = cluster
    handle = launcher.submit(long_job(tp=2, dp=3), tmp_path / "hit")
    wait_for_steps(handle, 1)
    os.kill(nodes.raylet_pids[2], signal.SIGKILL)
    output = wait_for(handle, 40.0)
    assert output.failures[0].failure is FailureKind.PREEMPTED, output.failures
    assert not left_after(rank_processes(tmp_path / "hit"), 15.0)
    assert launcher.num_devices() == 5
    output = wait_for(launcher.submit(tiny_job(config=ParallelConfig(dp=5)), tmp_path / "next"))
    assert output.result is not None, output.failures
    with pytest.raises(LauncherError, match="1 CPU slots are missing"):
        launcher.submit(tiny_job(config=ParallelConfig(dp=6)), tmp_path / "never")
