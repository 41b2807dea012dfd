"""The engines that run the network by PyTorch: as it is, or compiled for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.network.inputs import PolicyInputs
from ttm.policy.network.policy import Policy
from ttm.policy.run.engine import Engine
from ttm.policy.run.tick_module import TickLayout, TickModule, example_tick


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
