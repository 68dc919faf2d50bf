"""Artificial links: namespaces appear, are limited, and leave nothing behind."""

import subprocess

import pytest

from benchmarks.links import INTERFACE, LinkError, Links


def namespaces() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LinkError, match=r"program ip .* is not installed"):
        Links(2)


def test_links_are_limited_and_removed() -> None:
    try:
        links = Links(2)
    except LinkError as error:
        pytest.skip(f"no artificial links here: {error}")
    before = namespaces()
    with links:
        links.limit(25.0)
        command = [*links.prefix(0), "tc", "qdisc", "show", "dev", INTERFACE]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "tbf" in shown
        assert "rate 25Mbit" in shown
        ping = [*links.prefix(0), "bash", "-c", "cat < /dev/null > /dev/tcp/10.77.0.2/9"]
        refused = subprocess.run(ping, capture_output=True, text=True, check=False, timeout=10)
        assert "refused" in refused.stderr  # the other end answers, though nobody listens
    assert len(before - namespaces()) == 3  # a hub and two ranks
