"""`tuner init`: a study file that runs as it is and says what else it may hold."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tuner.cli.options import verbosity_options
from tuner.cli.output import say
from tuner.config import StudyConfig, toml_value
from tuner.config.problems import sections_of
from tuner.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tuner.baselines import Baseline

_DEFAULT_MODEL = "gpt2-124m"
_HEAD = """\
# A study: `tuner run {name}` finds the fastest way to train this model on these machines.
# A key after a `#` shows its default or an example; remove the `#` to change it.
"""
# Values to show for keys whose default is "not set".
_EXAMPLES: dict[tuple[str, str], Any] = {
    ("", "name"): "my-study",
    ("cluster", "preset"): "frontier",
    ("cluster", "path"): "cluster.toml",
    ("cluster", "devices"): 2,
    ("space", "dp"): [1, 2, 4],
    ("space", "tp"): [1, 2, 4],
    ("space", "tp_layout"): ["1d", "2d"],
    ("space", "tp_depth"): [1, 2],
    ("space", "sequence_parallel"): [False, True],
    ("space", "cp"): [1, 2],
    ("space", "ep"): [1, 2],
    ("space", "pp"): [1, 2, 4],
    ("space", "virtual_stages"): [1, 2],
    ("space", "pipeline_schedule"): ["1f1b", "gpipe"],
    ("space", "stage_layers"): ["even", [5, 7]],
    ("space", "micro_batch_size"): [1, 2, 4, 8],
    ("space", "zero_stage"): [0, 1, 2, 3],
    ("space", "zero_shard_degree"): [0, 2],
    ("space", "recompute"): ["none", "selective", "full"],
    ("space", "recompute_layers"): ["all", 2],
    ("space", "dtype"): ["fp32", "bf16"],
    ("space", "reduce_dtype"): ["fp32", "bf16"],
    ("space", "compile"): [False, True],
    ("space", "optimizer_offload"): [False, True],
    ("search", "max_time_s"): 3600.0,
    ("search", "max_device_s"): 7200.0,
    ("search", "baseline"): {"dp": 2, "micro_batch_size": 1},
    ("search", "baseline_name"): "last month's configuration",
    ("store", "url"): "sqlite:///tuner_runs/results.db",
    ("trainer", "adapter"): "megatron-lm",
    ("trainer", "command"): ["{torchrun}", "pretrain_gpt.py", "{args}"],
    ("trainer", "exporter"): "megatron-lm",
    ("trainer", "environment"): {"NCCL_DEBUG": "WARN"},
    ("launcher", "address"): "auto",
    ("launcher", "threads_per_rank"): 1,
    ("launcher", "memory_limit_gib"): 4.0,
}
# Keys that describe a cluster in full; a new study file does not need them.
_SKIPPED = {"cluster": {"preset", "path", "devices"}}
_NOTES = {
    "model": "what is trained",
    "search": "how the space is searched, and when to stop",
    "measure": "how a trial is measured",
    "trainer": "a trainer of your own in place of the kernel: docs/adapters.md",
    "launcher": "what runs the trials",
    "store": "where results are kept",
    "cluster": "the machines; all left out: what is found on this one",
    "space": "what each knob may be, a value or a list; left out: what can make sense",
    "training": "what stays fixed while the layout is tuned",
}


@click.command(
    epilog="\b\nExamples:\n  tuner init\n  tuner init --model llama-tiny -o llama.toml\n"
    "  tuner init --from pretrain.sh --devices 16   tune what that script runs today\n"
    "  tuner init --from ds_config.json --model llama3-8b --devices 8\n\n"
    "--from reads the arguments of Megatron-LM or Megatron-DeepSpeed (a file or a shell script), "
    "DeepSpeed's JSON, torchtitan's TOML and accelerate's YAML. What they hold becomes the "
    "baseline: it is measured first, and every result is compared with it."
)
@click.option(
    "--model",
    metavar="NAME",
    help=f"A preset (`tuner presets`) or the path of a Hugging Face config.json. "
    f"[default: {_DEFAULT_MODEL}]",
)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A trainer's file with the configuration in use.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices that it runs on, where the file does not say.",
)
@click.option(
    "-o",
    "--output",
    default="study.toml",
    show_default=True,
    metavar="FILE",
    help="Where to write; - is standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@verbosity_options
def init(
    model: str | None, source: Path | None, devices: int | None, output: str, force: bool
) -> None:
    """Write a commented study file to start from."""
    from search_spaces.model_io import load_model_spec

    path = None if output == "-" else Path(output)
    values: dict[tuple[str, str], Any] = {}
    files: dict[Path, str] = {}
    if source is not None:
        model, values, files = _from_trainer(source, model, devices, path)
    elif devices is not None:
        values = {("cluster", "devices"): devices}
    model = model or _DEFAULT_MODEL
    if not files:
        load_model_spec(model)  # an unknown name is an error now, not at the first run
    text = study_template(model, path.name if path else "study.toml", values)
    if path is None:
        sys.stdout.write(text)
        return
    _write({**files, path: text}, force=force)
    say(f"next: tuner run {path}")


def _write(files: Mapping[Path, str], *, force: bool) -> None:
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists already", "choose another --output, or add --force")
    for path, text in files.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        say(f"wrote {path}")


def _from_trainer(
    source: Path, model: str | None, devices: int | None, path: Path | None
) -> tuple[str, dict[tuple[str, str], Any], dict[Path, str]]:
    """The model's name, what the study file gets from a trainer's file, and files beside it."""
    from search_spaces.model_io import load_model_spec
    from tuner.baselines import read_baseline
    from tuner.baselines.hf_config import config_fields

    named = load_model_spec(model) if model is not None else None
    found = read_baseline(source, devices=devices, model=named)
    files: dict[Path, str] = {}
    model = model or found.model_source
    if model is not None:
        spec = load_model_spec(model)
    elif found.model is not None:
        if path is None:
            raise UsageError("the model goes into a file beside the study", "give --output FILE")
        spec = found.model
        beside = path.with_name(f"{path.stem}.model.json")
        files[beside] = json.dumps(config_fields(spec), indent=2) + "\n"
        model = f"./{beside.name}"
    else:
        raise ConfigError(
            f"the {found.trainer} file does not describe the model", "name it with --model"
        )
    values = _values(found)
    _check(found, spec, values)
    for note in found.notes:
        say(f"note: {note}")
    say(f"baseline from {found.trainer}: {found.config.short()}, on {found.devices} devices")
    return model, values, files


def _values(found: "Baseline") -> dict[tuple[str, str], Any]:
    """Keys of the study file that the trainer's file decides."""
    training = {
        "sequence_length": found.sequence_length,
        "global_batch_size": found.global_batch_size,
        "optimizer": found.optimizer,
        "learning_rate": found.learning_rate,
        "dtype": found.config.dtype,
    }
    values: dict[tuple[str, str], Any] = {
        ("training", key): value for key, value in training.items() if value is not None
    }
    values["cluster", "devices"] = found.devices
    values["search", "baseline"] = found.config.canonical() | {"dtype": found.config.dtype}
    return values


