"""What the readers share: they are run as scripts, with the folders of the exports to read."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(read: Callable[[Path, int], dict[str, Any]]) -> None:
    """Read the exports in FOLDER/0, FOLDER/1, ... and print one JSON list of our knobs."""
    folder = Path(sys.argv[1])
    worlds = json.loads((folder / "world_sizes.json").read_text())
    found = [read(folder / str(number), world) for number, world in enumerate(worlds)]
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def words(path: Path) -> list[str]:
    """Flags and values of an argument file."""
    lines = path.read_text().splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split(" ")]


def precision(name: str) -> str:
    """A trainer's word for a precision in ours."""
    known = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "no": "fp32"}
    short = name.removeprefix("torch.")
    return known.get(short, short)
