"""Checkpoints: a policy in one safetensors file. They are data, never code (no pickle).

The file holds the weights, the normalisation and the embeddings of known instructions. Its metadata
are strings: ttm_format, spec (JSON), config (JSON), language_model, instructions (JSON list),
info (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from ttm.policy.errors import UserError, first_line
from ttm.policy.files import write_atomically
from ttm.policy.policy import Policy, PolicyConfig
from ttm.policy.spec import CHECKPOINT_FORMAT, PolicySpec, checkpoint_path, damaged, read_header

WEIGHTS, INSTRUCTIONS = "policy.", "instruction."
"""Prefixes of the names of the arrays."""


def save_checkpoint(path: Path | str, policy: Policy, info: Mapping[str, Any]) -> None:
    """Write `path` atomically. info: plain data about the training, such as steps, command and date."""
    known = policy.known_instructions
    state = policy.state_dict()
    arrays = {WEIGHTS + name: x.detach().cpu().contiguous() for name, x in state.items()}
    arrays |= {f"{INSTRUCTIONS}{i}": torch.tensor(value) for i, value in enumerate(known.values())}
    metadata = {
        "ttm_format": CHECKPOINT_FORMAT,
        "spec": policy.spec.to_json(),
        "config": json.dumps(policy.config.to_dict()),
        "language_model": policy.config.language_model,
        "instructions": json.dumps(list(known)),
        "info": json.dumps(dict(info)),
    }
    write_atomically(Path(path), save(arrays, metadata))


def load_checkpoint(
    path: Path | str, device: torch.device | str = "cpu"
) -> tuple[Policy, dict[str, Any]]:
    """Return the policy, in evaluation mode, and the `info` that it was saved with.

    path: of a file, or "shipped" for the policy that ships with the project.
    Raises `UserError` as `read_header`, and if PyTorch cannot compute on the device.
    """
    _require_device(device)
    path = checkpoint_path(path)
    metadata = read_header(path)
    with safe_open(str(path), framework="pt") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    weights = {n.removeprefix(WEIGHTS): x for n, x in arrays.items() if n.startswith(WEIGHTS)}
    try:
        spec = PolicySpec.from_json(metadata["spec"])
        config = PolicyConfig.from_dict(json.loads(metadata["config"]))
        policy = build_empty(spec, config)
        weights.setdefault("words.weight", policy.words.weight)  # older files have none
        policy.load_state_dict(weights)
        policy.known_instructions = {
            text: arrays[f"{INSTRUCTIONS}{i}"].numpy()
            for i, text in enumerate(json.loads(metadata["instructions"]))
        }
        info: dict[str, Any] = json.loads(metadata["info"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged(path, error) from error
    return policy.to(device).eval(), info


def build_empty(spec: PolicySpec, config: PolicyConfig) -> Policy:
    """Return a policy to load weights into. It does not download ImageNet weights to replace them."""
    policy = Policy(spec, replace(config, vision=replace(config.vision, weights="random")))
    policy.config = config
    if policy.vision is not None:
        policy.vision.weights_used = "checkpoint"
    return policy


def _require_device(device: torch.device | str) -> None:
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:  # the former of a build without CUDA
        fault = f"device is '{device}', on which PyTorch cannot compute ({first_line(error)})"
        raise UserError(f"{fault}; give cpu") from error
