"""Choose the engine for a device and a precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch
from torch import Tensor

from ttm.policy.config import EngineName, Precision
from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError, require_choice
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.tick_module import Engine, TickLayout, TickModule, example_tick

# The engines that run the network by PyTorch: as it is, or compiled for a GPU.


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


def make_engine(
    policy: Policy,
    device: torch.device,
    engine: EngineName = "auto",
    precision: Precision = "float32",
) -> Engine:
    """Return an engine for a policy that is on `device`, in evaluation mode.

    "auto" is OpenVINO on a CPU and PyTorch elsewhere. bfloat16 computes matrix products and
    convolutions with 8 bits of mantissa; it halves the bytes of weights, whose reading takes most
    of a tick. Raises `UserError` for values that do not go together.
    """
    require_choice("engine", engine, get_args(EngineName))
    require_choice("precision", precision, get_args(Precision))
    if engine == "auto":
        engine = "openvino" if device.type == "cpu" else "torch"
    if engine == "openvino":
        if device.type != "cpu":
            raise UserError(
                f"engine openvino runs on the CPU, and device is '{device}'; give engine torch, or cpu"
            )
        # Imported here because OpenVINO may be missing where there are no wheels of it, and because
        # its import takes time and memory in processes that run on a GPU or run no policy at all.
        from ttm.policy.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(policy, precision=precision)
    if precision != "float32":
        raise UserError(
            f"engine torch has no precision '{precision}'; give float32, or engine openvino on a CPU"
        )
    return CompiledTorchEngine(policy) if device.type == "cuda" else TorchEngine(policy)


# The number of CPU threads that PyTorch uses.


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
