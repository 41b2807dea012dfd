"""Hiding inputs from the network in training, so that it does not rely on them alone.

A policy that sees its previous action learns to repeat it, because that is right on nearly every
tick (the "copycat" problem, Wen et al. 2020). Hiding previous actions for whole windows makes it
learn from the other inputs too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ttm.policy.network.inputs import PolicyInputs
from ttm.training.cloning.settings.groups import InputDropoutConfig


def drop_inputs(
    inputs: PolicyInputs,
    config: InputDropoutConfig,
    rng: np.random.Generator,
    total: int | None = None,
    rows: slice = slice(None),
) -> PolicyInputs:
    """Hide previous actions and proprioception at all ticks of windows drawn at random.

    total, rows: `inputs` are the windows `rows` of a batch of `total` windows, for all of which it
    draws; by default they are the whole batch.
    """
    batch = len(inputs.previous_action_valid) if total is None else total
    keeps_action, keeps_proprioception = (
        torch.from_numpy(rng.random((batch, 1)) >= portion)[rows]
        for portion in (config.previous_action_dropout, config.proprioception_dropout)
    )
    proprioception_valid = inputs.proprioception_valid
    if proprioception_valid is None:
        proprioception_valid = torch.ones_like(inputs.previous_action_valid)
    return replace(
        inputs,
        previous_action_valid=inputs.previous_action_valid & keeps_action,
        proprioception_valid=proprioception_valid & keeps_proprioception,
    )
