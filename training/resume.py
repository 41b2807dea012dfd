"""Continuing a training exactly where it stopped: the file for it, and what must be as it was then.

The file is a safetensors file with a JSON header, without pickle. It holds no state of a random
generator: everything random in step k (windows, augmentation, dropout) is drawn from generators seeded
by (seed, k), so the step number suffices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from ttm.datasets.dataset import EpisodeDataset
from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.training.options import ACTIONS, PLACES, TrainOptions, label

FORMAT = "2"


@dataclass
class TrainingProgress:
    """How far a training has come."""

    step: int = 0
    """Optimiser steps done."""
    elapsed_s: float = 0.0
    """Seconds spent in the training loop, including those before a resume."""
    validations: int = 0
    """Number of validations done."""
    best_error: float | None = None
    """The lowest validation error so far; None before the first validation."""
    best_step: int = 0
    """The step at which `best_error` was found."""
    validations_since_best: int = 0
    """Validations after that one, in a row without a lower error."""


def save_resume(
    path: Path,
    progress: TrainingProgress,
    facts: Mapping[str, Any],
    models: Mapping[str, nn.Module],
    optimizer: Optimizer,
    memory: CoreState | None = None,
) -> None:
    """Write everything to `path`; a kill at any moment leaves the old file or the new one.

    facts: what a training that resumes is compared with, by name, as plain data for JSON. models: by
    name, without dots. memory: that the next batch starts from, if it is carried from batch to batch.
    """
    state = optimizer.state_dict()
    parts: dict[str, Mapping[str, Tensor]] = {n: m.state_dict() for n, m in models.items()}
    parts["memory"] = memory or {}
    parts |= {f"optimizer.{index}": values for index, values in state["state"].items()}
    tensors = {
        f"{prefix}.{name}": value.detach().contiguous().cpu()
        for prefix, values in parts.items()
        for name, value in values.items()
    }
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
    ]
    header = {**facts, "progress": asdict(progress), "groups": groups}
    metadata = {"ttm_resume": FORMAT, "header": json.dumps(header)}
    write_atomically(path, save(tensors, metadata))


def read_header(path: Path) -> dict[str, Any]:
    """Return the JSON part: `progress`, the optimiser's `groups`, and the facts of `save_resume`.

    Raises `UserError` if the file cannot be read.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no training to resume here; omit --resume to start one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise UserError(
            f"{path}: not a training's state ({error}); start again with --overwrite"
        ) from error
    if (found := metadata.get("ttm_resume")) != FORMAT:
        fault = f"{path}: another version's state of format {found}, not {FORMAT}"
        raise UserError(f"{fault}; go on with that version, or start again with --overwrite")
    header: dict[str, Any] = json.loads(metadata["header"])
    return header


def load_resume(
    path: Path, models: Mapping[str, nn.Module], optimizer: Optimizer
) -> TrainingProgress:
    """Fill the models and the optimiser, which must be built as they were, from `path`."""
    header = read_header(path)
    for name, model in models.items():
        model.load_state_dict(_read(path, name))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _read(path, "optimizer").items():
        index, key = name.split(".", 1)
        parameter = parameters[int(index)]
        if value.shape == parameter.shape:
            # Fused optimisers need the memory layout of the parameter; files hold plain layouts.
            layout = torch.empty_like(
                parameter, device="cpu", dtype=value.dtype, requires_grad=False
            )
            value = layout.copy_(value)
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for mine, saved in zip(groups, header["groups"], strict=True):
        mine.update(saved)
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return TrainingProgress(**header["progress"])


def load_memory(path: Path, device: torch.device | str) -> CoreState | None:
    """Return the memory that the next batch starts from, or None if none is carried."""
    return _read(path, "memory", device) or None


