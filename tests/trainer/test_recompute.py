"""Recomputed regions give the same gradients, and what is forgotten is really not kept."""

import weakref

import torch
from torch.nn.functional import gelu, linear

from trainer.model.recompute import forgetting, recomputed


def test_a_recomputed_region_has_the_same_value_and_gradient():
    x = torch.randn(4, 8, requires_grad=True)
    expected = gelu(x).square()
    expected.sum().backward()
    wanted, x.grad = x.grad, None
    found = recomputed(lambda value: gelu(value).square(), x)
    found.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x.grad, wanted)


def test_a_forgotten_input_is_freed_and_made_again():
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    linear(gelu(x), weight).sum().backward()
    wanted = x.grad.clone(), weight.grad.clone()
    x.grad = weight.grad = None
    calls = []

    def remake():
        calls.append(1)
        return gelu(x.detach())

    hidden = recomputed(gelu, x)
    storage = weakref.ref(hidden.untyped_storage())
    with forgetting(hidden, remake):
        out = linear(hidden, weight)
    del hidden
    assert storage() is None
    assert not calls
    out.sum().backward()
    assert len(calls) == 1
    torch.testing.assert_close((x.grad, weight.grad), wanted)


def test_other_inputs_are_kept_as_they_are():
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    with forgetting(torch.zeros(4, 8), lambda: torch.full((4, 8), float("nan"))):
        out = linear(x, weight)
    out.sum().backward()
    assert torch.isfinite(weight.grad).all()


def test_without_gradients_nothing_is_recorded():
    with torch.no_grad(), forgetting(torch.zeros(2), lambda: torch.zeros(2)):
        assert not linear(torch.ones(1, 2), torch.ones(1, 2)).requires_grad
