"""`quicker_on_cpu`: what quick modules compute in training is what the plain ones compute."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor, nn

from ttm.policy import Policy, PolicyConfig, PolicyInputs, PolicySpec, cpu_training
from ttm.policy.cores.registry import with_options
from ttm.policy.cpu_training import QuickLinear, has_onednn, quicker_on_cpu
from ttm.policy.inputs import FeatureMaps
from ttm.policy.layers import AttentionBlock, Mlp, SelfAttention
from ttm.policy.vision import CameraTokens

NODE = "_OneDnnLinearBackward"
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of any size be by oneDNN."""
    monkeypatch.setattr(cpu_training, "FEWEST_PRODUCTS", 0)


def quick_copy(module: nn.Module) -> nn.Module:
    return quicker_on_cpu(copy.deepcopy(module))


def values_and_gradients(
    module: nn.Module, run: Callable[..., Tensor], *inputs: Tensor
) -> list[Tensor]:
    """Return the result, and the gradients of inputs and parameters that have one."""
    given = [each.clone().requires_grad_() for each in inputs]
    out = run(module, *given)
    towards = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out)
    leaves = [*given, *(p for p in module.parameters() if p.requires_grad)]
    slopes = torch.autograd.grad(out, leaves, towards, allow_unused=True)
    return [out.detach(), *(slope for slope in slopes if slope is not None)]


# The whole policy


@pytest.fixture
def plain(spec: PolicySpec, config: PolicyConfig) -> Policy:
    """A policy with every module that has a quick form."""
    options = ("read=attend", "write=ring", "process_memory=true", "write_outputs=false")
    core = with_options(config.core, options)
    policy = Policy(spec, replace(config, core=core, sight_tokens=2))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


def test_names_and_parameters_stay(plain: Policy) -> None:
    before, parameters = plain.state_dict(), list(plain.parameters())
    assert quicker_on_cpu(plain) is plain
    assert list(plain.state_dict()) == list(before)
    assert all(mine is theirs for mine, theirs in zip(plain.parameters(), parameters, strict=True))
    classes = {type(module) for module in plain.modules()}
    assert {*cpu_training.QUICK.values(), QuickLinear} <= classes
    assert not classes & cpu_training.QUICK.keys()


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_quick_policy_trains_as_the_plain_one(
    plain: Policy, make_inputs: Callable[[int, int], PolicyInputs], frozen: bool
) -> None:
    inputs = make_inputs(2, 5)
    if frozen:  # vision's features are given
        index, channels = torch.arange(10).view(2, 5), plain.vision.num_channels  # type: ignore[union-attr]
        maps = {
            camera.name: FeatureMaps(torch.randn(10, channels, 4, 4), index)
            for camera in plain.spec.cameras
        }
        inputs = replace(inputs, features=maps)
    results = []
    for policy in (quick_copy(plain), plain):
        out, *slopes = values_and_gradients(policy.train(), lambda policy: policy(inputs)[0])
        results.append((out, torch.cat([slope.flatten() for slope in slopes])))
    for mine, expected in zip(*results, strict=True):
        assert_same_but_rounding(mine, expected)


@torch.no_grad()
def test_without_a_gradient_a_quick_policy_is_the_plain_one_to_the_bit(
    plain: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    inputs = make_inputs(2, 5)
    assert torch.equal(plain.eval()(inputs)[0], quick_copy(plain).eval()(inputs)[0])


# Linear layers


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 1, 3, 7)])
def test_values_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], bias: bool) -> None:
    quick, plain, x = QuickLinear(7, 4, bias), nn.Linear(7, 4, bias), torch.randn(shape)
    plain.load_state_dict(quick.state_dict())
    assert type(quick(x).grad_fn).__name__ == NODE
    pairs = (values_and_gradients(each, lambda layer, x: layer(x), x) for each in (quick, plain))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs)


