"""The policy network: its inputs and their normalisation, its tokens, and its action heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
import pytest
import torch

from ttm.policy import (
    PRESETS,
    CameraSpec,
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicySpec,
    UserError,
)
from ttm.policy.action_head import ActionHead, build_action_head
from ttm.policy.config import ActionHeadConfig, PresetName
from ttm.policy.inputs import INPUT_LIMIT, Normalizer

Make = Callable[[int, int], PolicyInputs]


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("kind", ["continuous", "bins"])
def test_forward_equals_steps(
    spec: PolicySpec, config: PolicyConfig, make_inputs: Make, norm: str, kind: str
) -> None:
    vision, head = replace(config.vision, norm=norm), replace(config.head, kind=kind, num_bins=8)
    policy = Policy(spec, replace(config, vision=vision, head=head)).eval()
    inputs = make_inputs(2, 5)
    with torch.no_grad():
        raw, _ = policy(inputs)
        state = policy.initial_state(2)
        for tick in range(5):
            one, state = policy.step(inputs.at_ticks(slice(tick, tick + 1)), state)
            torch.testing.assert_close(one[:, 0], raw[:, tick], rtol=0, atol=1e-5)
    assert policy.decode(raw).shape == (2, 5, spec.action_size)


def test_every_parameter_learns(policy: Policy, make_inputs: Make) -> None:
    inputs = replace(make_inputs(4, 3), proprioception_valid=torch.rand(4, 3) > 0.5)
    raw, _ = policy(inputs)
    losses = policy.loss(raw, torch.rand(4, 3, 1, 4))
    torch.stack(list(losses.values())).sum().backward()
    slopes = {
        name: 0.0 if p.grad is None else float(p.grad.abs().max())
        for name, p in policy.named_parameters()
    }
    idle = {name for name, slope in slopes.items() if slope < 1e-6}  # others are 1e-4 and more
    # A softmax over tokens is the same whatever is added to all of them: these are rounding, or 0.
    assert idle == {name for name in slopes if name.endswith("summarizer.mlp.out.bias")}


def test_hidden_inputs_do_not_count(policy: Policy, make_inputs: Make) -> None:
    inputs = make_inputs(2, 3)
    hidden = torch.zeros(2, 3, dtype=torch.bool)
    inputs = replace(inputs, previous_action_valid=hidden, proprioception_valid=hidden)
    other = replace(
        inputs,
        previous_action=inputs.previous_action + 1,
        proprioception={name: value + 1 for name, value in inputs.proprioception.items()},
    )
    assert torch.equal(policy(inputs)[0], policy(other)[0])


def test_cameras_of_different_sizes(
    spec: PolicySpec, config: PolicyConfig, make_inputs: Make
) -> None:
    wide = replace(spec, cameras=(CameraSpec("head", 32, 48), CameraSpec("wrist", 24, 32)))
    inputs = make_inputs(2, 3)
    images = {
        c.name: torch.randint(0, 256, (2, 3, 3, c.height, c.width), dtype=torch.uint8)
        for c in wide.cameras
    }
    raw, _ = Policy(wide, config)(replace(inputs, images=images))
    assert raw.shape == (2, 3, 4)


def test_decoded_actions_keep_the_limits(policy: Policy) -> None:
    actions = policy.decode(torch.tensor([[[1e3, -1e3, 0.05, 1e3]]]))
    torch.testing.assert_close(actions, torch.tensor([[[0.1, -0.1, 0.05, 1.0]]]))


def test_presets_have_the_names_that_options_take() -> None:
    assert get_args(PresetName) == tuple(PRESETS)


def test_inputs_at_some_ticks(make_inputs: Make) -> None:
    inputs = replace(make_inputs(2, 5), proprioception_valid=torch.rand(2, 5) > 0.5)
    cut = inputs.at_ticks(slice(1, 3))
    assert torch.equal(cut.images["head"], inputs.images["head"][:, 1:3])
    assert torch.equal(
        cut.proprioception["joints.left"], inputs.proprioception["joints.left"][:, 1:3]
    )
    assert torch.equal(cut.previous_action, inputs.previous_action[:, 1:3])
    assert cut.previous_action_valid.shape == cut.proprioception_valid.shape == (2, 2)
    assert torch.equal(cut.language, inputs.language)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str) -> None:
    data = json.loads(json.dumps(PRESETS[name].to_dict()))
    assert PolicyConfig.from_dict(data) == PRESETS[name]


def test_tiny_has_about_a_million_parameters_and_keeps_a_map(spec: PolicySpec) -> None:
    cameras = tuple(replace(camera, height=64, width=64) for camera in spec.cameras)
    policy = Policy(replace(spec, cameras=cameras), PRESETS["tiny"])
    assert 0.8e6 < sum(p.numel() for p in policy.parameters()) < 1.3e6
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    assert policy.vision(images, torch.zeros(1, 128)).shape[2:] == (8, 8)


def test_paper_has_the_papers_sizes(spec: PolicySpec) -> None:
    paper = PRESETS["paper"]
    assert (paper.core.memory_size, paper.core.process_size, paper.core.num_layers) == (96, 16, 8)
    assert (paper.vision.model, paper.image_size, paper.width) == ("efficientnet-b3", 300, 512)


def test_a_policy_without_cameras_acts_on_proprioception(
    spec: PolicySpec, config: PolicyConfig, make_inputs: Make
) -> None:
    """The order of the tokens stays the same; only those of the cameras are left out."""
    policy = Policy(replace(spec, cameras=()), config).eval()
    assert policy.vision is None
    assert list(policy.token_sources) == ["joints.left", "previous action", "instruction"]
    inputs = replace(make_inputs(2, 3), images={})
    moved = replace(
        inputs, proprioception={name: x + 1 for name, x in inputs.proprioception.items()}
    )
    assert policy.encode(inputs).shape == (2, 3, 3, config.width)
    assert not torch.equal(policy(inputs)[0], policy(moved)[0])


def test_a_policy_that_would_see_nothing_is_refused(spec: PolicySpec, config: PolicyConfig) -> None:
    with pytest.raises(UserError, match="neither a camera nor proprioception"):
        Policy(replace(spec, cameras=(), proprioception=()), config)


@dataclass
class Vector:
    mean: np.ndarray
    std: np.ndarray


@dataclass
class Statistics:
    actions: Vector = field(
        default_factory=lambda: Vector(
            np.array([0.01, 0.02, 0.03, 0.9]), np.array([0.05, 0.0, 0.02, 0.3])
        )
    )
    proprioception: dict[str, Vector] = field(
        default_factory=lambda: {"joints.left": Vector(np.array([1.0, 2.0]), np.array([0.5, 0.0]))}
    )


@pytest.fixture
def normalizer(spec: PolicySpec) -> Normalizer:
    made = Normalizer(spec)
    made.set_statistics(Statistics())
    return made


def test_actions_come_back(normalizer: Normalizer) -> None:
    actions = torch.tensor([[0.03, 0.021, -0.1, 1.0]])
    normalized = normalizer.actions.normalize(actions)
    torch.testing.assert_close(normalizer.actions.denormalize(normalized), actions)
    assert normalized[0, 0].item() == pytest.approx(0.4)


def test_binary_dimensions_stay_as_they_are(normalizer: Normalizer) -> None:
    actions = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(normalizer.actions.normalize(actions)[:, 3], actions[:, 3])


@pytest.mark.parametrize("with_statistics", [False, True])
def test_the_two_commands_of_a_binary_part_become_0_and_1(
    spec: PolicySpec, with_statistics: bool
) -> None:
    """A gripper of -1 and 1 is learned as one logit, whether or not statistics were set."""
    gripper = replace(spec.actions[1], low=-1, high=1)
    normalizer = Normalizer(replace(spec, actions=(spec.actions[0], gripper)))
    if with_statistics:
        normalizer.set_statistics(Statistics())
    actions = torch.tensor([[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 1.0]])
    normalized = normalizer.actions.normalize(actions)
    assert normalized[:, 3].tolist() == [0, 1]
    assert normalizer.actions.denormalize(normalized)[:, 3].tolist() == [-1, 1]


def test_a_dimension_that_never_moved_does_not_explode(normalizer: Normalizer) -> None:
    a_tenth_of_the_range = torch.tensor([[0.0, 0.04, 0.0, 0.0]])
    assert normalizer.actions.normalize(a_tenth_of_the_range)[0, 1].abs() < 30


def test_proprioception_is_clipped(normalizer: Normalizer) -> None:
    (vector,) = normalizer.normalize_proprioception({"joints.left": torch.tensor([1.5, 1e9])})
    assert vector.tolist() == [1.0, INPUT_LIMIT]


def test_statistics_without_a_vector_are_refused(spec: PolicySpec) -> None:
    with pytest.raises(UserError, match=r"joints\.left"):
        Normalizer(spec).set_statistics(Statistics(proprioception={}))


TARGETS = torch.tensor([[[0.5, -0.25, 1.0, 1.0], [0.0, 0.0, -1.0, 0.0]]])


def head(spec: PolicySpec, **settings: object) -> ActionHead:
    return build_action_head(spec, 3, 16, ActionHeadConfig(hidden_size=32, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["continuous", "bins"])
def test_overfits_one_window(spec: PolicySpec, kind: str) -> None:
    made = head(spec, kind=kind, num_bins=64)
    tokens = torch.randn(1, 2, 3, 16)
    optimizer = torch.optim.Adam(made.parameters(), lr=2e-2)
    for _ in range(80):
        optimizer.zero_grad()
        torch.stack(list(made.losses(made(tokens), TARGETS).values())).sum().backward()
        optimizer.step()
    torch.testing.assert_close(made.decode(made(tokens)), TARGETS, rtol=0, atol=0.07)


def test_each_part_has_its_loss(spec: PolicySpec) -> None:
    made = head(spec, loss="l1")
    raw = TARGETS.clone()
    raw[..., 3] = torch.tensor([20.0, -20.0])
    raw[..., 0] += 0.3
    losses = made.losses(raw, TARGETS)
    assert losses.keys() == {"arm", "gripper"}
    assert losses["arm"].item() == pytest.approx(0.1, abs=1e-6)
    assert losses["gripper"].item() == pytest.approx(0.0, abs=1e-6)


def test_huber_is_square_near_zero_and_linear_with_slope_one_far(spec: PolicySpec) -> None:
    made = head(spec, huber_delta=0.2)
    loss = made.elementwise_loss(torch.tensor([0.1, 2.0, 3.0, 0.0]), torch.zeros(4))
    assert loss[0].item() == pytest.approx(0.5 * 0.1**2 / 0.2)
    assert (loss[2] - loss[1]).item() == pytest.approx(1.0)


def test_invalid_ticks_do_not_count_and_weights_do(spec: PolicySpec) -> None:
    made = head(spec, loss="l1")
    raw = TARGETS.clone()
    raw[0, 1, :3] += 8
    valid = torch.tensor([[True, False]])
    assert made.losses(raw, TARGETS, valid=valid)["arm"].item() == 0
    weighted = made.losses(raw, TARGETS, weights={"arm": torch.tensor([[1.0, 3.0]])})
    assert weighted["arm"].item() == pytest.approx(6.0)


def test_bins_take_targets_beyond_their_range(spec: PolicySpec) -> None:
    made = head(spec, kind="bins", num_bins=16, bin_range=2.0)
    losses = made.losses(made(torch.randn(1, 2, 3, 16)), TARGETS * 100)
    assert all(np.isfinite(loss.item()) for loss in losses.values())
