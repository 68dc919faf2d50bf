"""Build the wheel, look into it, install it into a clean place and run the command from elsewhere.

The environment's libraries are reused (`--system-site-packages` of a fresh virtual environment), so
that no large download is needed, but the four packages come from the wheel alone.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {"tuner", "trainer", "search_spaces", "results_db"}
ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in `folder` and return its output; a failure ends the check with its words."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_contents(wheel: Path) -> None:
    """The wheel holds exactly our four packages, their data files, and its own metadata."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    if tops != PACKAGES:
        raise SystemExit(f"the wheel's top-level names are {sorted(tops)}, not {sorted(PACKAGES)}")
    presets = [name for name in names if name.startswith("search_spaces/presets/models/")]
    migrations = [name for name in names if name.startswith("results_db/migrations/")]
    if not presets or not migrations or "results_db/views.sql" not in names:
        raise SystemExit("the wheel lacks model presets, database migrations or views")
    dashboard = {"cookbook.md", "templates/study.html", "static/htmx.min.js"}
    if absent := [name for name in dashboard if f"tuner/web/app/{name}" not in names]:
        raise SystemExit(f"the wheel lacks files of the dashboard: {', '.join(sorted(absent))}")
    print(f"{wheel.name}: {len(names)} files, packages {', '.join(sorted(tops))}")


def add_path_of_libraries(environment: Path) -> None:
    """Let the fresh environment see the libraries of this one, but not our own packages."""
    libraries = Path(next(p for p in sys.path if p.endswith("site-packages")))
    target = next(environment.glob("lib/python*/site-packages"))
    # A plain path line does not process the editable install's own .pth, so our checkout stays out.
    (target / "libraries.pth").write_text(f"{libraries}\n")


def main() -> None:
    """Run the whole check; exits non-zero with one reason."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
        run(sys.executable, *build, folder=folder)
        wheel = next(folder.glob("*.whl"))
        check_contents(wheel)
        environment = folder / "env"
        run(sys.executable, "-m", "venv", environment, folder=folder)
        add_path_of_libraries(environment)
        python = environment / "bin" / "python"
        install = ("-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
        run(python, *install, folder=folder)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        # The likeliest file in a user's folder must not be run in place of ours.
        (elsewhere / "trainer.py").write_text("raise SystemExit('a user file was run')\n")
        place = run(python, "-P", "-c", "import tuner; print(tuner.__file__)", folder=elsewhere)
        if str(environment) not in place:
            raise SystemExit(f"the clean environment runs {place.strip()}, not the wheel's tuner")
        for arguments in (["--version"], ["--help"], ["run", "--model", "gpt2-tiny", "--dry-run"]):
            run(environment / "bin" / "tuner", *arguments, folder=elsewhere)
        run(environment / "bin" / "tuner", "smoke", folder=elsewhere)
    print("the installed wheel runs: --version, --help, run --dry-run, smoke")


if __name__ == "__main__":
    main()
