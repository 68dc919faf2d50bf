"""`tuner doctor`: the machine, and a cluster where one is given."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tuner import doctor
from tuner.cli.checks import doctor as command
from tuner.doctor import Check
from tuner.errors import EnvironmentProblem
from tuner.launchers import checks
from tuner.launchers.checks import ClusterCheck, check_cluster
from tuner.testing.ray_nodes import environment, ray_nodes

GOOD = ClusterCheck(name="versions", is_ok=True, message="equal on all nodes")
SLOW = ClusterCheck(
    name="stragglers", is_ok=False, message="slower than the median node: b (2.0x)", hint="look"
)
TORN = ClusterCheck(name="collectives", is_ok=False, message="4 ranks: refused", hint="firewall")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Have the cluster found so; gives what it was asked with."""
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("python", True, "3.11"),))
    calls: list[dict[str, Any]] = []

    def answer(*found: ClusterCheck) -> list[dict[str, Any]]:
        def check(**options: Any) -> list[ClusterCheck]:
            calls.append(options)
            return list(found)

        monkeypatch.setattr(checks, "check_cluster", check)
        return calls

    return answer


def test_a_cluster_is_looked_at_when_one_is_given(
    asked: Callable[..., list[dict[str, Any]]],
) -> None:
    calls = asked(GOOD, SLOW)
    plain = CliRunner().invoke(command, [])
    assert plain.exit_code == 0
    assert calls == []
    options = ["--address", "head:6379", "--nodes", "2", "--device-kind", "cuda"]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, "a slow node is a warning"
    assert "warn  cluster stragglers: slower than the median node: b (2.0x)" in result.output
    assert "hint: look" in result.output
    assert calls == [
        {"address": "head:6379", "num_devices": None, "num_nodes": 2, "device_kind": "cuda"}
    ]


def test_a_cluster_that_cannot_work_is_an_environment_problem(
    asked: Callable[..., list[dict[str, Any]]],
) -> None:
    asked(GOOD, TORN)
    result = CliRunner().invoke(command, ["--devices", "4", "--json"])
    assert result.exit_code == EnvironmentProblem.exit_code
    last = json.loads(result.output)[-1]
    assert (last["name"], last["is_ok"], last["hint"]) == ("cluster collectives", False, "firewall")


def test_a_check_that_breaks_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> list[ClusterCheck]:
        raise RuntimeError("Ray said no")

    monkeypatch.setattr(checks, "check_cluster", broken)
    (found,) = doctor.run_cluster_checks(address="head:6379")
    assert not found.is_ok
    assert "Ray said no" in found.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--address", "a:1", "--devices", "2"], "--devices is for a local cluster"),
        (["--nodes", "2"], "--nodes needs the --address"),
        (["--device-kind", "tpu"], "cuda"),
        (["--devices", "0"], "x>=1"),
    ],
)
def test_options_that_do_not_fit(options: list[str], words: str) -> None:
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert words in result.output


@pytest.fixture(scope="module")
def cluster_address() -> Iterator[str]:
    variables = environment()
    with pytest.MonkeyPatch.context() as patch, ray_nodes((2, 1), variables) as nodes:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield nodes.address


@pytest.mark.slow
@pytest.mark.ray
def test_a_real_cluster_of_two_nodes(cluster_address: str) -> None:
    found = {item.name: item for item in check_cluster(address=cluster_address, num_nodes=2)}
    required = ("joined", "nodes", "versions", "collectives")
    assert all(found[name].is_ok for name in required), found
    assert "2 of 2 nodes" in found["joined"].message
    assert "4 MB over 3 ranks" in found["collectives"].message


@pytest.mark.slow
@pytest.mark.ray
def test_nodes_that_do_not_join_are_counted(
    cluster_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_JOIN_TIMEOUT_S", 1.0)
    found = {item.name: item for item in check_cluster(address=cluster_address, num_nodes=3)}
    assert not found["joined"].is_ok
    assert "2 of 3 nodes" in found["joined"].message


@pytest.mark.slow
@pytest.mark.ray
def test_nobody_at_the_address_is_a_sentence() -> None:
    (found,) = check_cluster(address="127.0.0.1:1")
    assert not found.is_ok
    assert found.message
    assert "Traceback" not in found.message
