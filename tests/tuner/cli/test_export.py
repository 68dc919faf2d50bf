"""`tuner export` on a stored study, and `tuner init --from` with what comes of it."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from trainer.contract import FailureKind, TrialJob, TrialOutput
from tuner import registry
from tuner.cli import main
from tuner.testing.fake_launcher import FakeLauncher, completed, failed

Run = Callable[..., tuple[int, str, str]]

COMMON = ("--model", "llama-tiny", "--devices", "2", "--searcher", "grid", "--max-trials", "6")


def _answer(job: TrialJob) -> TrialOutput:
    return completed(job, step_time_s=1.0 / (2 * job.config.tp + job.config.micro_batch_size))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_STORE", raising=False)
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    monkeypatch.setattr(
        "tuner.controller.make_launcher", lambda study: FakeLauncher(num_devices=2, answer=_answer)
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def study(cli: Run) -> Run:
    assert cli("run", *COMMON, "--name", "first", "--set", "space.pp=1")[0] == 0
    return cli


def test_the_best_of_the_newest_study_goes_to_standard_output(study: Run) -> None:
    code, out, err = study("export", "--to", "megatron-lm")
    best = json.loads(study("rank", "--json")[1])["leaderboard"][0]
    assert code == 0
    assert f"Trial {best['trial_number']} of study first" in out
    assert f"--tensor-model-parallel-size {best['knobs']['tp']}\n" in out
    assert "sbatch.sh" in err
    assert study("export", "best", "--to", "megatron-lm")[1] == out


def test_a_trial_by_its_number_into_a_folder(study: Run, tmp_path: Path) -> None:
    code, out, err = study("export", "1", "--to", "tuner", "-o", "tuned")
    assert (code, out) == (0, "")
    job = TrialJob.model_validate_json((tmp_path / "tuned/job.json").read_text())
    shown = json.loads(study("show", "1", "--json")[1])
    assert job.config.model_dump(mode="json") == shown["trial"]["knobs"]
    assert os.access(tmp_path / "tuned/run.sh", os.X_OK)
    assert "wrote tuned/run.sh" in err


def test_a_file_is_only_overwritten_on_demand(study: Run, tmp_path: Path) -> None:
    options = ("export", "--to", "deepspeed", "--nearest", "-o", "ds.json")
    assert study(*options)[0] == 0
    code, _, err = study(*options)
    assert code == 2
    assert "ds.json exists already" in err
    assert study(*options, "--force")[0] == 0
    assert json.loads((tmp_path / "ds.json").read_text())["train_batch_size"] == 8


def test_what_cannot_be_expressed_is_exit_code_6_with_the_nearest(cli: Run) -> None:
    fixed = ("--set", "space.tp=2", "--set", "space.sequence_parallel=true")
    assert cli("run", *COMMON, "--max-trials", "1", *fixed)[0] == 0
    code, out, err = cli("export", "--to", "accelerate")
    assert (code, out) == (6, "")
    assert "accelerate cannot express sequence_parallel true" in err
    assert "nearest: sequence_parallel false; --nearest exports that" in err
    code, out, err = cli("export", "--to", "accelerate", "--nearest")
    assert code == 0
    assert yaml.safe_load(out)["parallelism_config"]["parallelism_config_tp_size"] == 2
    assert "so that this was not measured: sequence_parallel true -> false" in err
    assert "Changed from what was measured" in out


def test_json_holds_all_files_and_what_was_changed(study: Run) -> None:
    code, out, _ = study("export", "1", "--to", "megatron-deepspeed", "--nearest", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["exporter"], document["study"], document["trial"]) == (
        "megatron-deepspeed",
        "first",
        1,
    )
    assert {"megatron_arguments.txt", "ds_config.json", "run.sh"} <= set(document["files"])
    assert {"config", "changes", "versions", "round_trip", "notes"} <= set(document)


def test_the_list_names_every_exporter_its_versions_and_its_check(cli: Run) -> None:
    code, out, _ = cli("export", "--list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["exporter"] for row in rows} == set(registry.EXPORTERS)
    assert all(row["versions"] and row["round_trip"] and row["knobs"] for row in rows)
    code, out, _ = cli("export", "--list")
    assert code == 0
    assert len(out.splitlines()) == len(registry.EXPORTERS) + 1
    code, out, _ = cli("export", "--list", "--to", "nanotron")
    assert "optimizer.zero_stage" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "say which trainer with --to NAME"),
        (("--to", "megatron"), 2, "did you mean 'megatron-lm'"),
        (("nine", "--to", "tuner"), 2, "'nine' is no trial"),
        (("99", "--to", "tuner"), 2, "has no trial 99"),
        (("--to", "tuner", "--study", "none"), 2, "no study is called 'none'"),
        (("--to", "tuner", "--store", "nowhere.db"), 5, "nowhere.db"),
    ],
)
def test_wrong_usage_is_one_sentence(
    study: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = study("export", *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_study_without_a_number_has_no_best(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tuner.controller.make_launcher",
        lambda study: FakeLauncher(num_devices=2, answer=lambda job: failed(FailureKind.OOM)),
    )
    cli("run", *COMMON)
    code, _, err = cli("export", "--to", "tuner")
    assert code == 3
    assert "has given a number yet" in err


def _fake(folder: Path, name: str) -> None:
    """A program that prints its arguments, one a line, in place of one of a cluster."""
    program = folder / name
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)


@pytest.mark.parametrize("script", ["run.sh", "sbatch.sh"])
def test_the_scripts_hand_every_argument_to_the_program(
    study: Run, tmp_path: Path, script: str
) -> None:
    study("export", "1", "--to", "megatron-lm", "-o", "tuned")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("torchrun", "srun", "scontrol"):
        _fake(programs, name)
    done = subprocess.run(
        ["bash", str(tmp_path / "tuned" / script), "--train-iters", "20"],
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": str(tmp_path / "tuned"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    given = done.stdout.splitlines()
    lines = (tmp_path / "tuned/megatron_arguments.txt").read_text().splitlines()
    wanted = [word for line in lines if not line.startswith("#") for word in line.split(" ")]
    start = given.index("pretrain_gpt.py") + 1
    assert given[start:] == [*wanted, "--train-iters", "20"]
    assert "--nproc-per-node" in given


_SCRIPT = """\
torchrun --nproc_per_node 2 pretrain_gpt.py \\
  --num-layers 4 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 128 \\
  --vocab-size 256 --seq-length 64 --micro-batch-size 1 --global-batch-size 8 \\
  --tensor-model-parallel-size 1 --use-distributed-optimizer --recompute-activations
