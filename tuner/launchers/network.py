"""Which interface and port the ranks of a trial meet on, and which devices they see."""

import socket
from collections.abc import Mapping, Sequence

import psutil

from trainer.contract import TrialJob
from tuner.errors import LauncherError

_VISIBLE_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
_CONNECT_TIMEOUT_S = 10.0
_ROUTE_PROBE_PORT = 9  # discard; a datagram socket's connect sends nothing


def free_port(host: str) -> int:
    """A TCP port of `host` (one of this machine's addresses) that nobody listens on."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def interface_towards(host: str) -> str | None:
    """Name of the interface that packets to `host` leave by; none where that is unknown."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, _ROUTE_PROBE_PORT))
        except OSError:
            return None
        source = probe.getsockname()[0]
    return interface_of(source)


def interface_of(address: str) -> str | None:
    """Name of the interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.split("%")[0] == address for known in addresses):
            return name
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def rank_environment(
    job: TrialJob, *, interface: str | None, device_ids: Sequence[str | int] | None
) -> Mapping[str, str]:
    """Variables of all ranks of a trial on one node.

    Args:
        job: The trial.
        interface: Network interface for gloo and NCCL or RCCL; none leaves the choice to them.
        device_ids: The node's GPUs that the trial may use. All its ranks see all of them and pick
            theirs by local rank, which peer-to-peer copies need.
    """
    found = {"OMP_NUM_THREADS": str(job.threads_per_rank)}
    if interface is not None:
        found["GLOO_SOCKET_IFNAME"] = interface
    if job.device_kind != "cpu":
        if interface is not None:
            found["NCCL_SOCKET_IFNAME"] = interface
        if device_ids is not None:
            found[_VISIBLE_DEVICES[job.device_kind]] = ",".join(map(str, device_ids))
    return found


def check_reachable(address: str) -> None:
    """Raise `LauncherError` where nobody listens at `host:port`; Ray itself takes minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return  # `auto`, or a form that Ray knows better
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise LauncherError(
            f"Ray at {address} cannot be used: nobody answers there ({error.strerror or error})",
            "give the address that `ray start --head` printed, or leave it out for a local cluster",
        ) from error
