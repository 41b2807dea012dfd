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
from torch.nn import functional as F

from ttm.policy.action_head import ActionHead
from ttm.policy.spec import PolicySpec
from ttm.policy.ttm_policy import PolicyInputs


@dataclass(frozen=True)
class BehaviorCloningConfig:
    """What is dropped and what is weighted."""

    previous_action_dropout: float = 0.5
    """Portion of windows that see no previous action."""
    proprioception_dropout: float = 0.1
    """Portion of windows that see no proprioception."""
    transition_weight: float = 5.0
    """Weight of the binary parts' loss on the ticks of a change and next to one; 1 elsewhere."""


def drop_inputs(inputs: PolicyInputs, config: BehaviorCloningConfig, rng: np.random.Generator) -> PolicyInputs:
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


def transition_weights(spec: PolicySpec, actions: Tensor, previous: Tensor, known: Tensor, weight: float) -> Tensor:
    """(B, T) weights: `weight` where a binary dimension changes and on the ticks before and after, else 1.

    actions, previous: (B, T, A), the actions of a tick and of the one before it; known: (B, T) bool, False
    where there is none before (an episode's first tick).
    """
    binary = torch.from_numpy(spec.binary_mask).to(actions.device)
    changed = ((actions > 0.5) != (previous > 0.5)) & binary  # (B, T, A)
    changes = (changed.any(dim=2) & known).float().unsqueeze(1)  # (B, 1, T)
    near = F.max_pool1d(changes, kernel_size=3, stride=1, padding=1).squeeze(1)  # (B, T)
    return 1 + (weight - 1) * near


def masked_losses(head: ActionHead, raw: Tensor, actions: Tensor, valid: Tensor, weights: Tensor) -> dict[str, Tensor]:
    raise NotImplementedError
