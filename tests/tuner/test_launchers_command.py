"""The launcher `command` with adapters: users' trainers as trials."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind, Phase, TrialOutput
from tuner import registry
from tuner.errors import LauncherError, NotExpressible
from tuner.launchers.command import CommandLauncher
from tuner.launchers.command_line import as_arguments, fill, torchrun, write_export
from tuner.ports import Export, ExportRequest
from tuner.testing.jobs import tiny_job
from tuner.testing.launcher_contract import wait_for
from tuner.testing.processes import left_after, processes_in, wait_until

FAKE = Path(__file__).parents[1] / "fixtures" / "adapters" / "fake_megatron" / "pretrain.py"
MEGATRON = [
    "{python}", str(FAKE), "--micro-batch-size", "{micro_batch_size}", "--global-batch-size",
    "{global_batch_size}", "--data-parallel-size", "{dp}", "--cheat-from", "2",
]  # fmt: skip
QUICK = {"settle_s": 0.1, "dump_s": 0.1, "terminate_s": 0.3}


@contextmanager
def launching(
    folder: Path, command: Sequence[str] | str, **options: Any
) -> Iterator[CommandLauncher]:
    made = CommandLauncher(
        num_devices=2, run_folder=folder, command=command, patience=QUICK, **options
    )
    made.open()
    try:
        yield made
    finally:
        made.close()


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program.replace("{", "{{").replace("}", "}}")]


def run(folder: Path, command: Sequence[str] | str, job: Any = None, **options: Any) -> TrialOutput:
    with launching(folder, command, **options) as launcher:
        return wait_for(launcher.submit(job or tiny_job(), folder / "trial"))


def test_a_trainer_s_log_is_its_result_and_is_kept(tmp_path: Path) -> None:
    output = run(tmp_path, [*MEGATRON, "--train-iters", "{num_steps}"], adapter="megatron-lm")
    assert output.result is not None, output.failures
    # 0.02 s and 0.004 s for each of the four micro-batches
    assert output.result.step_time_s == pytest.approx(0.036)
    assert output.result.tokens_per_s == pytest.approx(16 * 8 / 0.036)
    assert output.result.peak_memory_bytes > 1 << 20
    assert [step.is_warmup for step in output.steps][:3] == [True, False, False]
    assert "consumed samples" in (tmp_path / "trial" / "rank.0.log").read_text()


def test_a_trainer_that_halves_its_accumulation_is_caught(tmp_path: Path) -> None:
    job = tiny_job(config=ParallelConfig(dp=2, micro_batch_size=2))
    output = run(tmp_path, [*MEGATRON, "--train-iters", "{num_steps}"], job, adapter="megatron-lm")
    failure = output.failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert "says 4 sequences per step" in failure.message
    assert "means 8" in failure.message


def test_a_trainer_that_goes_on_is_ended_once_enough_is_known(tmp_path: Path) -> None:
    with launching(tmp_path, [*MEGATRON, "--train-iters", "100000"], adapter="megatron-lm") as made:
        since_s = time.monotonic()
        output = wait_for(made.submit(tiny_job(), tmp_path / "trial"))
        assert output.result is not None
        assert time.monotonic() - since_s < 10
        assert left_after(processes_in(tmp_path), 5.0) == []


TREE = """
import subprocess, sys, time
def start(program):
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
start('''
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
''')
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["cancel", "hang", "close"])
def test_no_child_is_left_behind(tmp_path: Path, ending: str) -> None:
    """Ranks in sessions of their own, as torchrun starts them, with children of theirs."""
    job = tiny_job(hang_s=2.0 if ending == "hang" else 60.0)
    with launching(tmp_path, python(TREE), adapter="report") as made:
        handle = made.submit(job, tmp_path / "trial")
        assert wait_until(lambda: len(processes_in(tmp_path)) >= 3, 10.0)
        family = processes_in(tmp_path)
        if ending == "cancel":
            handle.cancel()
        if ending != "close":
            wait_for(handle)
            assert left_after(family, 5.0) == []
    assert left_after(family, 5.0) == []


RANKS = """
import os, json, sys
sys.path.insert(0, os.environ["TUNER_ORIGIN"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "EXTRA")
print(json.dumps({name: os.environ[name] for name in names}), flush=True)
from trainer import hook
import time
run = hook.start()
while not run.step(loss=1.0, sequences=4, micro_batches=4):
    time.sleep(0.02)
"""


