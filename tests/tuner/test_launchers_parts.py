"""Parts of launchers that need no Ray: placement, commands, simulation, network, fork server."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.errors import LauncherError
from tuner.launchers.checks import check_devices, check_stragglers, check_versions
from tuner.launchers.command import CommandLauncher
from tuner.launchers.command_line import fill, placeholders
from tuner.launchers.local import LocalLauncher
from tuner.launchers.network import free_port, interface_of, interface_towards, rank_environment
from tuner.launchers.placement import NodeSlots, check_can_ever_fit, plan_bundles
from tuner.launchers.rank_processes import ForkServer
from tuner.launchers.simulated import SimulatedLauncher
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_trainer import ENTRY
from tuner.testing.jobs import tiny_job
from tuner.testing.launcher_contract import wait_for
from tuner.testing.processes import descendants, left_after


def slots(*sizes: tuple[int, int]) -> list[NodeSlots]:
    return [
        NodeSlots(node_id=f"id{n}", hostname=f"host{n}", total=total, free=free)
        for n, (total, free) in enumerate(sizes)
    ]


nodes = st.lists(
    st.integers(1, 8).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total))),
    min_size=1,
    max_size=6,
).map(lambda sizes: slots(*sizes))
configs = st.builds(
    lambda tp, pp, dp: ParallelConfig(tp=tp, pp=pp, dp=dp),
    st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 4),
)  # fmt: skip


@given(nodes=nodes, config=configs)
def test_a_plan_holds_all_ranks_fits_its_nodes_and_tears_no_tensor_group(
    nodes: list[NodeSlots], config: ParallelConfig
) -> None:
    plan = plan_bundles(nodes, config)
    if plan is None:
        usable = sum(node.free // config.tp * config.tp for node in nodes)
        assert usable < config.world_size
        return
    assert sum(plan) == config.world_size
    assert all(part % config.tp == 0 for part in plan)
    free = sorted((node.free for node in nodes), reverse=True)
    assert all(part <= room for part, room in zip(plan, free, strict=False))
    assert len(plan) == 1 or config.world_size > max(free)


@given(nodes=nodes, config=configs)
def test_what_has_a_plan_now_can_run_at_all(nodes: list[NodeSlots], config: ParallelConfig) -> None:
    if plan_bundles(nodes, config) is not None:
        check_can_ever_fit(nodes, config, resource="GPUs")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(LauncherError, match=r"2 GPUs are missing \(6 in all; host0: 4, host1: 2\)"):
        check_can_ever_fit(slots((4, 0), (2, 2)), ParallelConfig(dp=8), resource="GPUs")
    with pytest.raises(LauncherError, match="groups of 8"):
        check_can_ever_fit(slots((4, 4), (4, 4)), ParallelConfig(tp=8), resource="GPUs")
    assert plan_bundles(
        slots((4, 4), (4, 4)), ParallelConfig(tp=8), split_tensor_parallel=True
    ) == (4, 4)


def test_placeholders_are_filled_without_a_shell(tmp_path: Path) -> None:
    job = tiny_job(config=ParallelConfig(tp=2, dp=2))
    values = placeholders(job, tmp_path)
    filled = fill(["run", "--tp={tp}", "{{literal}}", "$(rm -rf /)", "{sequence_parallel}"], values)
    assert filled == ("run", "--tp=2", "{literal}", "$(rm -rf /)", "false")
    with pytest.raises(LauncherError, match=r"unknown placeholder \{pt\}.*tp"):
        fill(["{pt}"], values)


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandLauncher]:
    made = CommandLauncher(
        num_devices=2, run_folder=tmp_path, command=[sys.executable, "-c", request.param]
    )
    made.open()
    yield made
    made.close()


def answering(answer: object) -> str:
    text = json.dumps(json.dumps(answer)).replace("{", "{{").replace("}", "}}")
    return f"print('Error: harmless'); print({text})"


@pytest.mark.parametrize("command", [answering({"tokens_per_s": 1280.0})], indirect=True)
def test_a_command_may_answer_in_its_last_line(command: CommandLauncher, tmp_path: Path) -> None:
    output = wait_for(command.submit(tiny_job(), tmp_path / "trial"))
    assert output.result is not None, output.failures
    assert output.result.step_time_s == pytest.approx(0.1)
    assert output.result.tokens_per_s == 1280.0


@pytest.mark.parametrize(
    "command", [answering({"failure": "oom", "message": "too large"})], indirect=True
)
def test_a_command_may_answer_with_a_failure(command: CommandLauncher, tmp_path: Path) -> None:
    failure = wait_for(command.submit(tiny_job(), tmp_path / "trial")).failures[0]
    assert (failure.failure, failure.message) == (FailureKind.OOM, "too large")


@pytest.mark.parametrize("command", [answering({"step_time_s": -1})], indirect=True)
def test_an_answer_that_is_none_is_explained(command: CommandLauncher, tmp_path: Path) -> None:
    failure = wait_for(command.submit(tiny_job(), tmp_path / "trial")).failures[0]
    assert failure.failure is FailureKind.CRASH
    assert "step_time_s" in failure.message


@pytest.mark.parametrize("command", ["import sys; sys.exit('no such option')"], indirect=True)
def test_a_command_that_fails_shows_its_last_words(
    command: CommandLauncher, tmp_path: Path
) -> None:
    failure = wait_for(command.submit(tiny_job(), tmp_path / "trial")).failures[0]
    assert "exit code 1: no such option" in failure.message


@pytest.mark.parametrize("command", ["import time; time.sleep(60)"], indirect=True)
def test_a_command_that_hangs_is_a_hang(command: CommandLauncher, tmp_path: Path) -> None:
    failure = wait_for(command.submit(tiny_job(hang_s=0.5), tmp_path / "trial")).failures[0]
    assert failure.failure is FailureKind.HANG


def test_a_command_that_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="list of arguments"):
        CommandLauncher(num_devices=1, run_folder=tmp_path)
    missing = CommandLauncher(num_devices=1, run_folder=tmp_path, command=["./no-such-program"])
    with pytest.raises(LauncherError, match="no-such-program"):
        missing.open()


def test_simulated_trials_repeat_with_the_seed_and_differ_between_trials(tmp_path: Path) -> None:
    def time_of(seed: int, trial: str) -> float:
        launcher = SimulatedLauncher(num_devices=8, run_folder=tmp_path, seed=seed)
        output = launcher.submit(tiny_job(trial), tmp_path).poll()
        assert output is not None
        assert output.result is not None
        return output.result.step_time_s

    assert time_of(1, "a") == time_of(1, "a")
    assert len({time_of(1, "a"), time_of(1, "b"), time_of(2, "a")}) == 3
    assert time_of(1, "a") == pytest.approx(time_of(1, "b"), rel=0.2)


def test_simulated_memory_is_a_wall(tmp_path: Path) -> None:
    small = ClusterSpec(devices_per_node=8, memory_bytes=1 << 16)
    launcher = SimulatedLauncher(num_devices=8, run_folder=tmp_path, cluster=small)
    output = launcher.submit(tiny_job(), tmp_path).poll()
    assert output is not None
    assert output.failures[0].failure is FailureKind.OOM
    assert not list(tmp_path.iterdir())


def test_simulated_time_runs_by_its_scale(tmp_path: Path) -> None:
    clock = FakeClock()
    launcher = SimulatedLauncher(
        num_devices=8, run_folder=tmp_path, time_scale=2.0, clock=clock, noise=0.0
    )
    handle = launcher.submit(tiny_job(), tmp_path)
    steps_s = 0.0
    while (output := handle.poll()) is None:
        steps_s += 1e-4
        clock.advance(1e-4)
    total_s = sum(step.step_time_s for step in output.steps)
    assert clock.monotonic_s() == pytest.approx(2 * total_s, abs=2e-4)


def test_simulated_failures_come_at_their_rate(tmp_path: Path) -> None:
    launcher = SimulatedLauncher(num_devices=8, run_folder=tmp_path, failure_rate=0.5)
    outputs = [launcher.submit(tiny_job(f"t{n}"), tmp_path).poll() for n in range(200)]
    failed = sum(output is not None and output.result is None for output in outputs)
    assert 60 < failed < 140
    with pytest.raises(LauncherError, match=r"failure_rate 1\.5"):
        SimulatedLauncher(num_devices=8, run_folder=tmp_path, failure_rate=1.5)


def test_interfaces_and_ports_are_those_of_the_machine() -> None:
    assert interface_towards("127.0.0.1") == interface_of("127.0.0.1")
    assert interface_of("192.0.2.255") is None
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port("127.0.0.1")))


def test_gpu_ranks_see_all_devices_of_their_trial() -> None:
    job = tiny_job().model_copy(update={"device_kind": "cuda"})
    environment = rank_environment(job, interface="eth1", device_ids=["2", "5"])
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert environment["NCCL_SOCKET_IFNAME"] == "eth1"
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment(
        tiny_job(), interface="lo", device_ids=[0]
    )


def test_a_fork_server_that_cannot_import_says_what() -> None:
    with pytest.raises(LauncherError, match="no_such_module"):
        ForkServer(entry="no_such_module:run").start()


def test_a_preload_that_starts_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(entry=None, preload=["threaded"])
    with pytest.raises(LauncherError, match=r"forking from that process is unsafe.*spawn"):
        server.start()
    assert server.pid is None


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_both_start_methods_run_trials_and_leave_nothing(tmp_path: Path, method: str) -> None:
    launcher = LocalLauncher(num_devices=2, run_folder=tmp_path, entry=ENTRY, start_method=method)
    before = set(descendants())
    launcher.open()
    processes = set(descendants()) - before
    try:
        assert wait_for(launcher.submit(tiny_job(), tmp_path / "trial")).result is not None
    finally:
        launcher.close()
    assert not left_after(processes, 5.0)
    with pytest.raises(LauncherError, match="fork, spawn"):
        LocalLauncher(num_devices=2, run_folder=tmp_path, start_method="thread")


def test_checks_name_the_node_that_differs() -> None:
    base = {"total": 2, "num_cores": 2, "num_gpus_seen": 0}
    rows = [
        {**base, "hostname": "a", "versions": {"torch": "2.13"}},
        {**base, "hostname": "b", "versions": {"torch": "2.12"}, "num_cores": 1},
    ]
    assert "2.12 on b" in check_versions(rows).message
    assert "b has 1 cores for 2 ranks" in check_devices(rows, "cpu").message
    assert "a shows 0 GPUs and Ray counts 2" in check_devices(rows, "cuda").message


def test_a_straggler_is_named() -> None:
    from trainer.contract import RankReport

    ranks = [
        RankReport(
            rank=rank, hostname=f"host{rank // 2}", device="cpu", coordinates={}, stages=[0],
            layers=[], num_parameters=0, peak_memory_bytes=0, state_memory_bytes=0,
            breakdown_s={"compute": 0.02 if rank // 2 == 1 else 0.01},
        )
        for rank in range(6)
    ]  # fmt: skip
    check = check_stragglers(ranks)
    assert not check.is_ok
    assert "host1 (2.0x)" in check.message
    assert check_stragglers(ranks[:2]).is_ok


def test_a_program_with_very_many_open_files_can_launch(tmp_path: Path) -> None:
    """Descriptors above 1023, which `select` refuses: notebooks and servers hold that many."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1400:
        pytest.skip(f"at most {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    launcher = LocalLauncher(num_devices=2, run_folder=tmp_path, entry=ENTRY)
    try:
        launcher.open()
        output = wait_for(launcher.submit(tiny_job(), tmp_path / "trial"))
        assert output.result is not None, output.failures
    finally:
        launcher.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
