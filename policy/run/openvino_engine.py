"""The engine for CPUs: the tick as compiled by OpenVINO."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.network.inputs import PolicyInputs
from ttm.policy.network.policy import Policy
from ttm.policy.run.engine import Engine
from ttm.policy.run.engine_options import Precision
from ttm.policy.run.openvino_module import CompiledModule, trace
from ttm.policy.run.tick_module import TickLayout, TickModule, example_tick, random_tick

Step = Callable[..., Sequence[Tensor]]
"""A tick whose tensors are laid out by `TickLayout`."""

LARGEST_ERROR: Mapping[Precision, float] = MappingProxyType({"float32": 1e-3, "bfloat16": 0.2})
"""Relative errors that are far beyond those of rounding."""


class OpenVinoEngine(Engine):
    """A compiled copy of the policy. Later changes of the policy's weights have no effect on it."""

    name = "openvino"

    def __init__(
        self, policy: Policy, *, precision: Precision = "float32", threads: int | None = None
    ) -> None:
        """`policy` must be in evaluation mode, on the CPU. `threads` defaults to PyTorch's number."""
        inputs, state = example_tick(policy)
        self._decode = policy.decode_chunk
        self._layout = TickLayout.of(policy, state)
        example = self._layout.flatten(inputs, state)
        tick = TickModule(copy.deepcopy(policy), self._layout).eval().requires_grad_(False)
        traced = trace(tick, example)
        self._model = CompiledModule(traced, example, precision=precision, threads=threads)
        require_agreement(self._model, traced, policy, self._layout, precision)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine.step`."""
        raw, *values = self._model(*self._layout.flatten(inputs, state))
        # PyTorch decodes: OpenVINO's clamp turns NaN, which must not become a command, into a limit,
        # and bfloat16 would round the limits.
        with torch.inference_mode():
            actions = self._decode(raw, inputs.proprioception)[:, 0]
        return actions, dict(zip(self._layout.state_names, values, strict=True))


def require_agreement(
    made: Step, reference: Step, policy: Policy, layout: TickLayout, precision: Precision
) -> None:
    """Run two ticks of noise through both, and raise `UserError` if their results differ.

    `reference` is the traced network that OpenVINO was given, run by PyTorch; tests compare it with
    the policy for every core. A compiler may confuse patterns of operations, and that has to show
    here rather than on a robot.
    """
    made_state = state = example_tick(policy)[1]
    for seed in range(2):
        inputs = random_tick(policy, seed)
        made_action, *made_values = made(*layout.flatten(inputs, made_state))
        with torch.inference_mode():
            action, *values = reference(*layout.flatten(inputs, state))
        made_state, state = (
            dict(zip(layout.state_names, v, strict=True)) for v in (made_values, values)
        )
    errors = {"action": relative_error(made_action, action)}
    errors |= {name: relative_error(made_state[name], value) for name, value in state.items()}
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= LARGEST_ERROR[precision]:
        raise UserError(
            f"OpenVINO computes another {worst} than PyTorch (relative error {errors[worst]:.2g}, "
            f"{precision}); give engine torch, or install another version of openvino"
        )


def relative_error(made: Tensor, wanted: Tensor) -> float:
    """Return the root mean square of the difference, divided by that of `wanted`.

    Returns 0 if `wanted` is not finite.
    """
    made, wanted = made.detach().double(), wanted.detach().double()
    if not wanted.isfinite().all():
        return 0.0  # the runner refuses the NaN of such a network at its first tick
    return float(
        (made - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp_min(1e-6)
    )