def test_each_rank_has_its_place_and_its_log(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    output = run(
        tmp_path, python(RANKS), adapter="report", processes="ranks",
        environment={"EXTRA": "7", "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert output.result is not None, output.failures
    assert output.result.step_time_s == pytest.approx(0.02, rel=0.5)
    told = [
        json.loads((tmp_path / "trial" / f"rank.{rank}.log").read_text().splitlines()[0])
        for rank in (0, 1)
    ]
    assert [line["RANK"] for line in told] == ["0", "1"]
    assert {line["WORLD_SIZE"] for line in told} == {"2"}
    assert {line["EXTRA"] for line in told} == {"7"}
    assert len({line["MASTER_PORT"] for line in told}) == 1


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate')",
         FailureKind.OOM, "CUDA out of memory"),
        ("raise RuntimeError('the tokenizer is missing')", FailureKind.CRASH, "the tokenizer"),
        ("import os; os.kill(os.getpid(), 11)", FailureKind.CRASH, "SIGSEGV"),
        ("import sys; sys.exit(3)", FailureKind.CRASH, "exit code 3"),
        ("print('done')", FailureKind.CRASH, "has no line of a step, but 3 steps are needed"),
        ("print('ImportError: no apex', flush=True); import time; time.sleep(60)",
         FailureKind.HANG, "no rank made progress"),
    ],
)  # fmt: skip
def test_a_failure_has_its_kind(
    tmp_path: Path, program: str, kind: FailureKind, words: str
) -> None:
    output = run(tmp_path, python(program), tiny_job(hang_s=1.0), adapter="megatron-lm")
    assert output.result is None
    assert (output.failures[0].failure, words in output.failures[0].message) == (kind, True), (
        output.failures[0]
    )


class Words:
    """An exporter for tests: no pipelines, one file, two arguments."""

    def export(self, request: ExportRequest) -> Export:
        """The words."""
        if request.config.pp > 1:
            raise NotExpressible("the trainer cannot express pp 2: it has no pipelines")
        return Export(
            files={
                "sub/conf.txt": f"tp={request.config.tp}",
                "my_arguments.txt": f"# of a test\n--name 'a b; $HOME {request.model.name}'\n",
            }
        )


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    load = registry.load
    monkeypatch.setattr(
        registry, "load",
        lambda group, name: Words if (group, name) == ("exporters", "words") else load(group, name),
    )  # fmt: skip
    cluster = ClusterSpec(name="here", num_nodes=1, devices_per_node=2)
    return {"adapter": "report", "exporter": "words", "cluster": cluster}


SHOW = """
import pathlib, sys
print(sys.argv[1:], (pathlib.Path(sys.argv[1]) / "sub/conf.txt").read_text())
"""


def test_an_export_reaches_the_command(tmp_path: Path, words: dict[str, Any]) -> None:
    run(tmp_path, [*python(SHOW), "{export_dir}", "{args}"], **words)
    log = (tmp_path / "trial" / "rank.0.log").read_text()
    assert "'--name', 'a b; $HOME tiny'" in log
    assert log.rstrip().endswith("tp=1")


def test_what_the_trainer_has_no_words_for_starts_nothing(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    job = tiny_job(config=ParallelConfig(pp=2))
    output = run(tmp_path, [*python(SHOW), "{export_dir}"], job, **words)
    failure = output.failures[0]
    assert (failure.failure, failure.phase) == (FailureKind.ILLEGAL, Phase.LAUNCH)
    assert "no pipelines" in failure.message
    assert not (tmp_path / "trial").exists()


def test_an_export_stays_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="outside"):
        write_export(Export(files={"../../x": ""}), tmp_path)


def test_lists_of_arguments_stand_alone() -> None:
    lists = {"args": ["--a", "b c"], "torchrun": torchrun(tiny_job())}
    filled = fill(["x", "{args}", "{{args}}"], {}, lists)
    assert filled == ("x", "--a", "b c", "{args}")
    assert fill(["{torchrun}"], {}, lists)[-2:] == ("--nproc-per-node", "2")
    with pytest.raises(LauncherError, match="one by itself"):
        fill(["x {args}"], {"args": "y"}, lists)


def test_a_command_may_be_text(tmp_path: Path) -> None:
    assert as_arguments("run 'a b' $X *") == ["run", "a b", "$X", "*"]
    for wrong in ("run 'a", "", []):
        with pytest.raises(LauncherError):
            as_arguments(wrong)
    with pytest.raises(LauncherError, match="one, ranks"):
        CommandLauncher(num_devices=1, run_folder=tmp_path, command="x", processes="two")
    with pytest.raises(LauncherError, match="need an exporter"):
        CommandLauncher(num_devices=1, run_folder=tmp_path, command="x {args}", adapter="report")
