"""The engine for CPUs: the tick as compiled by OpenVINO.

At batch size 1, a tick spends most of its time waiting for weights. PyTorch reads them as they are
stored and reorders them for the matrix kernels at every call; OpenVINO reorders them once, and fuses
neighbouring operations. Weights of 8 bits would need NNCF, a heavy dependency, and are not offered.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import Precision
from ttm.policy.cores.core import CoreState
from ttm.policy.engines import Engine, TickLayout, TickModule, example_tick, random_tick
from ttm.policy.errors import UserError
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy

# OpenVINO's import sends usage reports to its makers and writes a file into the user's home, unless
# this package is missing. A robot must do neither; None marks the package as missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino  # noqa: E402
from openvino import frontend  # noqa: E402

BFLOAT16 = "BF16"
"""OpenVINO's name for the capability of a processor that has bfloat16 instructions."""

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables of the environment that limit the instructions that oneDNN uses."""

FAILURES = (frontend.GeneralFailure, frontend.OpConversionFailure, frontend.NotImplementedFailure)
"""The errors of OpenVINO's converter."""


class CompiledModule:
    """Any module that maps tensors of fixed shapes to tensors, compiled for this CPU."""

    def __init__(
        self,
        module: nn.Module,
        example: Sequence[Tensor],
        *,
        precision: Precision = "float32",
        threads: int | None = None,
    ) -> None:
        """Compile `module`.

        module: called as module(*example), returns a tuple of tensors. It is traced unless it is a
        ScriptModule already; see `trace`. threads: None for the number of PyTorch's threads.
        """
        traced = module if isinstance(module, torch.jit.ScriptModule) else trace(module, example)
        compiled = _compile(
            _convert(traced, example), precision, threads or torch.get_num_threads()
        )
        self._request = compiled.create_infer_request()
        # Bound once: to pass the arrays at every call takes a tenth of the tick of a small network.
        self._inputs = [np.array(tensor.numpy(), order="C") for tensor in example]
        for index, array in enumerate(self._inputs):
            self._request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        self._num_outputs = len(compiled.outputs)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the outputs, as tensors that later calls do not change."""
        for array, tensor in zip(self._inputs, inputs, strict=True):
            np.copyto(array, tensor.numpy(), casting="no")
        self._request.infer(share_outputs=True)
        # Looked up at every call: the address of an output that equals an input changes.
        outputs = (
            self._request.get_output_tensor(index).data for index in range(self._num_outputs)
        )
        return [torch.from_numpy(array.copy()) for array in outputs]


class LayerNormGroups(nn.Module):
    """GroupNorm by means of `F.layer_norm`: OpenVINO 2026.4 crashes on GroupNorm itself."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (B, C, H, W), to the same shape."""
        groups = x.reshape(x.shape[0], self.norm.num_groups, -1)  # (B, G, C / G * H * W)
        normed = F.layer_norm(groups, groups.shape[-1:], eps=self.norm.eps).reshape(x.shape)
        return normed * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


class PlanarPointwise(nn.Module):
    """A 1 x 1 convolution as a matrix product, which gives one plane for each channel.

    OpenVINO 2026.4 computes the convolution with channels last, and takes up to a third of the tick of a
    small network to lay out the result in planes, as the norm needs it that follows.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (B, C, H, W), to (B, C', H, W)."""
        mixed = self.convolution.weight.flatten(1) @ x.flatten(2)  # (B, C', H * W)
        return mixed.reshape(x.shape[0], -1, *x.shape[2:])


def trace(module: nn.Module, example: Sequence[Tensor]) -> torch.jit.ScriptModule:
    """Trace a module to TorchScript, from which OpenVINO compiles it.

    This takes a third of the time of `torch.export` and gives the same network. `module` itself is
    changed where OpenVINO needs it; pass a copy.
    """
    _replace_group_norms(module)
    with warnings.catch_warnings(), torch.no_grad():
        # The warnings that sizes become constants, which is correct, and that TorchScript is deprecated.
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
        why = (
            str(error).strip().splitlines()[-1]
        )  # the lines before name places in OpenVINO's source
        raise UserError(f"OpenVINO cannot run this network ({why}); give engine torch") from error
    model.reshape({index: list(tensor.shape) for index, tensor in enumerate(example)})
    return model


def _replace_group_norms(module: nn.Module) -> None:
    """Replace each GroupNorm, and the 1 x 1 convolutions beside it, whose results it takes."""
    children = dict(module.named_children())
    normed = any(isinstance(child, nn.GroupNorm) for child in children.values())
    for name, child in children.items():
        if isinstance(child, nn.GroupNorm):
            setattr(module, name, LayerNormGroups(child))
        elif normed and isinstance(child, nn.Conv2d) and _is_pointwise(child):
            setattr(module, name, PlanarPointwise(child))
        else:
            _replace_group_norms(child)


def _is_pointwise(layer: nn.Conv2d) -> bool:
    """Whether a convolution is a matrix product of each pixel's channels and nothing else."""
    alone = layer.kernel_size == (1, 1) and tuple(layer.stride) == (1, 1) and layer.groups == 1
    return alone and layer.bias is None and tuple(layer.padding) == (0, 0)


def supported_precisions() -> tuple[Precision, ...]:
    """Return the precisions for which this CPU has instructions."""
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
        # OpenVINO 2026.4 fuses attention wrongly where the numbers of tokens and heads are equal.
        # Without fusion a tick takes 6 % longer.
        "SNIPPETS_MODE": "DISABLE",
    }
    return _core().compile_model(model, "CPU", properties)


@functools.cache
def _core() -> Any:
    """Return the one core of the process.

    Each core installs a stack for signals. With several, the last one to be destroyed restores a stack
    that is gone, and Ctrl-C then crashes.

    OpenVINO does not see the variables that limit oneDNN's instructions. Only the part of it that is
    oneDNN obeys them; the rest asks the processor, and in 2026.4 the two then do not fit together: to
    compile a network is an error, or to run it ends the process. PyTorch's oneDNN obeys them as before.
    """
    limits = {name: os.environ.pop(name) for name in ONEDNN_LIMITS if name in os.environ}
    try:
        core = openvino.Core()
        core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # loads what would read them
    finally:
        os.environ.update(limits)
    return core


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
