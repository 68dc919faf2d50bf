import pytest
import torch
from torch import Tensor

from trainer.model.block_attention import ROWS_PER_BLOCK, BlockAttention, suits


def heads(tokens: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(tokens)
    # strided views of one projection, as the layer makes them
    fused = torch.randn(2, tokens, 9 * 8, dtype=torch.float32).to(dtype)
    views = fused.unflatten(-1, (9, 8)).transpose(1, 2).split(3, 1)
    return [view.detach().requires_grad_() for view in views]


def outcome(attend: object, parts: list[Tensor]) -> list[Tensor]:
    out = attend(*parts)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, parts, grad)]


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("tokens", [1, 7, ROWS_PER_BLOCK, ROWS_PER_BLOCK + 1, 300])
def test_fp32_blocks_equal_dense_attention(tokens: int) -> None:
    parts = heads(tokens, torch.float32)
    found, expected = outcome(BlockAttention.apply, parts), outcome(dense, parts)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [64, 512])
def test_bf16_is_about_as_exact_as_the_fused_kernel(tokens: int) -> None:
    parts = heads(tokens, torch.bfloat16)
    exact = outcome(dense, [part.detach().float().requires_grad_() for part in parts])

    def errors(results: list[Tensor]) -> list[float]:
        pairs = zip(results, exact, strict=True)
        return [float((one.float() - other).norm() / other.norm()) for one, other in pairs]

    blocks, fused = errors(outcome(BlockAttention.apply, parts)), errors(outcome(dense, parts))
    assert max(blocks) < 2.5 * max(fused)
    assert max(blocks) < 0.01


def test_joining_the_heads_needs_no_copy() -> None:
    out = BlockAttention.apply(*heads(40, torch.bfloat16))
    assert out.transpose(1, 2).is_contiguous()


def test_it_is_chosen_only_where_it_was_faster() -> None:
    assert suits(torch.empty(1, 2, 512, 64, dtype=torch.bfloat16))
    assert not suits(torch.empty(1, 2, 512, 64))
    assert not suits(torch.empty(1, 2, 2048, 64, dtype=torch.bfloat16))
    assert not suits(torch.empty(1, 2, 512, 128, dtype=torch.bfloat16))
