"""The scripts of `deploy/` here: fake `srun`, `scontrol` and `ssh` start local processes.

Two Ray nodes with a device each come up as they would on two machines, are checked, and in the case
of Slurm run a small study on the real trainer.
"""

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tuner.testing.processes import is_alive, left_after

DEPLOY = Path(__file__).parents[2] / "deploy"
SBATCH = DEPLOY / "slurm" / "study.sbatch"
HOSTS = DEPLOY / "hosts" / "start.sh"
BASH = shutil.which("bash") or "bash"

PROGRAMS = {
    "srun": """
while [[ ${1:-} == -* ]]; do
    if [ "$1" = -w ]; then shift; fi
    shift
done
echo "$*" >> "$FAKE_LOG"
exec "$@"
""",
    "scontrol": """
[ "$1 $2" = "show hostnames" ] || exit 1
printf 'node1\\nnode2\\n'
""",
    # the remote side of ssh: a shell of its own, with a home of its own
    "ssh": """
host=$1; shift
mkdir -p "$FAKE_ROOT/$host"
echo "$host: $*" >> "$FAKE_LOG"
HOME="$FAKE_ROOT/$host" exec bash -c "$*"
""",
}
STUDY = """
name = "deployed"
[model]
source = "gpt2-tiny"
[training]
sequence_length = 32
global_batch_size = 4
[space]
micro_batch_size = [1, 2]
zero_stage = 0
recompute = "none"
[search]
searcher = "random"
max_trials = 2
confirm_top = 0
check_drift = false
early_stop = false
[measure]
warmup_steps = 1
measured_steps = 3
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])


def processes_with(word: str) -> list[psutil.Process]:
    """Living processes with a word in their command line, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            is_match = word in " ".join(process.cmdline())
        except psutil.Error:
            continue
        if is_match and process.pid != os.getpid() and is_alive(process):
            found.append(process)
    return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the fake programs first on PATH, and what ends whatever is left."""
    for name, body in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{BASH}\nset -eu{body}")
        program.chmod(0o755)
    (tmp_path / "study.toml").write_text(STUDY)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "FAKE_LOG": str(tmp_path / "calls.txt"),
        "FAKE_ROOT": str(tmp_path / "hosts"),
        "TUNER_PORT": str(free_port()),
    }
    # short enough for the sockets of Ray
    scratch = Path(tempfile.mkdtemp(prefix="tsd"))
    environment["TMPDIR"] = str(scratch)
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "TUNER_STORE"):
        environment.pop(name, None)
    yield tmp_path, environment
    for process in processes_with(str(tmp_path)) + processes_with(str(scratch)):
        process.kill()
    shutil.rmtree(scratch, ignore_errors=True)


def run(
    command: list[str], folder: Path, environment: Mapping[str, str], timeout_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", [SBATCH, HOSTS], ids=lambda path: path.name)
def test_scripts_are_bash(script: Path) -> None:
    assert subprocess.run([BASH, "-n", str(script)], check=False).returncode == 0
    assert os.access(HOSTS, os.X_OK)


def test_a_slurm_job_without_a_study_says_how(bench: tuple[Path, dict[str, str]]) -> None:
    folder, environment = bench
    done = run([BASH, str(SBATCH)], folder, environment)
    assert done.returncode != 0
    assert "usage: sbatch deploy/slurm/study.sbatch STUDY.toml" in done.stderr


@pytest.mark.parametrize("host", ["node1; rm -rf x", "$(id)", "a b", "`id`", "a&b"])
def test_a_host_is_never_a_command(bench: tuple[Path, dict[str, str]], host: str) -> None:
    folder, environment = bench
    environment["TUNER_VENV"] = sys.prefix
    done = run([str(HOSTS), "up", host], folder, environment)
    assert done.returncode == 2
    assert "has a character that a path, host or number does not need" in done.stderr
    assert not (folder / "calls.txt").exists()


def slurm(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """What Slurm tells a job of two nodes with one processor each."""
    return environment | {
        "SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_ON_NODE": "1", "TUNER_VENV": sys.prefix,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_a_slurm_job_runs_a_study_on_two_nodes(bench: tuple[Path, dict[str, str]]) -> None:
    folder, environment = bench
    scratch = f"tuner-ray-job-{os.getpid()}"
    done = run([BASH, str(SBATCH), "study.toml"], folder, slurm(folder, environment))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cluster joined: 2 of 2 nodes" in done.stdout
    with sqlite3.connect(folder / "tuner_runs" / "results.db") as link:
        statuses = link.execute("SELECT status, COUNT(*) FROM trials GROUP BY status").fetchall()
        hosts = link.execute("SELECT COUNT(*) FROM ranks").fetchone()
    assert statuses == [("completed", 2)]
    assert hosts == (4,)
    calls = (folder / "calls.txt").read_text()
    assert calls.count("ray start --block") == 2
    assert not left_after(processes_with(scratch), 10.0)
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_slurm_job_that_is_ended_leaves_nothing(bench: tuple[Path, dict[str, str]]) -> None:
    """Slurm sends SIGTERM before the time limit: the study is stored as interrupted."""
    folder, environment = bench
    endless = STUDY.replace("measured_steps = 3", "measured_steps = 100000\ndeadline_s = 900")
    (folder / "study.toml").write_text(endless)
    job = subprocess.Popen(
        [BASH, str(SBATCH), "study.toml"], cwd=folder, env=slurm(folder, environment),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    database = folder / "tuner_runs" / "results.db"

    def asked(query: str) -> object:
        with sqlite3.connect(database) as link:
            return link.execute(query).fetchone()

    def is_running() -> bool:
        try:
            return database.exists() and asked(
                "SELECT COUNT(*) FROM trials WHERE status = 'running'"
            ) == (1,)
        except sqlite3.Error:
            return False

    wait(is_running, 150.0, job)
    job.send_signal(signal.SIGTERM)
    job.wait(60.0)
    assert asked("SELECT status FROM studies") == ("interrupted",)
    assert asked("SELECT status FROM trials") == ("queued",)
    assert not left_after(processes_with(f"tuner-ray-job-{os.getpid()}"), 15.0)


def wait(condition: Callable[[], bool], timeout_s: float, job: "subprocess.Popen[bytes]") -> None:
    import time

    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return
        assert job.poll() is None, "the job ended early"
        time.sleep(0.2)
    raise TimeoutError("the job did not come so far")


RAY = """#!{bash}
set -eu
# the real one ends every Ray of this user; the test ends its own by itself
[ "$1" = stop ] && exit
case " $* " in *" --head "*) set -- "$@" --temp-dir={folder}/ray;; esac
exec {ray} "$@"
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_plain_hosts_come_up_are_checked_and_go_down(bench: tuple[Path, dict[str, str]]) -> None:
    folder, environment = bench
    venv = folder / "venv" / "bin"
    venv.mkdir(parents=True)
    real = Path(sys.prefix) / "bin"
    (venv / "python").symlink_to(real / "python")
    (venv / "ray").write_text(RAY.format(bash=BASH, folder=environment["TMPDIR"], ray=real / "ray"))
    (venv / "ray").chmod(0o755)
    token_file = folder / "token"
    environment |= {
        "TUNER_VENV": str(venv.parent), "TUNER_CPUS": "1", "TUNER_TOKEN_FILE": str(token_file)
    }  # fmt: skip
    try:
        up = run([str(HOSTS), "up", "node1", "node2"], folder, environment)
        assert up.returncode == 0, up.stdout + up.stderr
        address = re.findall(r"^address: (\S+)$", up.stdout, re.MULTILINE)[0]
        assert address.endswith(f":{environment['TUNER_PORT']}")
        token = token_file.read_text()
        assert token not in (folder / "calls.txt").read_text(), "no command line shows the token"
        assert token_file.stat().st_mode & 0o077 == 0
        client = environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        doctor = run(
            [str(real / "tuner"), "doctor", "--address", address, "--nodes", "2"], folder, client
        )
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        assert "cluster joined: 2 of 2 nodes" in doctor.stdout
        assert "cluster collectives: 4 MB over 2 ranks" in doctor.stdout
    finally:
        down = run([str(HOSTS), "down", "node1", "node2"], folder, environment)
    assert down.returncode == 0
    calls = (folder / "calls.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in calls if line.endswith("ray stop")] == ["node1", "node2"]
