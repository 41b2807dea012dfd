"""One closed-loop episode: a numbered initial state, something that acts, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np

from ttm.policy.spec import PolicySpec

OnTick = Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], None]
"""Is shown every observation, with the environment's `info`, the first one included."""


class Actor(Protocol):
    """What drives an episode: a policy with its memory, or a scripted expert."""

    def reset(self, instruction: str) -> None:
        """Begin an episode; whatever was remembered is forgotten."""

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """The (A,) float32 command for this tick, in the spec's units."""


@dataclass(frozen=True)
class Outcome:
    """How the episode from one numbered initial state ended."""

    task: str
    seed: int
    instruction: str
    success: bool
    """By the task's predicate on the simulator's state, never by the policy's own word."""
    ticks: int
    terminate_tick: int | None
    """The first tick at which the policy itself said that it is done, counted from 1; None if it never did."""


def run_episode(
    env: gymnasium.Env[Any, Any],
    actor: Actor,
    *,
    spec: PolicySpec,
    task: str,
    seed: int,
    max_ticks: int | None = None,
    on_tick: OnTick | None = None,
) -> Outcome:
    """Drive `env` from initial state `seed` until success, its time limit, or `max_ticks`.

    The episode goes on after the policy has said `terminate`: that word is noted and not believed.
    """
    observation, info = env.reset(seed=seed, options={"task": task})
    instruction = info["instruction"]
    actor.reset(instruction)
    show = on_tick or (lambda observation, info: None)
    show(observation, info)
    ticks, terminate_tick, over = 0, None, False
    while not over and (max_ticks is None or ticks < max_ticks):
        action = actor.act(observation)
        observation, _, terminated, truncated, info = env.step(action)
        ticks += 1
        if terminate_tick is None and _says_done(spec, action):
            terminate_tick = ticks
        show(observation, info)
        over = terminated or truncated
    return Outcome(task, seed, instruction, bool(info["success"]), ticks, terminate_tick)


def _says_done(spec: PolicySpec, action: np.ndarray) -> bool:
    where = spec.action_slices.get("terminate")
    return where is not None and bool(action[where].max() >= 0.5)
