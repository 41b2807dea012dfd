"""The weights with which the policies of the study begin.

Vision, tokens and normalisation are those of one checkpoint. Core, action head and sight memory are
drawn at random by the seed, and two policies of one seed share all drawn tensors of equal name and
shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.network.policy import Policy
from ttm.training.cloning.network_choice import with_vision_kept
from ttm.training.common.sight_option import NO_SIGHT, SightSize


def first_policy(
    seen: Policy,
    config: CoreConfig,
    sources: Sequence[CoreConfig],
    seed: int,
    sight: SightSize = NO_SIGHT,
) -> Policy:
    """Return the policy with the core of `config` with which the training of `seed` begins.

    A drawn tensor whose name and shape one of `sources` has, too, is the one drawn there, the
    first of them first. What initialisation sets without chance, such as biases, stays as it is.

    seen: gives all but core, action head and sight memory. sources: the same for all policies that
    are compared.
    """
    policy = _new(seen, config, seed, sight)
    mine = _drawn(seen, config, seed, sight)
    shared: dict[str, Tensor] = {}
    for source in reversed(sources):
        shared |= {
            name: value
            for name, value in _drawn(seen, source, seed).items()
            if name in mine and mine[name].shape == value.shape
        }
    policy.load_state_dict(shared, strict=False)
    return policy


def _new(seen: Policy, config: CoreConfig, seed: int, sight: SightSize) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_vision_kept(seen, config, sight.tokens, sight.cells)


def _drawn(
    seen: Policy, config: CoreConfig, seed: int, sight: SightSize = NO_SIGHT
) -> dict[str, Tensor]:
    """Return the tensors that depend on the seed."""
    other = _new(seen, config, seed + 1, sight).state_dict()
    return {
        name: value
        for name, value in _new(seen, config, seed, sight).state_dict().items()
        if not torch.equal(value, other[name])
    }
