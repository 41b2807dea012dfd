"""Engines, which run one tick of the network: their interface, and those that run it by PyTorch.

A tick is a module of plain tensors in a fixed order, which compilers and exporters need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState, TemporalCore
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.spec import Array, PolicySpec

WARM_UP_TICKS = 4
"""The first ticks allocate memory and choose kernels. CUDA graphs are recorded in the second."""


@dataclass(frozen=True)
class TickLayout:
    """The order of the tensors of a tick.

    Images, proprioception, previous action, whether it is valid, language, the delay if the policy takes
    it, state.
    """

    spec: PolicySpec
    state_names: tuple[str, ...]
    takes_delay: bool = False

    @classmethod
    def of(cls, policy: Policy, state: CoreState) -> TickLayout:
        """Return the layout of the ticks of a policy with such a state."""
        return cls(policy.spec, tuple(state), policy.delay_code is not None)

    def flatten(self, inputs: PolicyInputs, state: CoreState) -> list[Tensor]:
        """Return views of the tensors, with B = T = 1. Images are (1, 1, H, W, 3), as from cameras."""
        assert inputs.proprioception_valid is None, "a tick hides no proprioception"
        delay = [inputs.delay_s] if self.takes_delay and inputs.delay_s is not None else []
        assert len(delay) == self.takes_delay, "this policy takes the delay"
        return [
            *(inputs.images[camera.name].permute(0, 1, 3, 4, 2) for camera in self.spec.cameras),
            *(inputs.proprioception[vector.name] for vector in self.spec.proprioception),
            inputs.previous_action,
            inputs.previous_action_valid,
            inputs.language,
            *delay,
            *(state[name] for name in self.state_names),
        ]

    def unflatten(self, tensors: Sequence[Tensor]) -> tuple[PolicyInputs, CoreState]:
        """Return the arguments of `flatten`."""
        rest = iter(tensors)
        inputs = PolicyInputs(
            images={camera.name: next(rest).permute(0, 1, 4, 2, 3) for camera in self.spec.cameras},
            proprioception={vector.name: next(rest) for vector in self.spec.proprioception},
            previous_action=next(rest),
            previous_action_valid=next(rest),
            language=next(rest),
            delay_s=next(rest) if self.takes_delay else None,
        )
        return inputs, dict(zip(self.state_names, rest, strict=True))


class TickModule(nn.Module):
    """`Policy.step` with the tensors of a `TickLayout`."""

    def __init__(self, policy: Policy, layout: TickLayout) -> None:
        super().__init__()
        self.policy = policy
        self.layout = layout

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the raw prediction, (1, 1, K * F), and the new state in the order of the layout."""
        inputs, state = self.layout.unflatten(tensors)
        raw, state = self.policy.step(inputs, state)
        return raw, *(state[name] for name in self.layout.state_names)


class CoreTickModule(nn.Module):
    """`TemporalCore.step` with the tensors of the state in a fixed order."""

    def __init__(self, core: TemporalCore, state_names: Sequence[str]) -> None:
        super().__init__()
        self.core = core
        self.state_names = tuple(state_names)

    def forward(self, tokens: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, (B, R, D), and the tensors of the new state.

        tokens: (B, N, D); values: the tensors of the state.
        """
        outputs, state = self.core.step(tokens, dict(zip(self.state_names, values, strict=True)))
        return outputs, *(state[name] for name in self.state_names)


def example_tick(policy: Policy) -> tuple[PolicyInputs, CoreState]:
    """Return the inputs of a first tick with black images, and the state, on the policy's device."""
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
        delay_s=None if policy.delay_code is None else torch.zeros(1, 1),
    )
    with torch.no_grad():
        state = policy.initial_state(1)
    return inputs.to(next(policy.parameters()).device), state


def random_tick(policy: Policy, seed: int) -> PolicyInputs:
    """Return random inputs of one tick, determined by `seed`, for a policy on the CPU."""
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
        delay_s=None if inputs.delay_s is None else noise(inputs.delay_s),
    )


class Engine(ABC):
    """Runs ticks of one robot (B = T = 1). It is warmed up when it is constructed.

    An engine holds no memory. The state is passed in and returned, so that its holder (`PolicyRunner`)
    can reset, save and restore it. Every engine gives bit-identical results for identical inputs; the
    results of different engines differ by rounding.
    """

    name: str

    @abstractmethod
    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick. Returns the result of `Policy.decode_chunk`, (1, K, A), and the new state.

        inputs and state: on the device that the engine was made for, with all proprioception valid.
        They are not changed, and later calls do not change what was returned.
        """

    def _warm_up(self, policy: Policy) -> None:
        for _ in range(WARM_UP_TICKS):
            self.step(*example_tick(policy))


class TorchEngine(Engine):
    """The policy itself. It is the reference, and the only engine whose modules can have hooks."""

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        """`policy` must be in evaluation mode, on its device."""
        self._policy = policy
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine.step`."""
        with torch.inference_mode():
            raw, state = self._policy.step(inputs, state)
            return self._policy.decode_chunk(raw, inputs.proprioception)[:, 0], state


class CompiledTorchEngine(Engine):
    """The policy compiled by `torch.compile`.

    On a GPU it uses CUDA graphs, which launch a whole tick at once. On a CPU it needs a C++ compiler.
    """

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        """`policy` must be in evaluation mode, on its device."""
        _, state = example_tick(policy)
        self._layout = TickLayout.of(policy, state)
        tick = TickModule(policy, self._layout)

        def decoded_tick(*tensors: Tensor) -> tuple[Tensor, ...]:
            raw, *values = tick(*tensors)
            measured = self._layout.unflatten(tensors)[0].proprioception
            return policy.decode_chunk(raw, measured)[:, 0], *values

        self._tick = torch.compile(decoded_tick, mode="reduce-overhead", dynamic=False)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine.step`."""
        with torch.no_grad():  # a mixture with inference tensors would be compiled again
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = self._tick(*self._layout.flatten(inputs, state))
            # The next tick overwrites the tensors that the graph returned.
            actions, *values = (value.clone() for value in outputs)
        return actions, dict(zip(self._layout.state_names, values, strict=True))


def to_numpy(values: Tensor) -> Array:
    """Return a copy as an array."""
    copy: Array = values.detach().cpu().numpy().copy()
    return copy


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let PyTorch use `count` threads within the context.

    Sums over another number of threads round differently.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
