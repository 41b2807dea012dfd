"""What a training needs to go on exactly where it stopped: one safetensors file, tensors and JSON, never pickle.

There are no states of random generators in it: everything random in step k (windows, augmentation, dropout)
is drawn from generators seeded by (seed, k), so that the step number says it all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError

FORMAT = "1"


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    """Optimiser steps done."""
    elapsed_s: float = 0.0
    """Time spent in the training loop, over all its parts."""
    validations: int = 0
    """How many of the training's validations are behind it."""
    best_error: float | None = None
    """The lowest validation error so far (None before the first validation), and the step it was found at."""
    best_step: int = 0


def save_resume(
    path: Path,
    progress: Progress,
    options: Mapping[str, Any],
    trained: nn.Module,
    average: nn.Module,
    optimizer: Optimizer,
    memory: CoreState | None = None,
) -> None:
    """Writes everything to `path` atomically: a kill at any moment leaves the old file or the new one.

    memory: what the next batch's windows begin with, if it is carried from batch to batch.
    """
    tensors = _prefixed("trained", trained.state_dict()) | _prefixed(
        "average", average.state_dict()
    )
    tensors |= _prefixed("memory", memory or {})
    state = optimizer.state_dict()
    for index, values in state["state"].items():
        tensors |= _prefixed(f"optimizer.{index}", values)
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
    ]
    header = {"progress": asdict(progress), "options": dict(options), "groups": groups}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, metadata={"ttm_resume": FORMAT, "header": json.dumps(header)})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def read_header(path: Path) -> dict[str, Any]:
    """The JSON part: `progress`, `options` and the optimiser's `groups`; `UserError` if it cannot be read."""
    if not path.is_file():
        raise UserError(
            f"{path}: there is no training to resume here; leave out --resume to start one"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise UserError(
            f"{path}: not a training's state ({error}); start again with --overwrite"
        ) from error
    if metadata.get("ttm_resume") != FORMAT:
        raise UserError(
            f"{path}: format {metadata.get('ttm_resume')} of a training's state, not {FORMAT}"
        )
    header: dict[str, Any] = json.loads(metadata["header"])
    return header


def load_resume(
    path: Path, trained: nn.Module, average: nn.Module, optimizer: Optimizer
) -> Progress:
    """Fills models and optimiser, which must be built as they were, from `path`."""
    header = read_header(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    trained.load_state_dict(_under("trained", tensors))
    average.load_state_dict(_under("average", tensors))
    _load_optimizer(optimizer, header["groups"], _under("optimizer", tensors))
    return Progress(**header["progress"])


def load_memory(path: Path, device: torch.device | str) -> CoreState | None:
    """What the next batch's windows begin with, from `path`; None if nothing is carried from batch to batch."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        names = [name for name in file.keys() if name.startswith("memory.")]  # noqa: SIM118 (not a dict)
        return _under("memory", {name: file.get_tensor(name) for name in names}) or None


def _load_optimizer(
    optimizer: Optimizer, groups: list[dict[str, Any]], tensors: Mapping[str, Tensor]
) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = _laid_out_like(parameters[int(index)], value)
    current = optimizer.state_dict()["param_groups"]
    for mine, saved in zip(current, groups, strict=True):
        mine.update(saved)
    optimizer.load_state_dict({"state": state, "param_groups": current})


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Files hold plain layouts; fused optimisers want the moments laid out as the parameter is."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, device="cpu", dtype=value.dtype, requires_grad=False).copy_(
        value
    )


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"{prefix}.{name}": value.detach().contiguous().cpu() for name, value in tensors.items()
    }


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}
