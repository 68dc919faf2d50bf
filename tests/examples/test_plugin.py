"""The example plug-in, installed for real: its parts are found through its entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.testing.exporter_contract import ExporterContract
from tuner.testing.searcher_contract import SearcherContract

SOURCE = Path(__file__).parents[2] / "examples" / "python" / "plugin"
sys.path.append(str(SOURCE))  # for the contracts alone; entry points need the installed one

from tuner_plugin_example import FrugalSearcher, ShellExporter  # noqa: E402


class TestFrugal(SearcherContract):
    searcher_class = FrugalSearcher


class TestShell(ExporterContract):
    exporter_class = ShellExporter


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the plug-in as a distribution."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder), str(SOURCE),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    assert list(folder.glob("*.dist-info/entry_points.txt"))
    return folder


def tuner(site: Path | None, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, "-m", "tuner.cli", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_parts_run_and_are_unknown_without_the_plug_in(site: Path, tmp_path: Path) -> None:
    study = (
        "run", "--model", "gpt2-124m", "--devices", "8", "--set", "cluster.preset=dgx-a100-80",
        "--searcher", "frugal", "--launcher", "shared-network", "--max-trials", "3", "--plain",
        "--set", "launcher.options.load=0.2", "--set", "space.tp_layout=1d",
        "--set", "search.confirm_top=0",
    )  # fmt: skip
    done = tuner(site, *study, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    board = json.loads(done.stdout)["leaderboard"]
    assert len(board) == 3
    exported = tuner(site, "export", "--to", "shell", "--nearest", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert "ZERO_STAGE=" in exported.stdout
    missing = tuner(None, *study, cwd=tmp_path)
    assert missing.returncode == 2
    assert "unknown searcher 'frugal'" in missing.stderr


def test_they_stand_beside_ours(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tuner import registry

    monkeypatch.syspath_prepend(str(site))
    for group, name in (
        ("searchers", "frugal"),
        ("launchers", "shared-network"),
        ("exporters", "shell"),
    ):
        assert name in registry.names(group)
        assert registry.load(group, name).name == name


def test_a_plug_in_that_takes_a_name_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner import registry
    from tuner.errors import ConfigError

    info = tmp_path / "rogue-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tuner.launchers]\nray = rogue:Launcher\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="two plug-ins are called 'ray'"):
        registry.names("launchers")
    (info / "entry_points.txt").write_text("[tuner.launchers]\nbroken = rogue:Launcher\n")
    with pytest.raises(ConfigError, match="plug-in 'broken' cannot be loaded: No module named"):
        registry.load("launchers", "broken")
    assert registry.load("launchers", "local").name == "local"
