"""What runs one tick of the network: the policy itself in PyTorch, or a compiled copy of it.

An engine holds no memory: the state goes in and comes out, so that whoever holds it (`PolicyRunner`) can reset,
save and restore it. Every engine gives bit-identical results for identical inputs; from one engine to another
they differ by rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy, PolicyInputs
from ttm.policy.run.tick import Tick, TickLayout, example_tick

EngineName = Literal["auto", "torch", "openvino"]
Precision = Literal["float32", "bfloat16"]

WARM_UP_TICKS = 4
"""The first ticks allocate and choose kernels; CUDA graphs are recorded in the second and run from the third on."""


class Engine(ABC):
    """Runs ticks of one robot (B = T = 1). Ready for the first one as soon as it is made."""

    name: str

    @abstractmethod
    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """One tick -> what `Policy.decode` gives, (1, A), and the new state.

        inputs and state: on the device that the engine was made for, all proprioception valid. Nothing that was
        given is changed, and nothing that is returned changes later.
        """

    def _warm_up(self, policy: Policy) -> None:
        for _ in range(WARM_UP_TICKS):
            self.step(*example_tick(policy))


class TorchEngine(Engine):
    """The policy as it is: the reference, and the only engine whose modules can be hooked and looked into."""

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        """policy: in evaluation mode, on its device."""
        self._policy = policy
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine`."""
        with torch.inference_mode():
            prediction, state = self._policy.step(inputs, state)
            return self._policy.decode(prediction.raw)[:, 0], state


class CompiledTorchEngine(Engine):
    """`torch.compile`; on a GPU with CUDA graphs, which cost one launch a tick. On a CPU it needs a C++ compiler."""

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        """policy: in evaluation mode, on its device."""
        _, state = example_tick(policy)
        self._layout = TickLayout(policy.spec, tuple(state))
        tick = Tick(policy, self._layout)

        def decoded_tick(*tensors: Tensor) -> tuple[Tensor, ...]:
            raw, *values = tick(*tensors)
            return policy.decode(raw)[:, 0], *values

        self._tick = torch.compile(decoded_tick, mode="reduce-overhead", dynamic=False)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine`."""
        with torch.no_grad():  # inference tensors among others would be reasons to compile again
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = self._tick(*self._layout.flatten(inputs, state))
            # The next tick overwrites what the graph returned.
            action, *values = (value.clone() for value in outputs)
        return action, dict(zip(self._layout.state_names, values, strict=True))


def make_engine(
    policy: Policy,
    device: torch.device,
    engine: EngineName = "auto",
    precision: Precision = "float32",
) -> Engine:
    """The engine for a policy that is on `device`, in evaluation mode. auto: OpenVINO on a CPU, else PyTorch.

    bfloat16: matrix products and convolutions with 8 bits of mantissa; half the bytes of weights to read, which is
    what a tick waits for. `UserError` for what does not go together.
    """
    for name, value, choices in (
        ("engine", engine, EngineName),
        ("precision", precision, Precision),
    ):
        if value not in get_args(choices):
            raise UserError(f"{name} is '{value}'; give one of {', '.join(get_args(choices))}")
    if engine == "auto":
        engine = "openvino" if device.type == "cpu" else "torch"
    if engine == "openvino":
        if device.type != "cpu":
            raise UserError(
                f"engine openvino runs on the CPU, and device is '{device}'; give engine torch, or cpu"
            )
        from ttm.policy.run.openvino_engine import (
            OpenVinoEngine,  # only where it runs: it takes time and memory
        )

        return OpenVinoEngine(policy, precision=precision)
    if precision != "float32":
        raise UserError(
            f"engine torch has no precision '{precision}'; give float32, or engine openvino on a CPU"
        )
    return CompiledTorchEngine(policy) if device.type == "cuda" else TorchEngine(policy)