"""


def test_the_configuration_in_use_is_measured_first_and_compared_with(
    cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "pretrain.sh").write_text(_SCRIPT)
    code, _, err = cli("init", "--from", "pretrain.sh")
    assert code == 0
    assert "baseline from Megatron: tp1 pp1 dp2 mbs1 zero1 recompute-selective" in err
    study = tomllib.loads((tmp_path / "study.toml").read_text())
    assert study["model"]["source"] == "./study.model.json"
    assert study["cluster"]["devices"] == 2
    assert study["training"] | {"global_batch_size": 8, "sequence_length": 64} == study["training"]
    code, _, err = cli("run", "--max-trials", "5", "--searcher", "random")
    assert code == 0
    assert "x over your current configuration" in err
    first = json.loads(cli("show", "1", "--json")[1])["trial"]
    assert (first["purpose"], first["knobs"]["zero_stage"]) == ("baseline", 1)
    _, out, err = cli("rank")
    assert "baseline" in out.splitlines()[0]
    assert "x over your current configuration" in err


def test_a_baseline_that_fails_is_said(cli: Run, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pretrain.sh").write_text(_SCRIPT)
    cli("init", "--from", "pretrain.sh")

    def answer(job: TrialJob) -> TrialOutput:
        return failed(FailureKind.OOM) if job.config.recompute == "selective" else _answer(job)

    monkeypatch.setattr(
        "tuner.controller.make_launcher", lambda study: FakeLauncher(num_devices=2, answer=answer)
    )
    cli("run", "--max-trials", "4", "--searcher", "random", "--set", "space.recompute=none")
    _, _, err = cli("rank")
    assert "your current configuration gave no number (oom" in err


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"ds.json": '{"train_micro_batch_size_per_gpu": 1}'}, ("--devices", "2"),
         "does not describe the model"),
        ({"ds.json": '{"train_micro_batch_size_per_gpu": 1}'}, ("--model", "gpt2-tiny"),
         "on how many devices"),
        ({"a.sh": _SCRIPT.replace("--hidden-size 64", "--hidden-size 60 --kv-channels 15")
          .replace("heads 4", "heads 4 --tensor-model-parallel-size 2")
          .replace("--tensor-model-parallel-size 1", "--context-parallel-size 3")},
         ("--devices", "6"), "cannot run here"),
        ({"a.sh": "nothing"}, (), "no configuration that is known here"),
    ],
)  # fmt: skip
def test_a_file_that_gives_no_baseline_is_one_sentence(
    cli: Run, tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code, _, err = cli("init", "--from", next(iter(files)), *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "study.toml").exists()
    assert cli("init", "--from", "missing.json")[0] == 2


@pytest.mark.slow
@pytest.mark.distributed
def test_our_own_export_trains(study: Run, tmp_path: Path) -> None:
    study("export", "1", "--to", "tuner", "-o", "tuned")
    venv = Path(sys.executable).parent
    subprocess.run(
        ["bash", str(tmp_path / "tuned/run.sh")],
        env={**os.environ, "PATH": f"{venv}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )
    last = (tmp_path / "tuned/report.0.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["tokens_per_step"] == 8 * 64
