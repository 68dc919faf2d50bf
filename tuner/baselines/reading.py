"""Which trainer a file belongs to, and its baseline."""

from collections.abc import Callable
from pathlib import Path

from search_spaces.model_spec import ModelSpec
from tuner.baselines import accelerate, deepspeed, megatron, torchtitan
from tuner.baselines.base import Baseline
from tuner.errors import ConfigError

_BY_SUFFIX: dict[str, Callable[..., Baseline]] = {
    ".json": deepspeed.read,
    ".toml": torchtitan.read,
    ".yaml": accelerate.read,
    ".yml": accelerate.read,
}


def read_baseline(
    path: Path, *, devices: int | None = None, model: ModelSpec | None = None
) -> Baseline:
    """The configuration in use that a trainer's file holds.

    Args:
        path: DeepSpeed's JSON, torchtitan's TOML, accelerate's YAML, or a file or shell script
            with the arguments of Megatron-LM or Megatron-DeepSpeed.
        devices: devices that it runs on, where the file does not say.
        model: the model, where it is known already; the file need not describe it then.

    Raises:
        ConfigError: the file cannot be read, or does not hold what it must.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path} cannot be read: {why}") from None
    reader = _BY_SUFFIX.get(path.suffix.lower())
    if reader is None:
        if "--" not in text:
            raise ConfigError(
                f"{path} holds no configuration that is known here",
                hint="DeepSpeed JSON, torchtitan TOML, accelerate YAML, or Megatron arguments",
            )
        reader = megatron.read
    return reader(path, text, devices=devices, model=model)
