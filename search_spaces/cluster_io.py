"""Reading and writing clusters: presets by name and TOML files, with human units in their keys.

`memory_gib` are 2^30 bytes, `*_gb_per_s` 10^9 bytes a second per device and direction, `*_us`
microseconds, `*_tflops` 10^12 operations a second by precision, `gemm_gflop` 10^9 operations.
`ClusterSpec` holds SI units.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from search_spaces.cluster_spec import ClusterSpec, DeviceKind, LinkSpec
from search_spaces.errors import ClusterSpecError
from search_spaces.parallel_config import Precision
from search_spaces.sources import did_you_mean, find_file

PRESETS_FOLDER: Final = Path(__file__).parent / "presets" / "clusters"
_GIB: Final = 2**30


_Positive = Annotated[float, Field(gt=0)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Link(_Table):
    """A link as people write it."""

    alpha_us: float = Field(ge=0)
    gb_per_s: float = Field(gt=0)

    def spec(self) -> LinkSpec:
        """The same in SI units."""
        return LinkSpec(alpha_s=self.alpha_us / 1e6, bytes_per_s=self.gb_per_s * 1e9)


class _Cluster(_Table):
    """A cluster as people write it; what is left out takes the default of `ClusterSpec`."""

    name: str | None = None
    device_kind: DeviceKind | None = None
    device_name: str | None = None
    num_nodes: int | None = Field(default=None, ge=1)
    devices_per_node: int | None = Field(default=None, ge=1)
    memory_gib: float | None = Field(default=None, ge=1 / 1024)
    memory_gb_per_s: float | None = Field(default=None, gt=0)
    peak_tflops: dict[Precision, _Positive] | None = None
    threads_per_device: int | None = Field(default=None, ge=1)
    ranks_per_core: float | None = Field(default=None, ge=1)
    intra_node: _Link | None = None
    inter_node: _Link | None = None
    nics_per_node: int | None = Field(default=None, ge=1)
    price_per_device_hour: float | None = Field(default=None, ge=0)
    host_forward_us: float | None = Field(default=None, gt=0)
    host_backward_us: float | None = Field(default=None, gt=0)
    gemm_gflop: list[_Positive] | None = None
    gemm_tflops: dict[Precision, list[_Positive]] | None = None

    def spec(self) -> ClusterSpec:
        """The same in SI units."""
        fields: dict[str, Any] = {
            name: value
            for name, value in self
            if value is not None and name in ClusterSpec.model_fields
        }
        if self.memory_gib is not None:
            fields["memory_bytes"] = round(self.memory_gib * _GIB)
        if self.memory_gb_per_s is not None:
            fields["memory_bytes_per_s"] = self.memory_gb_per_s * 1e9
        if self.peak_tflops is not None:
            fields["peak_flops_per_s"] = {
                precision: peak * 1e12 for precision, peak in self.peak_tflops.items()
            }
        for name, micro_s in (
            ("host_forward_s", self.host_forward_us),
            ("host_backward_s", self.host_backward_us),
        ):
            if micro_s is not None:
                fields[name] = micro_s / 1e6
        if self.gemm_gflop is not None:
            fields["gemm_flops"] = [size * 1e9 for size in self.gemm_gflop]
        if self.gemm_tflops is not None:
            fields["gemm_flops_per_s"] = {
                precision: [rate * 1e12 for rate in rates]
                for precision, rates in self.gemm_tflops.items()
            }
        for link in ("intra_node", "inter_node"):
            if link in fields:
                fields[link] = fields[link].spec()
        return ClusterSpec(**fields)


def cluster_preset_names() -> tuple[str, ...]:
    """Names of the clusters that ship with the tuner, sorted."""
    return tuple(sorted(path.stem for path in PRESETS_FOLDER.glob("*.toml")))


def load_cluster_spec(source: str) -> ClusterSpec:
    """Read a cluster from a preset's name or the path of a TOML file.

    Raises:
        ClusterSpecError: no such preset or file, not TOML, or a key or value that cannot be; the
            message names it.
    """
    if source in cluster_preset_names():
        return _read(PRESETS_FOLDER / f"{source}.toml", source)
    path = find_file(source)
    if path is not None:
        return _read(path, str(path))
    if "/" in source or source.endswith(".toml"):
        raise ClusterSpecError(
            f"cluster file {source!r} does not exist",
            f"presets: {', '.join(cluster_preset_names())}",
        )
    meant = did_you_mean(source, cluster_preset_names())
    raise ClusterSpecError(
        f"there is no cluster preset or file {source!r}",
        f"{meant}presets: {', '.join(cluster_preset_names())}",
    )


def parse_cluster_spec(fields: Mapping[str, Any], source: str) -> ClusterSpec:
    """Turn the keys of a cluster file into a `ClusterSpec`; `source` is named in errors.

    Raises:
        ClusterSpecError: a key is unknown or a value is impossible.
    """
    try:
        return _Cluster.model_validate(dict(fields)).spec()
    except ValidationError as error:
        raise _problem(error, source) from None


def dump_cluster_spec(cluster: ClusterSpec) -> str:
    """The cluster as a TOML file that `load_cluster_spec` reads back."""
    lines = [
        f"name = {_quoted(cluster.name)}",
        f"device_kind = {_quoted(cluster.device_kind)}",
        f"device_name = {_quoted(cluster.device_name)}",
        f"num_nodes = {cluster.num_nodes}",
        f"devices_per_node = {cluster.devices_per_node}",
        f"memory_gib = {cluster.memory_bytes / _GIB!r}",
        f"memory_gb_per_s = {cluster.memory_bytes_per_s / 1e9!r}",
        f"threads_per_device = {cluster.threads_per_device}",
        *([f"ranks_per_core = {cluster.ranks_per_core!r}"] if cluster.ranks_per_core > 1.0 else []),
        f"intra_node = {_link_text(cluster.intra_node)}",
        f"inter_node = {_link_text(cluster.inter_node)}",
        f"nics_per_node = {cluster.nics_per_node}",
    ]
    if cluster.peak_flops_per_s:
        peaks = [f"{key} = {peak / 1e12!r}" for key, peak in cluster.peak_flops_per_s.items()]
        lines.append(f"peak_tflops = {{ {', '.join(peaks)} }}")
    if cluster.price_per_device_hour is not None:
        lines.append(f"price_per_device_hour = {cluster.price_per_device_hour!r}")
    return "\n".join([*lines, *_measured_lines(cluster)]) + "\n"


def _measured_lines(cluster: ClusterSpec) -> list[str]:
    """What only a measurement knows."""
    lines = [
        f"{name} = {seconds * 1e6!r}"
        for name, seconds in (
            ("host_forward_us", cluster.host_forward_s),
            ("host_backward_us", cluster.host_backward_s),
        )
        if seconds is not None
    ]
    if cluster.gemm_flops:
        lines.append(f"gemm_gflop = {[size / 1e9 for size in cluster.gemm_flops]}")
    if cluster.gemm_flops_per_s:
        rates = [
            f"{precision} = {[rate / 1e12 for rate in rates]}"
            for precision, rates in cluster.gemm_flops_per_s.items()
        ]
        lines.append(f"gemm_tflops = {{ {', '.join(rates)} }}")
    return lines


def _read(path: Path, source: str) -> ClusterSpec:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterSpecError(
            f"cluster file {source!r} cannot be read: {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ClusterSpecError(f"cluster file {source!r} is not TOML: {error}") from None
    return parse_cluster_spec({"name": path.stem, **fields}, source)


def _problem(error: ValidationError, source: str) -> ClusterSpecError:
    # An unknown key explains the missing one that it was meant for.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    if not first["loc"]:
        return ClusterSpecError(f"cluster {source!r}: {first['msg'].removeprefix('Value error, ')}")
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "missing":
        return ClusterSpecError(f"cluster {source!r} lacks the key {key}")
    if first["type"] != "extra_forbidden":
        return ClusterSpecError(f"cluster {source!r}: {key} is {first['input']!r}: {first['msg']}")
    table = _Link if len(first["loc"]) > 1 else _Cluster
    legal = tuple(table.model_fields)
    meant = did_you_mean(str(first["loc"][-1]), legal)
    return ClusterSpecError(
        f"cluster {source!r} has an unknown key {key}", f"{meant}keys: {', '.join(legal)}"
    )


def _link_text(link: LinkSpec) -> str:
    return f"{{ alpha_us = {link.alpha_s * 1e6!r}, gb_per_s = {link.bytes_per_s / 1e9!r} }}"


def _quoted(text: str) -> str:
    """A TOML basic string; control characters are written as escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    safe = "".join(
        char if char.isprintable() or ord(char) > 0x9F else f"\\u{ord(char):04x}"
        for char in escaped
    )
    return f'"{safe}"'
