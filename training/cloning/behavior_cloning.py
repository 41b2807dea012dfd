"""Behaviour cloning: which inputs the network is denied in training, and which ticks weigh more in the loss.

A policy that sees its previous action learns to repeat it, because that is right on nearly every tick
("copycat" problem, Wen et al. 2020); the few ticks where the gripper changes decide the task. So previous
actions are hidden for whole windows, and the binary parts' loss weighs the ticks around a change more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.network.policy import Policy, PolicyInputs
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class Batch:
    """B windows of T ticks, on any device. The first `burn_in` of the T only bring the memory up to the others."""

    inputs: PolicyInputs
    actions: Tensor
    """(B, T, A) float32, in the spec's units: what the demonstrator did."""
    valid: Tensor
    """(B, T) bool: False at padding."""
    weights: Tensor
    """(B, T, A) float32: how much a binary dimension counts in its part's loss."""
    memory_reset: Tensor
    """(B, T) bool: True where the memory is reset before the tick."""
    burn_in: int = 0

    @property
    def num_images(self) -> int:
        """Frames of all cameras together, padding included."""
        return sum(frames.shape[0] * frames.shape[1] for frames in self.inputs.images.values())

    def to(self, device: torch.device) -> Batch:
        """The same on `device`."""
        return Batch(
            self.inputs.to(device),
            self.actions.to(device),
            self.valid.to(device),
            self.weights.to(device),
            self.memory_reset.to(device),
            self.burn_in,
        )

    def at_ticks(self, ticks: slice) -> Batch:
        """Those ticks of all windows, with no burn-in."""
        return Batch(
            at_ticks(self.inputs, ticks),
            self.actions[:, ticks],
            self.valid[:, ticks],
            self.weights[:, ticks],
            self.memory_reset[:, ticks],
        )


@dataclass(frozen=True)
class BehaviorCloningConfig:
    """What is dropped and what is weighted."""

    previous_action_dropout: float = 0.5
    """Portion of windows that see no previous action."""
    proprioception_dropout: float = 0.1
    """Portion of windows that see no proprioception."""
    transition_weight: float = 5.0
    """Weight of the binary parts' loss on the ticks of a change and next to one; 1 elsewhere."""


def drop_inputs(
    inputs: PolicyInputs, config: BehaviorCloningConfig, rng: np.random.Generator
) -> PolicyInputs:
    """Hides previous actions and proprioception in windows drawn at random, at all ticks of the window."""
    batch, _ = inputs.previous_action_valid.shape
    keeps_action = torch.from_numpy(rng.random((batch, 1)) >= config.previous_action_dropout)
    keeps_proprioception = torch.from_numpy(rng.random((batch, 1)) >= config.proprioception_dropout)
    sees = inputs.proprioception_valid
    if sees is None:
        sees = torch.ones_like(inputs.previous_action_valid)
    return replace(
        inputs,
        previous_action_valid=inputs.previous_action_valid & keeps_action,
        proprioception_valid=sees & keeps_proprioception,
    )


def part_weights(spec: PolicySpec, weights: Tensor) -> dict[str, Tensor]:
    """weights: (B, T, A), for each dimension -> part name -> (B, T), for the parts that have any binary one."""
    return {
        part.name: weights[..., spec.action_slices[part.name]].amax(dim=-1)
        for part in spec.actions
        if part.kind == "binary"
    }


def cloning_losses(
    policy: Policy, batch: Batch, memory: CoreState | None = None
) -> tuple[dict[str, Tensor], CoreState]:
    """Part name -> scalar loss, "loss" -> their sum; and the memory after the last tick.

    memory: what the windows begin with, None for the initial one. A batch with a burn-in finds its own.
    """
    if batch.burn_in:
        memory = memory_after(policy, batch.at_ticks(slice(0, batch.burn_in)))
        batch = batch.at_ticks(slice(batch.burn_in, None))
    prediction, memory = policy(batch.inputs, memory, batch.memory_reset)
    weights = part_weights(policy.spec, batch.weights)
    losses = policy.loss(prediction.raw, batch.actions, valid=batch.valid, weights=weights)
    return {**losses, "loss": torch.stack(list(losses.values())).sum()}, memory


@torch.no_grad()
def memory_after(policy: Policy, batch: Batch) -> CoreState:
    """The memory after the ticks of `batch`, from the initial one and without gradient.

    As in use: without dropout, and with BatchNorm's running statistics, which stay as they are.
    """
    training = policy.training
    policy.eval()
    _, memory = policy.core(policy.encode(batch.inputs), None, batch.memory_reset)
    policy.train(training)
    # Autocast keeps the weights that it has cast. In older versions of PyTorch (its issue 65766) those cast here, which
    # know no gradient, would serve the window too.
    torch.clear_autocast_cache()
    return memory


def at_ticks(inputs: PolicyInputs, ticks: slice) -> PolicyInputs:
    """Those ticks of all windows."""
    felt = inputs.proprioception_valid
    return replace(
        inputs,
        images={name: values[:, ticks] for name, values in inputs.images.items()},
        proprioception={name: values[:, ticks] for name, values in inputs.proprioception.items()},
        previous_action=inputs.previous_action[:, ticks],
        previous_action_valid=inputs.previous_action_valid[:, ticks],
        proprioception_valid=None if felt is None else felt[:, ticks],
    )
