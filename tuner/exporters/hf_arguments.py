"""What a `transformers` trainer is told beside a config file of DeepSpeed or accelerate."""

from tuner.exporters.scripts import arguments_file
from tuner.ports import ExportRequest

ARGUMENTS = "trainer_arguments.txt"


def hf_arguments(request: ExportRequest, title: str, *more: str) -> str:
    """The file of `transformers.TrainingArguments`; `more` are further `--flag value` lines."""
    config, training = request.config, request.training
    words = [
        f"--per_device_train_batch_size {config.micro_batch_size}",
        f"--gradient_accumulation_steps {request.num_microbatches}",
        f"--learning_rate {training.learning_rate:g}",
        f"--optim {'adamw_torch' if training.optimizer == 'adamw' else 'sgd'}",
        *([] if config.dtype == "fp32" else [f"--{config.dtype} true"]),
        *more,
    ]
    return arguments_file(title, [part for word in words for part in word.split(" ")])
