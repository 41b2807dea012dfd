"""The tick on a CPU by OpenVINO: weights packed for the processor at load, neighbouring operations in one pass.

A tick at batch 1 mostly waits for weights to be read from memory. PyTorch reads them as they are stored and brings
them into the order that the matrix kernels want at every call; OpenVINO does that once. Weights of 8 bits would need
NNCF, a heavy dependency, and are not offered.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy, PolicyInputs
from ttm.policy.run.engine import Engine, Precision
from ttm.policy.run.tick import Tick, TickLayout, example_tick, random_tick

# OpenVINO reports its use to its makers unless the user's home says otherwise, beginning with its own import, and
# leaves a file there. A robot must not. It does without where that package is absent, which is what None says here.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino  # noqa: E402
from openvino import frontend  # noqa: E402

Step = Callable[..., Sequence[Tensor]]
"""A tick as laid out by `TickLayout`."""

LARGEST_ERROR: Mapping[Precision, float] = MappingProxyType({"float32": 1e-3, "bfloat16": 0.2})
"""Relative errors that rounding never comes near."""

BFLOAT16 = "BF16"
"""How OpenVINO calls the capability of a processor that has instructions for it."""

FAILURES = (frontend.GeneralFailure, frontend.OpConversionFailure, frontend.NotImplementedFailure)
"""Of OpenVINO's converter."""


class OpenVinoEngine(Engine):
    """A copy of the policy as it was when the engine was made; later changes to the policy's weights have no effect."""

    name = "openvino"

    def __init__(
        self, policy: Policy, *, precision: Precision = "float32", threads: int | None = None
    ) -> None:
        """policy: in evaluation mode, on the CPU. threads: None for as many as PyTorch has now."""
        inputs, state = example_tick(policy)
        self._decode = policy.decode
        self._layout = TickLayout(policy.spec, tuple(state))
        example = self._layout.flatten(inputs, state)
        tick = Tick(copy.deepcopy(policy), self._layout).eval().requires_grad_(False)
        traced = trace(tick, example)
        self._model = CompiledModule(traced, example, precision=precision, threads=threads)
        require_agreement(self._model, traced, policy, self._layout, precision)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine`."""
        raw, *values = self._model(*self._layout.flatten(inputs, state))
        # By PyTorch: OpenVINO's clamp makes a limit of NaN, which must not become a command, and bfloat16 would
        # round the limits.
        with torch.inference_mode():
            action = self._decode(raw)[:, 0]
        return action, dict(zip(self._layout.state_names, values, strict=True))


def require_agreement(
    made: Step, reference: Step, policy: Policy, layout: TickLayout, precision: Precision
) -> None:
    """Two ticks of noise through both; `UserError` if `made` computes something else than `reference`.

    reference: what OpenVINO was given, run by PyTorch; that it is the policy, tests say for every core. A compiler may
    take one pattern of operations for another: no robot is to find that out.
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
            f"OpenVINO computes another {worst} than PyTorch (relative error {errors[worst]:.2g}, {precision}); "
            f"give engine torch, or install another version of openvino"
        )


def relative_error(made: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference, as a part of that of the values; 0 where those are not finite themselves."""
    made, wanted = made.detach().double(), wanted.detach().double()
    if not wanted.isfinite().all():
        return 0.0  # a network that is NaN is refused at its first tick
    return float(
        (made - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp_min(1e-6)
    )


class CompiledModule:
    """Any module from tensors to tensors, of fixed shapes, compiled by OpenVINO for this CPU."""

    def __init__(
        self,
        module: nn.Module,
        example: Sequence[Tensor],
        *,
        precision: Precision = "float32",
        threads: int | None = None,
    ) -> None:
        """module: called as module(*example) -> tuple of tensors; traced if it is not yet, see `trace`."""
        traced = module if isinstance(module, torch.jit.ScriptModule) else trace(module, example)
        compiled = _compile(
            _convert(traced, example), precision, threads or torch.get_num_threads()
        )
        self._request = compiled.create_infer_request()
        # Bound once: handing arrays over at every call would take a tenth of a small network's tick.
        self._inputs = [np.array(tensor.numpy(), order="C") for tensor in example]
        for index, array in enumerate(self._inputs):
            self._request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        self._num_outputs = len(compiled.outputs)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs, of which nothing changes at the next call."""
        for array, tensor in zip(self._inputs, inputs, strict=True):
            np.copyto(array, tensor.numpy(), casting="no")
        self._request.infer(share_outputs=True)
        # Asked for anew: where an output is an input as it came, its place changes from call to call.
        outputs = (
            self._request.get_output_tensor(index).data for index in range(self._num_outputs)
        )
        return [torch.from_numpy(array.copy()) for array in outputs]


class LayerNormGroups(nn.Module):
    """GroupNorm by `F.layer_norm`: OpenVINO 2026.4 crashes on GroupNorm itself."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> the same."""
        groups = x.reshape(x.shape[0], self.norm.num_groups, -1)  # (B, G, C / G * H * W)
        normed = F.layer_norm(groups, groups.shape[-1:], eps=self.norm.eps).reshape(x.shape)
        return normed * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


def trace(module: nn.Module, example: Sequence[Tensor]) -> torch.jit.ScriptModule:
    """To TorchScript, which OpenVINO reads in a third of the time that `torch.export` takes, and as the same network.

    module: taken over, and changed where OpenVINO needs it.
    """
    _replace_group_norm(module)
    with warnings.catch_warnings(), torch.no_grad():
        # Sizes become constants, which they are; and PyTorch wants everybody to leave TorchScript.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", r"`?torch\.jit\.", DeprecationWarning)
        traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
            module, tuple(example), strict=False, check_trace=False
        )
    return traced


def _convert(traced: torch.jit.ScriptModule, example: Sequence[Tensor]) -> Any:
    try:
        model = openvino.convert_model(traced, example_input=tuple(example))
    except (RuntimeError, *FAILURES) as error:
        why = str(error).strip().splitlines()[-1]  # the first lines are places in OpenVINO's source
        raise UserError(f"OpenVINO cannot run this network ({why}); give engine torch") from error
    model.reshape({index: list(tensor.shape) for index, tensor in enumerate(example)})
    return model


def _replace_group_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(module, name, LayerNormGroups(child))
        else:
            _replace_group_norm(child)


def supported_precisions() -> tuple[Precision, ...]:
    """Those that this CPU has instructions for."""
    found = _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return ("float32", "bfloat16") if BFLOAT16 in found else ("float32",)


def _compile(model: Any, precision: Precision, threads: int) -> Any:
    if precision not in supported_precisions():
        raise UserError(f"this CPU has no instructions for {precision}; give precision float32")
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
        # OpenVINO 2026.4 fuses attention wrongly where there are as many tokens as heads. Not to fuse costs 6 %.
        "SNIPPETS_MODE": "DISABLE",
    }
    return _core().compile_model(model, "CPU", properties)


@functools.cache
def _core() -> Any:
    """One for the process. Each gives it a stack for signals, and of several the last to go gives back one that is
    gone: Ctrl-C would then crash."""
    return openvino.Core()
