"""`Domain`: the values that one knob may take, and the domains that a study starts from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints.base import Setting, choices, divisors, value_text
from search_spaces.constraints.kernel_support import RULES as KERNEL_RULES
from search_spaces.errors import SpaceError
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import KNOBS, ParallelConfig
from search_spaces.sources import did_you_mean
from search_spaces.training_spec import TrainingSpec

_LARGEST_MICRO_BATCH: Final = 64
_LARGEST_TP: Final = 64
_LONG_SEQUENCE: Final = 16384


@dataclass(frozen=True)
class Domain:
    """The values of one knob, checked and without repeats, in the order given.

    Raises:
        SpaceError: the knob does not exist, there is no value, or a value is impossible; the
            message names the legal ones.
    """

    knob: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.knob not in KNOBS:
            raise _unknown_knob(self.knob)
        values = tuple(dict.fromkeys(_checked(self.knob, value) for value in self.values))
        if not values:
            raise SpaceError(f"the domain of {self.knob} is empty", _legal_hint(self.knob))
        object.__setattr__(self, "values", values)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


def make_domains(domains: Mapping[str, Sequence[Any]]) -> dict[str, Domain]:
    """Check domains given by name.

    Raises:
        SpaceError: as `Domain`; also when a domain is a lone value and not a sequence.
    """
    made = {}
    for knob, values in domains.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SpaceError(f"the domain of {knob} is {values!r}, not a list of values")
        made[knob] = Domain(knob, tuple(values))
    return made


@lru_cache(maxsize=len(KNOBS))
def _adapter(knob: str) -> TypeAdapter[Any]:
    """Checks a value exactly as the field of `ParallelConfig` does."""
    field = ParallelConfig.model_fields[knob]
    checked: Any = Annotated[field.annotation, *field.metadata, "knob"]
    return TypeAdapter(checked, config=ConfigDict(strict=True))


def _checked(knob: str, value: Any) -> Any:
    value = tuple(value) if isinstance(value, list) else value
    try:
        return _adapter(knob).validate_python(value)
    except ValidationError:
        raise SpaceError(
            f"{knob} cannot be {value!r}", _close_hint(knob, value) + _legal_hint(knob)
        ) from None


def _unknown_knob(name: str) -> SpaceError:
    return SpaceError(
        f"there is no knob {name!r}", f"{did_you_mean(name, KNOBS)}knobs: {', '.join(KNOBS)}"
    )


def _close_hint(knob: str, value: Any) -> str:
    return did_you_mean(str(value), [word for word in choices(knob) if isinstance(word, str)])


_SPECIAL_HINTS: Final = {
    "zero_stage": "legal: 0, 1, 2 or 3",
    "zero_shard_degree": "legal: 0 (the whole data group) or an integer of at least 2",
    "stage_layers": "legal: a list of layers per stage, or none for the even split",
    "recompute_layers": "legal: an integer of at least 0, or none for all layers",
}


def _legal_hint(knob: str) -> str:
    if knob in _SPECIAL_HINTS:
        return _SPECIAL_HINTS[knob]
    words = choices(knob)
    if words:
        return "legal: " + ", ".join(map(value_text, words))
    return "legal: integers of at least 1"


def default_domains(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    use_all_devices: bool = True,
) -> dict[str, tuple[Any, ...]]:
    """The domains of all knobs for a study that names none.

    Searched are the factors of the device count, the micro-batch size, ZeRO, recomputation,
    sequence parallelism and the schedule; expert parallelism for mixtures, context parallelism for
    long sequences, and hybrid sharding over several nodes. Everything else keeps its default, and
    the precision that of the recipe. A CPU's space leaves out what pays on accelerators only.
    """
    domains: dict[str, tuple[Any, ...]] = {
        knob: (field.default,) for knob, field in ParallelConfig.model_fields.items()
    }
    counts = _device_factors(cluster.num_devices, use_all_devices=use_all_devices)
    domains |= {
        "dp": tuple(count for count in counts if training.global_batch_size % count == 0) or (1,),
        "tp": tuple(count for count in counts if count <= _LARGEST_TP),
        "pp": tuple(count for count in counts if count <= model.num_layers),
        "tp_layout": _tensor_layouts(Setting(model, training, cluster, use_all_devices)),
        "micro_batch_size": _micro_batch_sizes(training, cluster),
        "dtype": (training.dtype,),
    }
    if model.num_experts:
        domains["ep"] = tuple(count for count in counts if model.num_experts % count == 0)
    if training.sequence_length >= _LONG_SEQUENCE:
        domains["cp"] = tuple(count for count in counts if count in (1, 2, 4, 8, 16))
    return domains | _default_switches(model, training, cluster)


def _device_factors(num_devices: int, *, use_all_devices: bool) -> tuple[int, ...]:
    """Sizes of a group of ranks: divisors of the device count; else powers of two as well."""
    factors = set(divisors(num_devices))
    if not use_all_devices:
        factors |= {1 << power for power in range(num_devices.bit_length())}
    return tuple(sorted(factors))


def _tensor_layouts(setting: Setting) -> tuple[str, ...]:
    """1D, and 2D where the kernel runs it; 2.5D has a depth to choose and must be asked for."""
    config = ParallelConfig(tp_layout="2d")
    is_supported = all(rule.allows(config, setting) for rule in KERNEL_RULES)
    return ("1d", "2d") if is_supported else ("1d",)


def _micro_batch_sizes(training: TrainingSpec, cluster: ClusterSpec) -> tuple[int, ...]:
    """Divisors of the global batch; beyond 16 of them, those that are powers of two."""
    most = _LARGEST_MICRO_BATCH if cluster.device_kind != "cpu" else _LARGEST_MICRO_BATCH // 2
    sizes = [size for size in divisors(training.global_batch_size) if size <= most]
    if len(sizes) > 16:
        sizes = [size for size in sizes if size & (size - 1) == 0]
    return tuple(sizes)


def _default_switches(
    model: ModelSpec, training: TrainingSpec, cluster: ClusterSpec
) -> dict[str, tuple[Any, ...]]:
    """Domains of the knobs that are no sizes of groups."""
    is_cpu = cluster.device_kind == "cpu"
    if training.workload == "inference":
        return {
            "sequence_parallel": (False, True),
            "pipeline_schedule": ("1f1b", "interleaved"),
            "virtual_stages": _virtual_stages(model, (1, 2)),
        }
    several_nodes = cluster.num_nodes > 1 and cluster.devices_per_node > 1
    return {
        "sequence_parallel": (False, True),
        "pipeline_schedule": choices("pipeline_schedule"),
        "virtual_stages": _virtual_stages(model, (1, 2) if is_cpu else (1, 2, 3, 4, 6, 8)),
        "zero_stage": (0, 1, 2, 3),
        "zero_shard_degree": (0, cluster.devices_per_node) if several_nodes else (0,),
        "recompute": ("none", "full") if is_cpu else choices("recompute"),
    }


def _virtual_stages(model: ModelSpec, counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in counts if model.num_layers % count == 0)
