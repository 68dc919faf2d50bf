"""Turn a study file's sections into the specs that the arithmetic and the trials work on."""

import json
import logging
import subprocess
import sys
from typing import Any

from search_spaces.cluster_detect import detect_local_cluster
from search_spaces.cluster_io import load_cluster_spec, parse_cluster_spec
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints.base import Setting
from search_spaces.errors import SpaceError
from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec
from tuner import provenance, registry
from tuner.config import StudyConfig
from tuner.custom import UserConstraint, constraint_of
from tuner.errors import ConfigError, NothingFeasibleError
from tuner.ports import Exporter, ExportRequest

log = logging.getLogger(__name__)
LOCAL_CLUSTER = "local"
_PEAK_TIMEOUT_S = 120.0


def resolve_model(config: StudyConfig) -> ModelSpec:
    """The model that the study names; raises `ModelSpecError` with the names that exist."""
    return load_model_spec(config.model.source)


def resolve_cluster(config: StudyConfig) -> ClusterSpec:
    """The cluster that the study names, describes, or that is found on this machine."""
    section = config.cluster
    if section is None:
        cluster = detect_local_cluster(None)
    elif section.preset or section.path:
        cluster = _with_devices(load_cluster_spec(section.preset or section.path or ""), section)
    elif (described := section.described()) is not None:
        cluster = _with_devices(parse_cluster_spec(described, "[cluster]"), section)
    else:
        cluster = detect_local_cluster(section.devices)
    if config.launcher.threads_per_rank is not None:
        threads = config.launcher.threads_per_rank
        cluster = cluster.model_copy(update={"threads_per_device": threads})
    return cluster


def _with_devices(cluster: ClusterSpec, section: Any) -> ClusterSpec:
    """The same machines, but only `devices` of them: whole nodes, or a part of one."""
    devices = section.devices
    if devices is None or devices == cluster.num_devices:
        return cluster
    if devices < cluster.devices_per_node:
        return cluster.model_copy(update={"num_nodes": 1, "devices_per_node": devices})
    if devices % cluster.devices_per_node:
        raise ConfigError(
            f"cluster.devices = {devices} is not a number of whole nodes",
            hint=f"a node of {cluster.name!r} has {cluster.devices_per_node} devices",
        )
    return cluster.model_copy(update={"num_nodes": devices // cluster.devices_per_node})


def build_space(
    config: StudyConfig,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    constraint: UserConstraint | None = None,
) -> tuple[SearchSpace, list[ParallelConfig]]:
    """The study's space and all its legal points; `constraint` saves loading the one it names.

    Raises:
        NothingFeasibleError: no point is legal; the message names the rule that ended the last.
    """
    constraints = [constraint or constraint_of(config), _expressible(config)]
    space = SearchSpace(
        model,
        training,
        cluster,
        config.space.domains(),
        use_all_devices=config.space.use_all_devices,
        rules=tuple(item.rule() for item in constraints if item is not None),
    )
    try:
        points = space.enumerate()
    except SpaceError as error:
        raise NothingFeasibleError(error.message, error.hint) from error
    return space, points


def _expressible(config: StudyConfig) -> UserConstraint | None:
    """The rule that the user's trainer has words for a configuration, where it is told by export.

    Raises:
        ConfigError: the exporter is unknown.
    """
    trainer = config.trainer
    if trainer is None or not trainer.needs_export:
        return None
    name = trainer.exporter or trainer.adapter
    exporter: Exporter = registry.load("exporters", name)()

    def why_not(point: ParallelConfig, setting: Setting) -> str | None:
        request = ExportRequest(
            model=setting.model, training=setting.training, cluster=setting.cluster, config=point
        )
        reasons = "; ".join(refusal.reason for refusal in exporter.refusals(request))
        return f"{exporter.trainer} cannot express {reasons}" if reasons else None

    return UserConstraint(why_not, f"exporter:{name}")


def measured_peaks(cluster: ClusterSpec, dtypes: set[str]) -> dict[str, float]:
    """Peak FLOP/s of one device by precision; on this CPU measured now, in a process with torch.

    When more ranks than cores share the machine, each one's peak is its share of the cores.
    """
    known = dict(cluster.peak_flops_per_s)
    missing = sorted(dtypes - set(known))
    if cluster.device_kind != "cpu" or cluster.name != LOCAL_CLUSTER or not missing:
        return known
    threads = cluster.threads_per_device
    command = [sys.executable, "-m", "trainer.peak", "--threads", str(threads)]
    try:
        done = subprocess.run(  # noqa: S603 -- our own module, no shell
            [*command, "--dtypes", *missing],
            capture_output=True,
            text=True,
            timeout=_PEAK_TIMEOUT_S,
            check=True,
            env=provenance.child_environment(),
        )
        peaks = json.loads(done.stdout)["peak_flops_per_s"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        log.warning("the peak of this CPU could not be measured, so MFU is missing", exc_info=True)
        return known
    ranks = cluster.devices_per_node * threads
    share = min(1.0, provenance.usable_cores() / ranks)
    return known | {dtype: peak * share for dtype, peak in peaks.items()}
