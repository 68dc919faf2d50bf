"""What the rules of the mathematics allow but the training kernel does not run (yet).

Each entry refuses its points with its reason before any process starts. Remove an entry when the
kernel's oracle tests cover what it refuses.
"""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


@dataclass(frozen=True)
class Unsupported:
    """A part of the space that the kernel cannot run: the points for which `matches` is true."""

    name: str
    knobs: tuple[str, ...]
    matches: Callable[[ParallelConfig, Setting], bool]
    reason: str


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "kernel_compiled_mesh",
        ("compile", "tp_layout"),
        lambda config, _: config.compile and config.tp_layout != "1d",
        "a compiled layer cannot hold the panels' collectives, so tp_layout 1d alone compiles",
    ),
    Unsupported(
        "kernel_compiled_split_backward",
        ("compile", "pipeline_schedule"),
        lambda config, _: config.compile and config.pipeline_schedule in ("zero_bubble", "zbv"),
        "compiled layers compute both gradients at once, so a split backward pass gains nothing",
    ),
    Unsupported(
        "kernel_mesh_experts",
        ("tp_layout",),
        lambda config, setting: config.tp_layout != "1d" and setting.model.num_experts > 0,
        "the kernel splits mixtures of experts by tp_layout 1d alone",
    ),
)


def _constraint(entry: Unsupported) -> Constraint:
    return Constraint(
        entry.name,
        entry.knobs,
        lambda config, setting: not entry.matches(config, setting),
        lambda _config, _setting: entry.reason,
    )


RULES: tuple[Constraint, ...] = tuple(map(_constraint, UNSUPPORTED))
