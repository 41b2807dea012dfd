"""The policy network as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

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
from ttm.policy.config import PresetName

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