def _check(found: "Baseline", spec: Any, values: Mapping[tuple[str, str], Any]) -> None:
    """Refuse a baseline that no machine could run, now and not at the first run."""
    from search_spaces.cluster_spec import ClusterSpec
    from search_spaces.constraints import find_violations
    from search_spaces.training_spec import TrainingSpec

    recipe = {key: value for (section, key), value in values.items() if section == "training"}
    recipe.setdefault("sequence_length", min(1024, spec.max_positions))
    cluster = ClusterSpec(devices_per_node=found.devices)
    broken = find_violations(
        found.config, spec, TrainingSpec(**recipe), cluster, use_all_devices=False
    )
    if broken:
        raise ConfigError(
            f"the configuration of the {found.trainer} file cannot run here: {broken[0].message}",
            hint="correct it in a copy of the file",
        )


def study_template(
    model: str,
    file_name: str = "study.toml",
    values: Mapping[tuple[str, str], Any] | None = None,
) -> str:
    """A study file for `model` in which every key is explained.

    `values` by section and key are set; all other keys are comments that show their defaults.
    """
    values = values or {}
    lines = [
        _HEAD.format(name=file_name),
        *_key_lines("", "name", StudyConfig.model_fields["name"]),
    ]
    for name, section in sections_of(StudyConfig).items():
        note = f"  # {_NOTES[name]}" if name in _NOTES else ""
        lines += ["", f"[{name}]{note}"]
        for key, info in section.model_fields.items():
            if (name, key) == ("model", "source"):
                lines.append(f"source = {toml_value(model)}  # {info.description}")
            elif (name, key) in values:
                lines.append(f"{key} = {toml_value(values[name, key])}  # {info.description}")
            elif key in _SKIPPED.get(name, {key}):
                lines += _key_lines(name, key, info)
    return "\n".join(lines) + "\n"


def _key_lines(section: str, key: str, info: FieldInfo) -> list[str]:
    """What a key means, and the key itself as a comment, where there is a value to show."""
    value = _EXAMPLES.get((section, key), info.get_default(call_default_factory=False))
    if value is None or value is PydanticUndefined:
        value = _any_value(info.annotation)
    if value is None or value == {}:
        return []
    return [f"# {key} = {_shown(value)}  # {info.description}"]


def _any_value(annotation: Any) -> Any:
    """Something legal for a key that has neither a default nor an example."""
    by_type = {int: 1, float: 60.0, str: "text", bool: False}
    if get_origin(annotation) is dict:
        return None
    kinds = (annotation, *get_args(annotation))
    return next((by_type[kind] for kind in kinds if kind in by_type), None)


def _shown(value: Any) -> str:
    return toml_value(value.model_dump() if isinstance(value, BaseModel) else value)
