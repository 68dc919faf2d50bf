"""The sections of a study file, as frozen and strict models with human units in their keys."""

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from search_spaces.cluster_spec import DeviceKind
from search_spaces.parallel_config import (
    KNOBS,
    ParallelConfig,
    Precision,
    Recompute,
    ReduceDtype,
    ScheduleName,
    TpLayout,
)
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec
from tuner.config.section import Section as _Section
from tuner.config.toml_text import to_toml_text, without_secrets
from tuner.config.trainer import TrainerSection
from tuner.paths import DEFAULT_STORE

STORE_VARIABLE = "TUNER_STORE"
Direction = Literal["maximize", "minimize"]
# The words that a study file uses for the values that TOML cannot write.
ALL_LAYERS = "all"
EVEN_SPLIT = "even"


def _as_domain(value: Any) -> Any:
    """A scalar is a domain of one; a list becomes a tuple without repeats."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError("a value or a list of at least one value")
    unique: list[Any] = []
    for item in values:
        if not any(item == seen and type(item) is type(seen) for seen in unique):
            unique.append(item)
    return tuple(unique)


def _as_layer_domain(value: Any) -> Any:
    """`"all"` stands for recomputation of every layer of a stage."""
    return tuple(None if item == ALL_LAYERS else item for item in _as_domain(value))


def _as_split_domain(value: Any) -> Any:
    """`"even"` stands for the even split; a flat list of integers is one split, not a domain."""
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        value = [value]
    splits = _as_domain(value)
    return tuple(
        None if split == EVEN_SPLIT else tuple(split) if isinstance(split, list) else split
        for split in splits
    )


_Count = Annotated[int, Field(ge=1)]
_Domain = BeforeValidator(_as_domain)


class SpaceSection(_Section):
    """The values that each knob may take, a scalar or a list; left out: its default domain."""

    dp: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """data-parallel replicas"""
    tp: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """tensor-parallel ranks, all mesh axes together"""
    tp_layout: Annotated[tuple[TpLayout, ...] | None, _Domain] = None
    """layout of tensor parallelism: 1d (Megatron), 2d or 2.5d (SUMMA)"""
    tp_depth: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """depth of the 2.5d mesh"""
    sequence_parallel: Annotated[tuple[bool, ...] | None, _Domain] = None
    """shard norms and residuals over the sequence (1d)"""
    cp: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """context-parallel ranks"""
    ep: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """expert-parallel ranks, a divisor of dp"""
    pp: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """pipeline ranks"""
    virtual_stages: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """model chunks per pipeline rank"""
    pipeline_schedule: Annotated[tuple[ScheduleName, ...] | None, _Domain] = None
    """order of the pipeline's actions"""
    stage_layers: Annotated[
        tuple[tuple[_Count, ...] | None, ...] | None, BeforeValidator(_as_split_domain)
    ] = None
    """layers of every stage, a list for each split; "even" stands for the even split"""
    micro_batch_size: Annotated[tuple[_Count, ...] | None, _Domain] = None
    """sequences per micro-batch"""
    zero_stage: Annotated[tuple[Annotated[int, Field(ge=0, le=3)], ...] | None, _Domain] = None
    """ZeRO stage of the data-parallel group"""
    zero_shard_degree: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, _Domain] = None
    """ranks that share one shard set; 0 is the whole data-parallel group"""
    recompute: Annotated[tuple[Recompute, ...] | None, _Domain] = None
    """activation recomputation"""
    recompute_layers: Annotated[
        tuple[Annotated[int, Field(ge=0)] | None, ...] | None, BeforeValidator(_as_layer_domain)
    ] = None
    """layers per stage that recompute; "all" stands for all of them"""
    dtype: Annotated[tuple[Precision, ...] | None, _Domain] = None
    """compute precision"""
    reduce_dtype: Annotated[tuple[ReduceDtype, ...] | None, _Domain] = None
    """precision of the gradient reduction"""
    compile: Annotated[tuple[bool, ...] | None, _Domain] = None
    """torch.compile the layers"""
    optimizer_offload: Annotated[tuple[bool, ...] | None, _Domain] = None
    """keep the optimizer states in host memory"""
    use_all_devices: bool = True
    """only points that occupy every device; false also tries fewer"""
    constraint: str | None = None
    """a rule of your own, `file.py:function` or `module:function`: a reason why not, or none"""

    def domains(self) -> dict[str, tuple[Any, ...]]:
        """The knobs that the study restricts, by name, with their values."""
        return {name: domain for name in KNOBS if (domain := getattr(self, name, None)) is not None}


class ModelSection(_Section):
    """What is trained."""

    source: str = Field(min_length=1)
    """a preset's name (`tuner presets`) or the path of a Hugging Face config.json"""


class LinkSection(_Section):
    """A class of link: a message of n bytes takes alpha + n / bandwidth."""

    alpha_us: float = Field(ge=0)
    """latency of one message, microseconds"""
    gb_per_s: float = Field(gt=0)
    """bandwidth per device and direction, 10^9 bytes a second"""


