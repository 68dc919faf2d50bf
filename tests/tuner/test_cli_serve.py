"""`tuner serve` as a process: it starts, answers, refuses what it must, and ends on Ctrl-C."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import results_db
from tuner.cli import main
from tuner.testing.example_studies import add_example_study


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "results.db"
    with results_db.open(path) as store:
        add_example_study(store)
    return path


def start(*options):
    command = [sys.executable, "-m", "tuner.cli", "serve", "--port", "0", *map(str, options)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    return process, process.stdout.readline().strip()


def end(process):
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_serves_until_interrupted(database):
    process, address = start("--store", database)
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert "example" in answer.read().decode()
            assert "server" not in {name.lower() for name in answer.headers}
    finally:
        code, out, err = end(process)
    assert code == 0
    assert "Traceback" not in err
    assert "stopped" in err
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    assert out == ""


def test_with_a_token_nothing_else_opens(database):
    process, address = start("--store", database, "--token")
    try:
        bare = address.partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(bare, timeout=30)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=30) as answer:
            assert "token" not in answer.url
            assert "example" in answer.read().decode()
    finally:
        _, _, err = end(process)
    assert address.partition("token=")[2] not in err


def test_taken_port_is_said(database, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--store", str(database), "--port", str(port)]) == 4
    assert f"port {port} is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--store", "absent.db"], 5, "There is no database"),
        (["--host", "no.such.host.invalid"], 2, "no address of this machine"),
        (["--host", "203.0.113.7"], 2, "no address of this machine"),
        (["--port", "99999"], 2, "99999"),
    ],
)
def test_what_cannot_be_is_one_sentence(database, capsys, options, code, words):
    store = [] if "--store" in options else ["--store", str(database)]
    assert main(["serve", *store, *options]) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
