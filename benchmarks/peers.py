"""Single-process peers of the kernel: `transformers` and a plain nanoGPT-style loop.

Both train a GPT-2 shape with fused AdamW, SDPA attention and, for bf16, autocast over fp32 weights:
what their users write. Shapes: B sequences, T tokens, D hidden, H heads, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Shape:
    """A GPT-2 model and the tokens of one step."""

    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    vocab_size: int = 50257
    sequence_length: int = 512
    batch_size: int = 4

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.sequence_length


def random_batch(shape: Shape, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Inputs and next-token targets, each of shape (B, T)."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch_size, shape.sequence_length + 1)
    tokens = torch.randint(0, shape.vocab_size, size, generator=generator).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def transformers_step(
    shape: Shape, dtype: str, device: str = "cpu", *, bf16_weights: bool = False
) -> Callable[[], float]:
    """One training step of `GPT2LMHeadModel` with SDPA; returns the loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.sequence_length,
        n_embd=shape.hidden_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).to(device).train()
    if bf16_weights:
        model = model.to(torch.bfloat16)
    tokens, targets = random_batch(shape, device)

    def loss() -> Tensor:
        logits_BTV = model(tokens).logits
        # the model's own loss shifts the labels; ours are shifted already
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets.flatten())

    return _training_step(model, loss, "fp32" if bf16_weights else dtype, device)


def plain_loop_step(shape: Shape, dtype: str, device: str = "cpu") -> Callable[[], float]:
    """One training step of a nanoGPT-style model; returns the loss."""
    torch.manual_seed(0)
    model = PlainGPT(shape).to(device)
    tokens, targets = random_batch(shape, device)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return _training_step(model, loss, dtype, device)


def _training_step(
    model: nn.Module, loss: Callable[[], Tensor], dtype: str, device: str
) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step


class PlainBlock(nn.Module):
    """Pre-norm transformer block with one fused query-key-value matrix."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Attention, then the feed-forward network, each added to its input."""
        batch, length, width = x_BTD.shape
        q, k, v = (
            part.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x_BTD)).split(width, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = F.gelu(self.up(self.norm_2(x_BTD)), approximate="tanh")
        result: Tensor = x_BTD + self.down(hidden)
        return result


class PlainGPT(nn.Module):
    """GPT-2 with tied embeddings, in the fewest lines."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.positions = nn.Embedding(shape.sequence_length, shape.hidden_size)
        self.blocks = nn.ModuleList(
            PlainBlock(shape.hidden_size, shape.num_heads) for _ in range(shape.num_layers)
        )
        self.norm = nn.LayerNorm(shape.hidden_size)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of shape (B, T, V)."""
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(places_T)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits: Tensor = self.head(self.norm(x_BTD))
        return logits
