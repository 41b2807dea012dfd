"""`Linear`: what oneDNN computes in training is what `nn.Linear` computes, and a tick never uses it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import layers as linear
from ttm.policy.layers import Linear, has_onednn

NODE = "_OneDnnLinearBackward"
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "FEWEST_PRODUCTS", 0)


def plain(layer: Linear) -> nn.Linear:
    """Return a layer of PyTorch with the same weights."""
    made = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    made.load_state_dict(layer.state_dict())
    return made


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 1, 3, 7)])
def test_values_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    ours = Linear(7, 4, bias=bias)
    results: list[list[Tensor]] = []
    x, gradient = torch.randn(shape), torch.randn(*shape[:-1], 4)
    for layer in (ours, plain(ours)):
        given = x.clone().requires_grad_()
        out = layer(given)
        out.backward(gradient)
        found = [parameter.grad for parameter in layer.parameters()]
        results.append([out.detach(), *(grad for grad in (given.grad, *found) if grad is not None)])
        assert (type(out.grad_fn).__name__ == NODE) == (layer is ours)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@needs_onednn
@pytest.mark.usefixtures("always")
def test_inputs_that_are_strided_or_frozen() -> None:
    torch.manual_seed(0)
    layer = Linear(6, 4)
    x = torch.randn(3, 6, 5).transpose(1, 2)
    (slope,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    other = plain(layer)
    (expected,) = torch.autograd.grad(other(x).square().sum(), other.weight)
    torch.testing.assert_close(slope, expected)
    assert layer(x).grad_fn.next_functions[0][0] is None  # no gradient is computed for x


@pytest.mark.usefixtures("always")
def test_without_training_the_layer_is_pytorchs_to_the_bit() -> None:
    torch.manual_seed(0)
    layer = Linear(128, 64)
    x = torch.randn(4, 128)
    expected = plain(layer)(x).detach()
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    evaluated = copy.deepcopy(layer).eval()(x)
    assert torch.equal(evaluated, expected)
    assert type(evaluated.grad_fn).__name__ != NODE


@pytest.mark.usefixtures("always")
def test_other_precisions_and_vectors_are_left_to_pytorch() -> None:
    layer = Linear(8, 4)
    assert type(layer(torch.randn(8)).grad_fn).__name__ != NODE
    assert type(layer.double()(torch.randn(2, 8).double()).grad_fn).__name__ != NODE
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(torch.randn(2, 8)).dtype == torch.bfloat16


def test_a_pytorch_without_onednn_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(linear, "has_onednn", lambda: False)
    layer = Linear(8, 4)
    out = layer(torch.randn(2, 8))
    assert type(out.grad_fn).__name__ != NODE


@needs_onednn
def test_products_too_small_to_gain_are_left_to_pytorch() -> None:
    layer = Linear(64, 64)
    few, many = torch.randn(4, 64), torch.randn(linear.FEWEST_PRODUCTS // 64**2, 64)
    assert type(layer(few).grad_fn).__name__ != NODE
    assert type(layer(many).grad_fn).__name__ == NODE


@needs_onednn
@pytest.mark.usefixtures("always")
def test_onednn_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(8, 4), torch.randn(2, 8)
    assert type(layer(x).grad_fn).__name__ == NODE
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert type(layer(x).grad_fn).__name__ != NODE


@pytest.mark.usefixtures("always")
def test_inputs_of_another_width_get_the_error_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="3x9 and 8x4"):
        Linear(8, 4)(torch.randn(3, 9))


@needs_onednn
@pytest.mark.usefixtures("always")
def test_second_derivatives_are_refused_and_never_silently_left_out() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    out = Linear(8, 4)(x).square().sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.square().sum().backward()