def _read(path: Path, prefix: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix` and a dot, by the rest of their names."""
    start = f"{prefix}."
    with safe_open(path, framework="pt", device=str(device)) as file:
        names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118 (not a dict)
        return {name.removeprefix(start): file.get_tensor(name) for name in names}


LENGTH = ("steps", "minutes")
"""Options on which the course of the learning rate depends."""
ADJUSTABLE = ("learning-rate", "optimizer.gradient-limit", "precision")
"""Options that `--resume-anyway` may change, so that a training that diverged can go on."""
MAY_CHANGE = frozenset({
    *ACTIONS, *LENGTH, "data", "out", "early-stopping", "save-every", "keep", "logger", "validations",
    "threads", "workers", "device", "devices", "nodes", "accumulate",
    "core", "core-options", "head-options",
})  # fmt: skip
"""Options that are not compared here. The content of the episodes is compared in place of `data`, and the
last three with the checkpoint's network."""


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return by name, in words, where two mappings differ; what `then` lacks does not count."""
    return {
        name: f"{label(name) if name in PLACES else name} ({then[name]} then, {value} now)"
        for name, value in now.items()
        if name in then and then[name] != value
    }


def described(options: TrainOptions) -> dict[str, dict[str, Any]]:
    """Return the options that a resumed training must share, and those that give its length."""
    plain = options.plain()
    shared = {name: value for name, value in plain.items() if name not in MAY_CHANGE}
    return {"options": shared, "length": {name: plain[name] for name in LENGTH}}


def require_same_options(options: TrainOptions, header: Mapping[str, Any]) -> list[str]:
    """Raise `UserError` if `options` are not those of the training that was saved with `header`.

    Returns what differs in length or in `ADJUSTABLE`, which --resume-anyway allows.
    """
    # A training that was saved before an option existed has its default.
    defaults, now = described(TrainOptions(data=(), out=Path())), described(options)
    found = differences({**defaults["options"], **header["options"]}, now["options"])
    adjusted = [found.pop(name) for name in ADJUSTABLE if name in found]
    if found:
        raise UserError(
            f"this is another training than that in --out: {', '.join(found.values())}; give another --out"
        )
    longer = list(differences(header.get("length", {}), now["length"]).values())
    _require_allowed(options, longer, "the learning rate follows the length of the training")
    _require_allowed(options, adjusted, "these options change every step")
    return [*longer, *adjusted]


def require_same_data(
    options: TrainOptions, header: Mapping[str, Any], data: Mapping[str, Any]
) -> list[str]:
    """Raise `UserError` if the episodes are not those of the training that was saved with `header`.

    data: the fingerprint of the episodes. Returns what differs, which --resume-anyway allows.
    """
    found = list(differences(header.get("data", {}), data).values())
    _require_allowed(options, found, "the episodes are not those that it was trained on")
    return found


def _require_allowed(options: TrainOptions, found: Sequence[str], why: str) -> None:
    if found and not options.resume_anyway:
        raise UserError(
            f"cannot resume exactly: {', '.join(found)}; {why}. --resume-anyway accepts that"
        )


EPISODES = 32
"""Of so many episodes, evenly spread, the first frame of each camera counts. All frames would take as long
as an epoch to read."""


def fingerprint(
    name: str, episodes: EpisodeDataset, vectors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return what the episodes hold, by names that begin with `name`, as plain data for JSON.

    A resumed training knows them again by it. Names, places and times of files do not count, so that
    data can be moved or copied.

    vectors: what their ticks hold besides frames, by name. Digests stand for arrays and texts, in
    the order of the episodes, on which the batches depend.
    """
    chosen = np.unique(np.linspace(0, len(episodes) - 1, EPISODES).astype(int)).tolist()
    names = [camera.name for camera in episodes.spec.cameras]
    frames = (episodes[index].frames(name, 0, 1) for index in chosen for name in names)
    found = {
        "episodes": len(episodes),
        "ticks": episodes.num_ticks,
        "lengths": _digest([np.array([episode.num_samples for episode in episodes])]),
        "instructions": _digest([np.array([episode.instruction for episode in episodes])]),
        "frames": _digest(frames),
        **{key: _digest([value.cpu().numpy()]) for key, value in vectors.items()},
    }
    return {f"{name} {key}": value for key, value in found.items()}


def _digest(arrays: Iterable[Any]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