class ClusterSection(_Section):
    """The machines: a preset, a file, or described here. Left out: detected on this machine."""

    preset: str | None = None
    """name of a described cluster (`tuner presets`)"""
    path: str | None = None
    """path of a cluster file in TOML"""
    devices: int | None = Field(default=None, ge=1)
    """devices to use in all, in place of what is described or detected"""
    name: str | None = None
    """name of the cluster described here"""
    device_kind: DeviceKind | None = None
    """cpu, cuda or rocm"""
    device_name: str | None = None
    """the device's product name"""
    num_nodes: int | None = Field(default=None, ge=1)
    """nodes of equal devices"""
    devices_per_node: int | None = Field(default=None, ge=1)
    """devices (ranks) per node"""
    memory_gib: float | None = Field(default=None, gt=0)
    """memory of one device, GiB"""
    memory_gb_per_s: float | None = Field(default=None, gt=0)
    """memory bandwidth of one device, 10^9 bytes a second"""
    peak_tflops: dict[Precision, Annotated[float, Field(gt=0)]] | None = None
    """peak of one device by precision, 10^12 operations a second"""
    threads_per_device: int | None = Field(default=None, ge=1)
    """CPU threads of one rank"""
    ranks_per_core: float | None = Field(default=None, ge=1)
    """CPU ranks that share a core and its time"""
    intra_node: LinkSection | None = None
    """link between devices of a node"""
    inter_node: LinkSection | None = None
    """link between nodes"""
    nics_per_node: int | None = Field(default=None, ge=1)
    """network cards per node"""
    price_per_device_hour: float | None = Field(default=None, ge=0)
    """price of one device for an hour, in your currency"""

    def described(self) -> dict[str, Any] | None:
        """The keys of a cluster described in the study file, in human units, if there are any."""
        named = {"preset", "path", "devices"}
        return self.model_dump(exclude=named, exclude_none=True) or None

    @model_validator(mode="after")
    def _one_description(self) -> Self:
        ways = {"preset": self.preset, "path": self.path, "keys of its own": self.described()}
        given = [way for way, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"one description, not both {' and '.join(given)}")
        return self


