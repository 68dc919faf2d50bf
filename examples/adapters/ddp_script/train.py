"""A plain script with DDP or FSDP, and the three lines of `trainer.report` that make it a trial.

`tuner run examples/adapters/ddp_script/study.toml` runs it under torchrun, once per trial. By hand:
`torchrun --standalone --nproc-per-node 2 train.py --micro-batch-size 2 --accumulation 2`.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer import report  # 1

VOCABULARY, WIDTH, LAYERS, HEADS = 512, 64, 8, 4


class Decoder(nn.Module):
    """A small causal transformer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(length, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Loss of the next tokens."""
        hidden = self.tokens(tokens) + self.positions
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        logits = self.head(hidden[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def wrapped(model: Decoder, zero_stage: int) -> nn.Module:
    """The model on all ranks: FSDP for ZeRO 3, DDP for none."""
    if dist.get_world_size() == 1:
        return model
    if zero_stage == 0:
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--zero-stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrapped(Decoder(asked.sequence_length), asked.zero_stage)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = report.start()  # 2
    for _ in range(asked.steps):
        sequences = 0
        loss = torch.zeros(())
        for _ in range(asked.accumulation):
            batch = torch.randint(VOCABULARY, (asked.micro_batch_size, asked.sequence_length))
            loss = model(batch)
            (loss / asked.accumulation).backward()
            sequences += len(batch)
        optimizer.step()
        optimizer.zero_grad()
        if run.step(loss=loss, sequences=sequences, micro_batches=asked.accumulation):  # 3
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
