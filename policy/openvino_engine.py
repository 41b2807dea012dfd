"""Modules as compiled by OpenVINO, for the engine of CPUs.

At batch size 1, a tick spends most of its time waiting for weights. PyTorch reorders them for the matrix
kernels at every call; OpenVINO reorders them once, and fuses neighbouring operations.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import Precision
from ttm.policy.errors import UserError

# OpenVINO's import sends usage reports to its makers and writes a file into the user's home, unless
# this package is missing. A robot must do neither; None marks the package as missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino  # noqa: E402
from openvino import frontend  # noqa: E402

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables of the environment that limit the instructions that oneDNN uses."""
FAILURES = (frontend.GeneralFailure, frontend.OpConversionFailure, frontend.NotImplementedFailure)
"""The errors of OpenVINO's converter."""


class CompiledModule:
    """Any module that maps tensors of fixed shapes to tensors, compiled for this CPU."""

    def __init__(
        self,
        module: nn.Module | torch.jit.ScriptFunction[Any, Any],
        example: Sequence[Tensor],
        *,
        precision: Precision = "float32",
        threads: int | None = None,
    ) -> None:
        """Compile a module, which is called as module(*example), or what `trace` made of it.

        threads: None for the number of PyTorch's threads.
        """
        traced = module if isinstance(module, torch.jit.ScriptFunction) else trace(module, example)
        try:
            model = openvino.convert_model(traced, example_input=tuple(example))
        except (RuntimeError, *FAILURES) as error:
            why = str(error).strip().splitlines()[-1]  # those before name places in its source
            raise UserError(f"OpenVINO cannot run this ({why}); give engine torch") from error
        model.reshape({index: list(tensor.shape) for index, tensor in enumerate(example)})
        compiled = _compile(model, precision, threads or torch.get_num_threads())
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
        outputs = (self._request.get_output_tensor(i).data for i in range(self._num_outputs))
        return [torch.from_numpy(array.copy()) for array in outputs]


class LayerNormGroups(nn.Module):
    """GroupNorm by means of `F.layer_norm`: OpenVINO 2026.4 crashes on GroupNorm itself."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], self.norm.num_groups, -1)  # (B, G, C / G * H * W)
        normed = F.layer_norm(groups, groups.shape[-1:], eps=self.norm.eps).reshape(x.shape)
        return normed * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


class PlanarPointwise(nn.Module):
    """A 1 x 1 convolution as a matrix product, which gives one plane for each channel.

    OpenVINO 2026.4 computes the convolution with channels last, and is slow to lay out the result in planes.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (B, C, H, W), to (B, C', H, W)."""
        mixed = self.convolution.weight.flatten(1) @ x.flatten(2)  # (B, C', H * W)
        return mixed.reshape(x.shape[0], -1, *x.shape[2:])


def trace(module: nn.Module, example: Sequence[Tensor]) -> torch.jit.ScriptFunction[Any, Any]:
    """Trace a module to a function in TorchScript, from which OpenVINO compiles it.

    `module` itself is changed where OpenVINO needs it, and learns no more; pass a copy.
    """
    _replace_group_norms(module.requires_grad_(False))
    with warnings.catch_warnings(), torch.no_grad():
        # The warnings that sizes become constants, which is correct, and that TorchScript is deprecated.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", r"`?torch\.jit\.", DeprecationWarning)
        options = {"strict": False, "check_trace": False}
        return torch.jit.trace(lambda *x: module(*x), tuple(example), **options)  # type: ignore[no-untyped-call]


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
    return ("float32", "bfloat16") if "BF16" in found else ("float32",)


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
    """Return the one core of the process: with several, Ctrl-C crashes.

    Of OpenVINO 2026.4 only the part that is oneDNN obeys the variables that limit instructions, and the
    rest then does not fit it. So they are hidden while it loads; PyTorch's oneDNN obeys them as before.
    """
    limits = {name: os.environ.pop(name) for name in ONEDNN_LIMITS if name in os.environ}
    try:
        core = openvino.Core()
        core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # loads what would read them
    finally:
        os.environ.update(limits)
    return core
