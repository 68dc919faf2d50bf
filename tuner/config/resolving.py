"""From what a study file says to the model, the cluster and the space that it means."""

from typing import Any

from search_spaces.cluster_spec import ClusterSpec, LinkSpec
from search_spaces.model_spec import ModelSpec
from tuner.config.detection import detect_cluster
from tuner.config.loading import parse_study_text
from tuner.config.sections import ClusterSection, StoreSection, StudyConfig
from tuner.errors import ConfigError

_GIB = 2**30
# key in a study file -> field of ClusterSpec and what one of the key's units is in the field's
_SCALED = {"memory_gib": ("memory_bytes", _GIB), "memory_gb_per_s": ("memory_bytes_per_s", 1e9)}


def resolve_model(config: StudyConfig) -> ModelSpec:
    """The model that the study trains.

    Raises:
        ModelSpecError: there is no such preset or file, or its architecture is not supported.
    """
    from search_spaces.model_io import load_model_spec

    return load_model_spec(config.model.source)


def resolve_cluster(config: StudyConfig) -> ClusterSpec:
    """The machines that the study runs on; detected where the study does not say.

    Raises:
        ClusterSpecError: there is no such preset or file, or it cannot be used.
        ConfigError: `devices` does not fit the nodes that are described.
    """
    from search_spaces.cluster_io import load_cluster_spec

    section = config.cluster or ClusterSection()
    threads = config.launcher.threads_per_rank
    source = section.preset or section.path
    if source is not None:
        cluster = with_devices(load_cluster_spec(source), section.devices)
    elif section.described():
        cluster = with_devices(described_cluster(section), section.devices)
    else:
        cluster = detect_cluster(section.devices, threads)
    return cluster.model_copy(update={"threads_per_device": threads}) if threads else cluster


def described_cluster(section: ClusterSection) -> ClusterSpec:
    """A cluster described in a study file, in SI units."""
    fields: dict[str, Any] = {"name": "described"}
    for key, value in (section.described() or {}).items():
        if key in _SCALED:
            field, scale = _SCALED[key]
            fields[field] = value * scale
        elif key == "peak_tflops":
            fields["peak_flops_per_s"] = {name: peak * 1e12 for name, peak in value.items()}
        elif key in ("intra_node", "inter_node"):
            fields[key] = LinkSpec(
                alpha_s=value["alpha_us"] * 1e-6, bytes_per_s=value["gb_per_s"] * 1e9
            )
        else:
            fields[key] = value
    if "memory_bytes" in fields:
        fields["memory_bytes"] = max(1, int(fields["memory_bytes"]))
    return ClusterSpec.model_validate(fields)


def with_devices(cluster: ClusterSpec, devices: int | None) -> ClusterSpec:
    """The same machines with `devices` devices in all: part of one node, or whole nodes.

    Raises:
        ConfigError: neither is possible.
    """
    if devices is None:
        return cluster
    per_node = cluster.devices_per_node
    if devices <= per_node:
        return cluster.model_copy(update={"num_nodes": 1, "devices_per_node": devices})
    if devices % per_node:
        below = devices // per_node * per_node
        raise ConfigError(
            f"{devices} devices are no whole number of {cluster.name} nodes",
            hint=f"a node has {per_node}: try {below} or {below + per_node}",
        )
    return cluster.model_copy(update={"num_nodes": devices // per_node})


def load_resolved_config(text: str, store_url: str | None = None) -> StudyConfig:
    """A study's config as the database keeps it, with the store that it was found in.

    Raises:
        ConfigError: this version cannot read it.
    """
    config = parse_study_text(text, "the stored study")
    if store_url is None:
        return config
    return config.model_copy(update={"store": StoreSection(url=store_url)})


def with_machine_defaults(config: StudyConfig) -> StudyConfig:
    """Fill in what depends on the machine: the sequence length, where the study does not say.

    Raises:
        ModelSpecError, ClusterSpecError, ConfigError: as `resolve_model` and `resolve_cluster`.
    """
    if "sequence_length" in config.training.model_fields_set:
        return config
    kind = resolve_cluster(config).device_kind
    return config.with_device_defaults(kind, resolve_model(config).max_positions)
