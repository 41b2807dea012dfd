"""Choose the engine for a device and a precision."""

from __future__ import annotations

from typing import get_args

import torch

from ttm.policy.checks import require_choice
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.run.engine import Engine
from ttm.policy.run.engine_options import EngineName, Precision
from ttm.policy.run.torch_engine import CompiledTorchEngine, TorchEngine


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
        from ttm.policy.run.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(policy, precision=precision)
    if precision != "float32":
        raise UserError(
            f"engine torch has no precision '{precision}'; give float32, or engine openvino on a CPU"
        )
    return CompiledTorchEngine(policy) if device.type == "cuda" else TorchEngine(policy)
