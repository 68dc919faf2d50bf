"""Which devices of which nodes a trial gets: pure arithmetic over nodes of any size.

Ranks are numbered node by node, and the mesh numbers tp fastest, then cp and ep, then dp, then pp.
So whole tensor-parallel groups per node are enough to keep the chattiest traffic inside a node, and
what crosses nodes is pipeline traffic first and data-parallel traffic next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.parallel_config import ParallelConfig
from tuner.errors import LauncherError


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    """A node's devices: all of them and those that are free."""

    node_id: str
    hostname: str
    total: int
    free: int


def plan_bundles(
    nodes: Sequence[NodeSlots], config: ParallelConfig, *, split_tensor_parallel: bool = False
) -> tuple[int, ...] | None:
    """Devices per node, for as few nodes as possible; none when the free ones do not suffice now.

    Args:
        nodes: Living nodes.
        config: Its `world_size` ranks are placed in groups of `tp` that stay on one node.
        split_tensor_parallel: Whether a tensor-parallel group may be spread over nodes.

    Returns:
        The sizes of the parts in the order of their ranks, the sum of which is the world size.
    """
    unit = 1 if split_tensor_parallel else config.tp
    wanted = config.world_size
    if any(node.free >= wanted for node in nodes):
        return (wanted,)
    parts: list[int] = []
    for usable in sorted((node.free // unit * unit for node in nodes), reverse=True):
        part = min(usable, wanted - sum(parts))
        if part:
            parts.append(part)
    return tuple(parts) if sum(parts) == wanted else None


def check_can_ever_fit(
    nodes: Sequence[NodeSlots],
    config: ParallelConfig,
    *,
    resource: str,
    split_tensor_parallel: bool = False,
) -> None:
    """Refuse a trial that would wait for ever.

    Raises:
        LauncherError: Even with every device free; says which resource is missing.
    """
    empty = [
        NodeSlots(node_id=node.node_id, hostname=node.hostname, total=node.total, free=node.total)
        for node in nodes
    ]
    if plan_bundles(empty, config, split_tensor_parallel=split_tensor_parallel) is not None:
        return
    total = sum(node.total for node in nodes)
    sizes = ", ".join(f"{node.hostname}: {node.total}" for node in nodes) or "no node is alive"
    if config.world_size > total:
        missing = config.world_size - total
        raise LauncherError(
            f"a trial of {config.world_size} ranks can never run: {missing} {resource} are missing"
            f" ({total} in all; {sizes})",
            "add nodes or lower tp, pp, dp or cp",
        )
    raise LauncherError(
        f"a trial of {config.world_size} ranks in tensor-parallel groups of {config.tp} can never"
        f" run: too few nodes have {config.tp} {resource} to give ({sizes})",
        "lower tp, or let groups span nodes with split_tensor_parallel = true",
    )
