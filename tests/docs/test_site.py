"""The site builds without a warning, and needs nothing from the network to be read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("material", reason="mkdocs-material is not installed")


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "TUNER_REPO_URL": "https://example.org/t",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "index.html").read_text()
    assert "Quick start" in start
    assert (tmp_path / "images" / "loop.svg").exists()
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', start)
    assert [url for url in loaded if "example.org" not in url] == []
    slurm = (tmp_path / "deploy" / "slurm" / "index.html").read_text()
    assert "https://example.org/t/blob/main/deploy/slurm/study.sbatch" in slurm
