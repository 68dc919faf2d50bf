"""A script that trains with the Hugging Face Trainer; nothing in it knows of the tuner.

`tuner run examples/adapters/hf_trainer/study.toml` runs it once per trial, one process per rank.
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens: what they say has no part in how fast they are trained on."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source = torch.Generator().manual_seed(index)
        tokens = torch.randint(self._vocabulary, (self._length,), generator=source)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--recompute", choices=("none", "full"), default="none")
    asked = parser.parse_args()

    model = GPT2LMHeadModel(
        GPT2Config(n_embd=64, n_head=4, n_layer=8, n_positions=256, vocab_size=512)
    )
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.accumulation,
        gradient_checkpointing=asked.recompute == "full",
        max_steps=asked.steps,
        logging_steps=1,
        include_num_input_tokens_seen="all",
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    data = RandomTokens(model.config.vocab_size, asked.sequence_length)
    Trainer(model=model, args=arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