@needs_onednn
@pytest.mark.usefixtures("always")
def test_inputs_that_are_strided_or_frozen() -> None:
    layer, other = QuickLinear(6, 4), nn.Linear(6, 4)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 6, 5).transpose(1, 2)
    (slope,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    (expected,) = torch.autograd.grad(other(x).square().sum(), other.weight)
    torch.testing.assert_close(slope, expected)
    assert layer(x).grad_fn.next_functions[0][0] is None  # no gradient is computed for x


@needs_onednn
@pytest.mark.usefixtures("always")
def test_rows_of_a_larger_matrix_are_copied_before_their_products() -> None:
    """For such rows oneDNN took seconds in place of milliseconds."""
    rows = torch.randn(6, 40, requires_grad=True)[:, 8:16]
    out = QuickLinear(8, 4)(rows)
    kept = out.grad_fn.saved_tensors[0]  # type: ignore[union-attr]
    assert torch.equal(kept, rows)
    assert kept.is_contiguous()


@pytest.mark.usefixtures("always")
def test_other_modes_precisions_and_vectors_are_left_to_pytorch() -> None:
    layer = QuickLinear(8, 4)
    assert type(layer(torch.randn(8)).grad_fn).__name__ != NODE
    assert type(layer.eval()(torch.randn(2, 8)).grad_fn).__name__ != NODE
    assert type(layer.train().double()(torch.randn(2, 8).double()).grad_fn).__name__ != NODE
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(torch.randn(2, 8)).dtype == torch.bfloat16


@pytest.mark.usefixtures("always")
def test_a_pytorch_without_onednn_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_training, "has_onednn", lambda: False)
    assert type(QuickLinear(8, 4)(torch.randn(2, 8)).grad_fn).__name__ != NODE


@needs_onednn
def test_products_too_small_to_gain_are_left_to_pytorch() -> None:
    layer = QuickLinear(64, 64)
    few, many = torch.randn(4, 64), torch.randn(cpu_training.FEWEST_PRODUCTS // 64**2, 64)
    assert type(layer(few).grad_fn).__name__ != NODE
    assert type(layer(many).grad_fn).__name__ == NODE


@needs_onednn
@pytest.mark.usefixtures("always")
def test_onednn_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = QuickLinear(8, 4), torch.randn(2, 8)
    assert type(layer(x).grad_fn).__name__ == NODE
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert type(layer(x).grad_fn).__name__ != NODE


@pytest.mark.usefixtures("always")
def test_inputs_of_another_width_get_the_error_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="3x9 and 8x4"):
        QuickLinear(8, 4)(torch.randn(3, 9))


@needs_onednn
@pytest.mark.usefixtures("always")
def test_second_derivatives_are_refused_and_never_silently_left_out() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    out = QuickLinear(8, 4)(x).square().sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.square().sum().backward()


def test_the_layers_of_an_mlp_are_quick() -> None:
    mlp = quicker_on_cpu(Mlp(4, 8, 2))
    assert isinstance(mlp.hidden, QuickLinear)
    assert isinstance(mlp.out, QuickLinear)


# Folded attention

WIDTH, HEADS, ASKING, TOKENS = 12, 2, 3, 9
ATTENTION: dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor, Tensor], Tensor]]] = {
    "self": (SelfAttention(WIDTH, HEADS), lambda module, x, context: module(context, ASKING)),
    "block": (
        AttentionBlock(WIDTH, HEADS, 16),
        lambda module, x, context: module.attend(x, context),
    ),
}


def random_weights(module: nn.Module, std: float = 1.0) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)


@pytest.mark.parametrize("case", ATTENTION)
def test_folded_attention_equals_attention_to_keys_and_values(case: str) -> None:
    module, run = ATTENTION[case]
    random_weights(module)
    x, context = torch.randn(4, ASKING, WIDTH), torch.randn(4, TOKENS, WIDTH)
    given = (x, context) if case == "block" else (context,)

    def call(module: nn.Module, *given: Tensor) -> Tensor:
        return run(module, given[0], given[-1])

    folded, plain = (
        values_and_gradients(each.train(), call, *given) for each in (quick_copy(module), module)
    )
    for mine, expected in zip(folded, plain, strict=True):
        assert_same_but_rounding(mine, expected)


