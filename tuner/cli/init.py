"""`tuner init`: a study file that runs as it is and says what else it may hold."""

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tuner.cli.options import verbosity_options
from tuner.cli.output import say
from tuner.config import StudyConfig, toml_value
from tuner.config.problems import sections_of
from tuner.errors import UsageError

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


@click.command(epilog="\b\nExamples:\n  tuner init\n  tuner init --model llama-tiny -o llama.toml")
@click.option(
    "--model",
    default="gpt2-124m",
    show_default=True,
    metavar="NAME",
    help="A preset (`tuner presets`) or the path of a Hugging Face config.json.",
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
def init(model: str, output: str, force: bool) -> None:
    """Write a commented study file to start from."""
    from search_spaces.model_io import load_model_spec

    load_model_spec(model)  # an unknown name is an error now, not at the first run
    text = study_template(model, Path(output).name if output != "-" else "study.toml")
    if output == "-":
        sys.stdout.write(text)
        return
    path = Path(output)
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "choose another --output, or add --force")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    say(f"wrote {path}; next: tuner run {path}")


def study_template(model: str, file_name: str = "study.toml") -> str:
    """A study file for `model` in which every key is explained."""
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
