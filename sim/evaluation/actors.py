"""Who can drive the simulated robot: a checkpoint, an untrained network, or the scripted expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ttm.sim.evaluation.rollout import Actor

if TYPE_CHECKING:
    from ttm.policy.network.policy import Policy
    from ttm.policy.run.runner import PolicyRunner
    from ttm.sim.kitchen.env import KitchenEnv

UNTRAINED = "none"
EXPERT = "expert"
UNTRAINED_SEED = 0


class PolicyActor:
    """A `PolicyRunner`, the very object that the ROS node drives; its memory lasts from reset to reset."""

    def __init__(self, runner: PolicyRunner, embeddings: Mapping[str, np.ndarray]):
        """embeddings: instruction -> (L,) float32, for those that the policy does not know by itself."""
        self._runner = runner
        self._embeddings = embeddings

    def reset(self, instruction: str) -> None:
        self._runner.reset(instruction, embedding=self._embeddings.get(instruction))

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._runner.step(observation).values


class ExpertActor:
    """The scripted demonstrator, which looks into the simulator and not at the observation."""

    def __init__(self, env: KitchenEnv):
        from ttm.sim.experts import Expert

        self._expert = Expert(env)

    def reset(self, instruction: str) -> None:
        """It keeps nothing from tick to tick."""

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._expert.action()


def make_actor(source: str, env: KitchenEnv, embeddings: Mapping[str, np.ndarray]) -> Actor:
    """source: the path of a checkpoint, `none` for an untrained network, or `expert`."""
    return ExpertActor(env) if source == EXPERT else PolicyActor(make_runner(source), embeddings)


def make_runner(source: str) -> PolicyRunner:
    """source: the path of a checkpoint that was trained for this robot, or `none`."""
    from ttm.policy.run.runner import PolicyRunner

    return PolicyRunner(load_policy(source))


def load_policy(source: str) -> Policy:
    """As `make_runner`, without making it ready to run, which takes longer. `UserError` if it is for another robot."""
    from ttm.policy.run.checkpoint import load_checkpoint
    from ttm.sim.kitchen.env import SPEC

    if source == UNTRAINED:
        return untrained_policy()
    policy, _ = load_checkpoint(source)
    policy.spec.require_compatible(SPEC, theirs="this robot", ours=source)
    return policy


def untrained_policy() -> Policy:
    """The tiny preset as it is before any training, the same one every time."""
    import torch

    from ttm.policy.network.policy import PRESETS, Policy
    from ttm.sim.kitchen.env import SPEC

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(UNTRAINED_SEED)
        return Policy(SPEC, PRESETS["tiny"])