def _plain(value: Any, where: str = "option") -> Any:
    """Refuse what TOML can hold but an option cannot (dates and times)."""
    if isinstance(value, Mapping):
        return {key: _plain(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"text, numbers, true, false, lists or tables, not a {type(value).__name__}")


Options = Annotated[dict[str, Any], AfterValidator(_plain)]


def _tuples(knobs: Any) -> Any:
    """TOML's lists as the tuples that `ParallelConfig` holds."""
    if not isinstance(knobs, Mapping):
        return knobs
    return {name: tuple(v) if isinstance(v, list) else v for name, v in knobs.items()}


def _as_names(value: Any) -> Any:
    """One name, or a list of names, which may be empty."""
    return () if value == [] else _as_domain(value)


class SearchSection(_Section):
    """How the space is searched and when to stop."""

    searcher: str = "cbo"
    """what proposes configurations (`tuner spaces` lists the searchers)"""
    max_trials: int = Field(default=24, ge=1)
    """configurations that are searched; baseline and repeats come on top"""
    max_time_s: float | None = Field(default=None, gt=0)
    """wall clock of the whole study, seconds"""
    max_device_s: float | None = Field(default=None, gt=0)
    """device-seconds of all trials: wall clock of each times its devices"""
    seed: int = Field(default=0, ge=0)
    """seed of the search and of the trials' data"""
    parallel_trials: int = Field(default=1, ge=1)
    """trials under way at one time, where the devices suffice"""
    max_retries: int = Field(default=1, ge=0)
    """new attempts of a trial that failed for a reason that may pass"""
    stop_below: float = Field(default=0.02, ge=0, lt=1)
    """end once no untried point has this chance to run and failures bore that out; 0: never"""
    confirm_top: int = Field(default=3, ge=0)
    """best configurations that are measured again at the end"""
    confirm_repeats: int = Field(default=3, ge=0)
    """further measurements of each of them at most; fewer once their order is settled"""
    early_stop: bool = True
    """end a trial whose first measured steps already exclude it from the lead"""
    check_drift: bool = True
    """measure the first configuration again at the end, to see whether the machine changed speed"""
    baseline: Annotated[ParallelConfig, BeforeValidator(_tuples)] | None = None
    """knobs of the configuration in use today; it is run first and compared with"""
    baseline_name: str | None = Field(default=None, min_length=1)
    """what sentences call the baseline; left out: your current configuration"""
    warm_start: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = ()
    """earlier studies of this database that correct the predictions, the most relevant last"""
    objective: str | None = None
    """what ranks trials, `file.py:function` or `module:function`; left out: tokens a second"""
    objective_direction: Direction = "maximize"
    """whether more of the objective is better, or less"""
    options: Options = Field(default_factory=dict)
    """options of the searcher, by name"""


class MeasureSection(MeasureSpec):
    """How a trial is measured: the trainer's `MeasureSpec`, read strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LauncherSection(_Section):
    """What runs the trials."""

    name: str = "ray"
    """ray, local, simulated, command or a plug-in; with [trainer] it is command"""
    address: str | None = None
    """address of a running Ray cluster; left out: one is started on this machine"""
    threads_per_rank: int | None = Field(default=None, ge=1)
    """CPU threads of one rank; left out: the cores are shared out evenly"""
    memory_limit_gib: float | None = Field(default=None, gt=0)
    """memory that one rank may use on CPU, GiB; left out: the cluster's memory per device"""
    options: Options = Field(default_factory=dict)
    """options of the launcher, by name"""

    @property
    def memory_limit_bytes(self) -> int | None:
        """The limit in bytes."""
        return None if self.memory_limit_gib is None else int(self.memory_limit_gib * 2**30)


def default_store_url() -> str:
    """`TUNER_STORE`, or else a SQLite file under the current folder."""
    return os.environ.get(STORE_VARIABLE) or f"sqlite:///{DEFAULT_STORE.as_posix()}"


class StoreSection(_Section):
    """Where results are kept."""

    url: str = Field(default_factory=default_store_url, min_length=1)
    """SQLAlchemy URL or path of a SQLite file; `TUNER_STORE` changes the default"""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _legal_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("1 to 80 letters, digits, '.', '_' or '-', the first a letter or digit")
    return name


# Tokens of a step that a CPU gets through in about the time that people wait for a trial.
_CPU_SEQUENCE_LENGTH = 64


class StudyConfig(_Section):
    """A whole study file, resolved: what is trained, where, what is tried, how it is measured."""

    name: Annotated[str, AfterValidator(_legal_name)] | None = None
    """name of the study; left out: made from the model and the time"""
    model: ModelSection
    training: TrainingSpec = TrainingSpec()
    cluster: ClusterSection | None = None
    space: SpaceSection = SpaceSection()
    search: SearchSection = SearchSection()
    measure: MeasureSection = MeasureSection()
    trainer: TrainerSection | None = None
    launcher: LauncherSection = LauncherSection()
    store: StoreSection = Field(default_factory=StoreSection)

    @model_validator(mode="before")
    @classmethod
    def _trainer_is_a_command(cls, document: Any) -> Any:
        """With a trainer of the user's the launcher is `command`, unless it is named."""
        if not isinstance(document, Mapping):
            return document
        if not document.get("trainer"):  # an empty table is a file of `tuner init`
            return {key: value for key, value in document.items() if key != "trainer"}
        launcher = document.get("launcher", {})
        if not isinstance(launcher, Mapping):
            return document
        return {**document, "launcher": {"name": "command", **launcher}}

    @field_validator("launcher")
    @classmethod
    def _trainer_has_its_launcher(
        cls, launcher: LauncherSection, info: ValidationInfo
    ) -> LauncherSection:
        if info.data.get("trainer") is not None and launcher.name != "command":
            raise ValueError(f'of name "command" in a study with [trainer], not {launcher.name!r}')
        return launcher

    def to_toml(self) -> str:
        """The resolved study file; reading it gives an equal config, less its secrets."""
        return to_toml_text(without_secrets(_for_toml(self)))

    def config_hash(self) -> str:
        """16 hex digits of all that decides a study's results: no names, nor its store."""
        search = self.search.model_copy(update={"baseline_name": None})
        asked = self.model_copy(
            update={"name": None, "store": StoreSection(url="-"), "search": search}
        )
        return hashlib.sha256(asked.to_toml().encode()).hexdigest()[:16]

    def measure_spec(self) -> MeasureSpec:
        """How trials are measured, as the trainer's message."""
        return MeasureSpec.model_validate(self.measure.model_dump())

    def with_recipe_defaults(self) -> Self:
        """Give a baseline that names no precision that of the recipe."""
        baseline = self.search.baseline
        if baseline is None or "dtype" in baseline.model_fields_set:
            return self
        search = {"baseline": baseline.with_knobs(dtype=self.training.dtype)}
        return self.model_copy(update={"search": self.search.model_copy(update=search)})

    def with_device_defaults(self, device_kind: DeviceKind, max_positions: int) -> Self:
        """Fill in a sequence length that was left out: short on a CPU, never beyond the model's."""
        if "sequence_length" in self.training.model_fields_set:
            return self
        usual = _CPU_SEQUENCE_LENGTH if device_kind == "cpu" else self.training.sequence_length
        training = {**self.training.model_dump(), "sequence_length": min(usual, max_positions)}
        return self.model_copy(update={"training": TrainingSpec.model_validate(training)})


def _for_toml(config: StudyConfig) -> dict[str, Any]:
    """Fields of every section, without those that are none, in the words of a study file."""
    dumped: dict[str, Any] = config.model_dump(exclude_none=True)
    words = {"stage_layers": EVEN_SPLIT, "recompute_layers": ALL_LAYERS}
    for knob, word in words.items():
        if (domain := getattr(config.space, knob)) is not None:
            dumped["space"][knob] = [word if item is None else item for item in domain]
    return dumped