@pytest.mark.parametrize("case", ATTENTION)
def test_in_mixed_precision_folded_attention_is_as_near_as_plain_attention(case: str) -> None:
    """PyTorch's gradient of attention in bfloat16 takes a CPU longer than a whole step should."""
    module, run = ATTENTION[case]
    random_weights(module, std=0.3)
    x, context = torch.randn(4, ASKING, WIDTH), torch.randn(4, TOKENS, WIDTH)
    given = (x, context) if case == "block" else (context,)

    def call(module: nn.Module, *given: Tensor) -> Tensor:
        return run(module, given[0], given[-1])

    def mixed(module: nn.Module, *given: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call(module, *given).float()

    exact = values_and_gradients(module.train(), call, *given)
    plain = values_and_gradients(module, mixed, *given)
    folded = values_and_gradients(quick_copy(module).train(), mixed, *given)
    for mine, theirs, true in zip(folded, plain, exact, strict=True):
        largest = (theirs - true).abs().max() + 0.01 * true.abs().max()
        assert (mine - true).abs().max() <= 3 * largest
    assert not all(torch.equal(mine, theirs) for mine, theirs in zip(folded, plain, strict=True))


def test_only_training_of_few_queries_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_training, "folded_attention", None)
    module, context = quick_copy(ATTENTION["self"][0]), torch.randn(4, TOKENS, WIDTH)
    module.train()(context, TOKENS)
    module.eval()(context, ASKING)
    with torch.no_grad():
        module.train()(context, ASKING)
    with pytest.raises(TypeError):
        module(context, ASKING)


# Camera tokens of given features


def camera_tokens(module: nn.Module, maps: Tensor) -> list[Tensor]:
    return values_and_gradients(module.train(), lambda module: module(maps))


def test_folded_tokens_and_their_gradients() -> None:
    module = CameraTokens(6, (4, 5), 16, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():  # away from zeros and ones
            parameter.add_(torch.randn_like(parameter) * 0.3)
    maps = torch.randn(7, 6, 4, 5, dtype=torch.float64)
    plain, folded = (camera_tokens(each, maps) for each in (module, quick_copy(module)))
    for expected, found in zip(plain, folded, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_folded_tokens_in_single_precision() -> None:
    module, maps = CameraTokens(24, (8, 8), 128, 6), torch.randn(20, 24, 8, 8)
    folded = quick_copy(module).train()(maps)
    torch.testing.assert_close(folded, module(maps), rtol=0, atol=1e-5)


def test_folded_summaries_are_of_single_precision_under_autocast() -> None:
    module, maps = CameraTokens(24, (8, 8), 128, 6), torch.randn(20, 24, 8, 8)
    summaries: list[Tensor] = []
    quick = quick_copy(module).train()
    for each in (module, quick):
        each.norm.register_forward_pre_hook(lambda _, args: summaries.append(args[0]))
    module(maps)
    with torch.autocast("cpu", torch.bfloat16):
        quick(maps)
    torch.testing.assert_close(summaries[1], summaries[0], rtol=0, atol=1e-5)


def test_folded_tokens_of_cells_that_are_equal_in_all_channels() -> None:
    """Their variance is zero, and a difference of large numbers when they are folded."""
    module, maps = CameraTokens(8, (4, 4), 32, 2), 10 * torch.randn(3, 8, 4, 4)
    cells = maps[0].flatten(1).T
    with torch.no_grad():
        module.project.bias.zero_()
        module.camera.zero_()
        module.position.copy_(-(cells @ module.project.weight.T))
    assert all(found.isfinite().all() for found in camera_tokens(quick_copy(module), maps))
