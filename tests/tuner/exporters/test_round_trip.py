"""Exports read back by the trainers' own parsers.

The packages are those that `make round-trip` puts under `.round-trip`, each without what it needs
for training; a reader runs as a process of its own with one of them on its path.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.contract import TrialJob
from tuner import registry
from tuner.ports import ExportRequest
from tuner.testing.exporter_contract import covering

_HERE = Path(__file__).parent / "round_trip"
_PACKAGES = Path(os.environ.get("ROUND_TRIP", Path(__file__).parents[3] / ".round-trip"))
# exporter -> the folder of its packages; none: they are in the environment of the tests
_FOLDERS = {
    "accelerate": None,
    "axolotl": "axolotl",
    "colossalai": "colossalai",
    "deepspeed": "deepspeed",
    "gpt-neox": "deepspeed",
    "megatron-bridge": "megatron-bridge",
    "megatron-deepspeed": "deepspeed",
    "megatron-lm": "megatron-lm",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "torchtitan-toml": "torchtitan-toml",
}
_NUM_EXPORTS = 25


def _write(requests: list[ExportRequest], name: str, folder: Path) -> None:
    exporter = registry.load("exporters", name)()
    for number, request in enumerate(requests):
        place = folder / str(number)
        place.mkdir()
        for file, text in exporter.export(request).files.items():
            (place / file).write_text(text)
        (place / "num_layers").write_text(str(request.model.num_layers))
    worlds = [request.config.world_size for request in requests]
    (folder / "world_sizes.json").write_text(json.dumps(worlds))


def _read_back(name: str, folder: Path, packages: Path | None) -> list[dict]:
    reader = _HERE / f"read_{name.replace('-', '_')}.py"
    path = [str(packages)] if packages else []
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(reader), str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**environment, "PYTHONPATH": os.pathsep.join(path), "WANDB_DISABLED": "true"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _wanted(request: ExportRequest) -> dict:
    knobs = request.config.model_dump(mode="json")
    return knobs | {
        "num_microbatches": request.num_microbatches,
        "global_batch_size": request.training.global_batch_size,
        "sequence_length": request.training.sequence_length,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_FOLDERS))
def test_the_trainers_parser_reads_the_knobs_back(name: str, tmp_path: Path) -> None:
    folder = _FOLDERS[name]
    packages = _PACKAGES / folder if folder else None
    if packages is not None and not packages.is_dir():
        pytest.skip(f"{packages.name} is not installed for this: make round-trip")
    if packages is None and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: it is among the packages of `dev`")
    requests = covering(registry.load("exporters", name)(), _NUM_EXPORTS)
    assert len(requests) >= 5
    _write(requests, name, tmp_path)
    found = _read_back(name, tmp_path, packages)
    assert len(found) == len(requests)
    for request, read in zip(requests, found, strict=True):
        wanted = _wanted(request)
        assert read == {key: wanted[key] for key in read}, request.config.canonical()
        # what is not read back must at least be said somewhere, or be neutral
        assert {"dp", "micro_batch_size", "zero_stage", "dtype"} <= set(read)


def test_every_exporter_has_a_round_trip_or_a_reason() -> None:
    for name in registry.EXPORTERS:
        reader = _HERE / f"read_{name.replace('-', '_')}.py"
        assert reader.is_file() or name == "tuner"
        assert registry.load("exporters", name).round_trip


def test_our_own_job_is_read_back_whole() -> None:
    exporter = registry.load("exporters", "tuner")()
    for request in covering(exporter, 40):
        job = TrialJob.model_validate_json(exporter.export(request).files["job.json"])
        assert job.config == request.config
        assert (job.model, job.training) == (request.model, request.training)
