"""What can drive an environment: a policy, an untrained network, or the environment's expert."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ttm.policy.actor import STATE, Runner
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError
from ttm.policy.execution import EXECUTION
from ttm.policy.policy import PRESETS, Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import SHIPPED_CHECKPOINT, PolicySpec, checkpoint_path
from ttm.sim.environment import Env, expert_of, spec_of
from ttm.sim.rollout import Actor

UNTRAINED = "none"
EXPERT = "expert"


class PolicyActor:
    """A `Runner`, the same object that the ROS node drives. It remembers from reset to reset."""

    def __init__(self, runner: Runner, embeddings: Mapping[str, np.ndarray]):
        """embeddings: instruction -> (L,) float32, for those that the policy does not know itself."""
        self.runner, self._embeddings = runner, embeddings
        self.delay_s = 0.0
        """What the policy is told of the time until its command is in force."""

    @property
    def policy(self) -> Policy | None:
        """The network; None of a policy of another maker."""
        return getattr(self.runner, "policy", None)

    def embedding(self, instruction: str) -> np.ndarray | None:
        """Return the embedding, (L,), of an instruction that the policy does not know itself."""
        return self._embeddings.get(instruction)

    def reset(self, instruction: str) -> None:
        self.runner.reset(instruction, embedding=self.embedding(instruction))

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.runner.step(observation, delay_s=self.delay_s).values

    def executed(self, action: np.ndarray) -> None:
        self.runner.executed(action)

    def memory(self) -> dict[str, np.ndarray]:
        """Return a copy of the memory: the tensors of the core's state, without the batch axis.

        Of a policy of another maker it is all that it remembers. Instruction, previous action and tick
        count are no part of it.
        """
        snapshot = self.runner.snapshot()
        return {name: value for name, value in snapshot.items() if name.startswith(STATE)}

    def set_memory(self, memory: Mapping[str, np.ndarray]) -> None:
        """Replace the memory by what `memory` returned, and leave all else as it is.

        Actions that were planned with the old memory are forgotten, as they would carry on what it held.
        """
        kept = {n: value for n, value in self.runner.snapshot().items() if n != EXECUTION}
        self.runner.restore({**kept, **memory})


class ExpertActor:
    """The environment's expert, which looks into the simulator and not at the observation."""

    def __init__(self, env: Env):
        self._env = env

    def reset(self, instruction: str) -> None:
        self._expert = expert_of(self._env)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._expert.action()

    def executed(self, action: np.ndarray) -> None:
        """Do nothing: an expert sees in the simulator what was done."""


def resolve_checkpoint(checkpoint: str) -> str:
    """Return `none`, `expert`, or the path of the file that an option names.

    Raises `UserError` if there is no such file.
    """
    return checkpoint if checkpoint in (EXPERT, UNTRAINED) else str(checkpoint_path(checkpoint))


def make_actor(source: str, env: Env, embeddings: Mapping[str, np.ndarray]) -> Actor:
    """Return what drives an episode. source: see `resolve_checkpoint`."""
    if source == EXPERT:
        return ExpertActor(env)
    return PolicyActor(PolicyRunner(load_policy(source, spec_of(env))), embeddings)


def load_policy(source: str, spec: PolicySpec) -> Policy:
    """Return the policy of a checkpoint's path, or of `none`.

    Raises `UserError` if the robot lacks one of the policy's inputs, or takes other actions.
    """
    if source == UNTRAINED:
        return untrained_policy(spec)
    policy, _ = load_checkpoint(source)
    if Path(source) == SHIPPED_CHECKPOINT and policy.spec != spec:
        raise UserError(
            f"the policy that ships is for robot {policy.spec.robot}, not for {spec.robot}; name one of "
            "`ttm train` for it (--checkpoint runs/mine/best.safetensors), or evaluate --checkpoint expert"
        )
    policy.spec.require_robot(spec, ours=source)
    return policy


def untrained_policy(spec: PolicySpec) -> Policy:
    """Return the tiny preset as it is before any training, with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Policy(spec, PRESETS["tiny"])
