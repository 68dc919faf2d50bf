"""What the cost model says of stored configurations, for studies whose ranks reported nothing."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tuner.web.study_data import StudyData

if TYPE_CHECKING:
    from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
    from search_spaces.parallel_config import ParallelConfig


def cost_model(data: StudyData) -> "AnalyticCostModel | None":
    """The study's cost model as it was before any trial; none for another tool's study."""
    from pydantic import ValidationError

    from search_spaces.cluster_spec import ClusterSpec
    from search_spaces.cost_models.analytic import AnalyticCostModel
    from search_spaces.errors import SearchSpaceError
    from search_spaces.model_spec import ModelSpec
    from search_spaces.training_spec import TrainingSpec

    study = data.study
    try:
        return AnalyticCostModel(
            ModelSpec.model_validate(_known(ModelSpec, study.model)),
            TrainingSpec.model_validate(_known(TrainingSpec, study.training)),
            ClusterSpec.model_validate(_known(ClusterSpec, study.cluster)),
            is_kernel=data.is_kernel,
        )
    except (ValidationError, SearchSpaceError):
        return None


def _known(kind: Any, values: Any) -> dict[str, Any]:
    """Without the facts that the database keeps beside a specification's own fields."""
    return {name: value for name, value in values.items() if name in kind.model_fields}


def config_of(data: StudyData, config_key: str) -> "ParallelConfig":
    """A stored configuration as the search space knows it."""
    from search_spaces.parallel_config import ParallelConfig

    return ParallelConfig.model_validate(dict(data.configs[config_key].knobs))


def known_configs(data: StudyData, config_keys: Sequence[str]) -> dict[str, "ParallelConfig"]:
    """Configurations by key, without those of other tools or versions that the space lacks."""
    from pydantic import ValidationError

    found = {}
    for key in config_keys:
        with suppress(ValidationError):
            found[key] = config_of(data, key)
    return found


def predicted(data: StudyData, config_keys: Sequence[str]) -> list[tuple[str, "CostEstimate"]]:
    """Estimates by key; empty when the study's inputs are not known."""
    model = cost_model(data)
    if model is None or not config_keys:
        return []
    configs = known_configs(data, config_keys)
    return list(zip(configs, model.estimate_many(list(configs.values())), strict=True))


def predicted_memory(
    data: StudyData, config_keys: Sequence[str]
) -> list[tuple[str, list[dict[str, float]]]]:
    """Bytes by part of every pipeline rank, by key; empty when the study's inputs are not known."""
    from search_spaces.cost_models.planning import memory_by_rank

    model = cost_model(data)
    if model is None:
        return []
    configs = known_configs(data, config_keys)
    return [(key, memory_by_rank(model, config)) for key, config in configs.items()]
