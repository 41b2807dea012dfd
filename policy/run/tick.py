"""One tick as a function of plain tensors in a fixed order: what compilers and exporters of networks take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreState, TemporalCore
from ttm.policy.network.policy import Policy, PolicyInputs
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class TickLayout:
    """The order of a tick's tensors: images, proprioception, previous action, whether it is valid, language, state."""

    spec: PolicySpec
    state_names: tuple[str, ...]

    def flatten(self, inputs: PolicyInputs, state: CoreState) -> list[Tensor]:
        """Views of the tensors, with B = T = 1. Images are (1, 1, H, W, 3), as cameras give them."""
        assert inputs.proprioception_valid is None, "a tick hides no proprioception"
        return [
            *(inputs.images[camera.name].permute(0, 1, 3, 4, 2) for camera in self.spec.cameras),
            *(inputs.proprioception[vector.name] for vector in self.spec.proprioception),
            inputs.previous_action,
            inputs.previous_action_valid,
            inputs.language,
            *(state[name] for name in self.state_names),
        ]

    def unflatten(self, tensors: Sequence[Tensor]) -> tuple[PolicyInputs, CoreState]:
        """What `flatten` was given."""
        rest = iter(tensors)
        inputs = PolicyInputs(
            images={camera.name: next(rest).permute(0, 1, 4, 2, 3) for camera in self.spec.cameras},
            proprioception={vector.name: next(rest) for vector in self.spec.proprioception},
            previous_action=next(rest),
            previous_action_valid=next(rest),
            language=next(rest),
        )
        return inputs, dict(zip(self.state_names, rest, strict=True))


class Tick(nn.Module):
    """`Policy.step` under a `TickLayout`."""

    def __init__(self, policy: Policy, layout: TickLayout) -> None:
        super().__init__()
        self.policy = policy
        self.layout = layout

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As laid out -> the raw prediction (1, 1, F), and the new state in the layout's order."""
        inputs, state = self.layout.unflatten(tensors)
        prediction, state = self.policy.step(inputs, state)
        return prediction.raw, *(state[name] for name in self.layout.state_names)


class CoreTick(nn.Module):
    """`TemporalCore.step` with the state's tensors in a fixed order."""

    def __init__(self, core: TemporalCore, state_names: Sequence[str]) -> None:
        super().__init__()
        self.core = core
        self.state_names = tuple(state_names)

    def forward(self, tokens: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """tokens: (B, N, D), and the state's tensors -> outputs (B, R, D), and the new state's."""
        outputs, state = self.core.step(tokens, dict(zip(self.state_names, values, strict=True)))
        return outputs, *(state[name] for name in self.state_names)


def example_tick(policy: Policy) -> tuple[PolicyInputs, CoreState]:
    """A tick at an episode's start before black cameras, on the policy's device."""
    spec = policy.spec
    inputs = PolicyInputs(
        images={
            c.name: torch.zeros(1, 1, 3, c.height, c.width, dtype=torch.uint8) for c in spec.cameras
        },
        proprioception={
            vector.name: torch.zeros(1, 1, vector.size) for vector in spec.proprioception
        },
        previous_action=torch.zeros(1, 1, spec.action_size),
        previous_action_valid=torch.zeros(1, 1, dtype=torch.bool),
        language=torch.zeros(1, policy.config.embedding_size),
    )
    with torch.no_grad():
        state = policy.initial_state(1)
    return inputs.to(next(policy.parameters()).device), state


def random_tick(policy: Policy, seed: int) -> PolicyInputs:
    """A tick of noise, for a policy on the CPU: the same for the same seed."""
    inputs, _ = example_tick(policy)
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    return replace(
        inputs,
        images={
            name: torch.randint(0, 256, value.shape, dtype=torch.uint8, generator=generator)
            for name, value in inputs.images.items()
        },
        proprioception={name: noise(value) for name, value in inputs.proprioception.items()},
        previous_action=noise(inputs.previous_action),
        previous_action_valid=torch.tensor([[True]]),
        language=F.normalize(noise(inputs.language)),
    )
