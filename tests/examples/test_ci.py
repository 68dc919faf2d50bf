"""The CI templates: their YAML, and their shell steps run for real."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "ci" / "regression.sh"
STUDY = """
[model]
source = "gpt2-124m"
[cluster]
preset = "dgx-a100-80"
devices = 8
[space]
compile = false
cp = 1
recompute = "none"
[search]
searcher = "prior"
max_trials = 3
confirm_top = 0
check_drift = false
"""


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def run_bash(
    script: str, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    keep = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    return subprocess.run(
        ["bash", "-c", script, *arguments],
        cwd=folder,
        env={**keep, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_action_is_a_composite_of_known_inputs() -> None:
    action = load("action.yml")
    assert action["runs"]["using"] == "composite"
    for name in ("base", "head", "study", "rounds", "threshold", "launcher"):
        assert action["inputs"][name]["description"]
    text = (ROOT / "action.yml").read_text()
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == set(action["inputs"])
    for step in action["runs"]["steps"]:
        assert "uses" in step or step["shell"] == "bash"
        # an input inside a script could be anything; it must come through the environment
        assert "${{" not in step.get("run", "")
    ids = {step.get("id") for step in action["runs"]["steps"]}
    assert set(re.findall(r"steps\.([a-z]+)\.", text)) <= ids


def test_the_workflow_uses_inputs_that_the_action_has() -> None:
    workflow = load("examples/ci/github-workflow.yml")
    steps = workflow["jobs"]["throughput"]["steps"]
    (ours,) = [step for step in steps if "/tuner@" in step.get("uses", "")]
    assert set(ours["with"]) <= set(load("action.yml")["inputs"])


def scripts() -> dict[str, str]:
    """Every piece of shell by its place."""
    job = load("examples/ci/gitlab-ci.yml")[".tuner-regression"]
    found = {"regression.sh": SCRIPT.read_text()}
    for step in load("action.yml")["runs"]["steps"]:
        if "run" in step:
            found[f"action: {step['name']}"] = step["run"]
    found["gitlab"] = "\n".join([*job["before_script"], *job["script"]])
    return found


@pytest.mark.parametrize("place", scripts())
def test_shell_steps_parse(place: str) -> None:
    command = ["bash", "-n", "-c", scripts()[place]]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_gitlab_job_and_the_script_measure_the_same() -> None:
    for option in (
        "--searcher prior --repeats 2",
        "--threshold",
        "--markdown",
        "tuner.cli compare",
    ):
        assert option in scripts()["gitlab"]
        assert option in scripts()["regression.sh"]


@pytest.mark.slow
def test_the_script_measures_in_turns_and_passes(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    summary = tmp_path / "summary.md"
    done = run_bash(
        str(SCRIPT), tmp_path, BASE_PYTHON=sys.executable, HEAD_PYTHON=sys.executable,
        STUDY="study.toml", ROUNDS="2", LAUNCHER="simulated", SUMMARY=str(summary),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "### Training throughput: same" in done.stdout
    assert summary.read_text().strip() in done.stdout
    order = re.findall(r"^study (ci-\d+-\d):", done.stderr, re.MULTILINE)
    assert [name[-1] for name in order] == ["1", "1", "2", "2"]
    # a later job has only the stored base: a slower head fails
    slower = STUDY.replace('preset = "dgx-a100-80"', f'path = "{tmp_path}/slow.toml"')
    (tmp_path / "study.toml").write_text(slower)
    (tmp_path / "slow.toml").write_text(SLOW)
    again = run_bash(
        str(SCRIPT), tmp_path, HEAD_PYTHON=sys.executable, HEAD_STORE="later.db",
        STUDY="study.toml", ROUNDS="1", LAUNCHER="simulated", GITHUB_STEP_SUMMARY=str(summary),
    )  # fmt: skip
    assert again.returncode == 7, again.stderr
    assert "### Training throughput: regression" in again.stdout
    assert summary.read_text().count("### Training throughput") == 2


SLOW = """
name = "slower"
device_kind = "cuda"
num_nodes = 1
devices_per_node = 8
memory_gib = 80
memory_gb_per_s = 800
peak_tflops = { fp32 = 5 }
"""


@pytest.mark.slow
def test_the_actions_own_step_reports_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "env" / "HEAD" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "HEAD" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    base = run_bash(
        str(SCRIPT), tmp_path, HEAD_PYTHON=sys.executable, BASE_PYTHON=sys.executable,
        STUDY="study.toml", ROUNDS="1", LAUNCHER="simulated",
    )  # fmt: skip
    assert base.returncode == 0, base.stderr
    step = next(s for s in load("action.yml")["runs"]["steps"] if s.get("id") == "compare")
    output = tmp_path / "output"
    # the runner's bash: bash --noprofile --norc -eo pipefail
    done = run_bash(
        f"set -eo pipefail\n{step['run']}", tmp_path, GITHUB_ACTION_PATH=str(ROOT),
        GITHUB_OUTPUT=str(output), ENVIRONMENTS=str(tmp_path / "env"), STUDY="study.toml",
        ROUNDS="1", THRESHOLD="0.05", LAUNCHER="simulated", BASE_STORE="base.db",
        HEAD_STORE="head.db",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert output.read_text() == "verdict=same\n"
