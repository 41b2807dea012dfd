"""One episode in closed loop: a numbered initial state, something that acts, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ttm.policy.spec import PolicySpec
from ttm.sim.environment import Env

OnTick = Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], None]
"""Is called with every observation, the first one included, and with the environment's `info`. There
`tick` and `time_s` are added where the environment does not give them."""


class Actor(Protocol):
    """What drives an episode: a policy with its memory, or a scripted expert."""

    def reset(self, instruction: str) -> None:
        """Begin an episode and forget the last one."""

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return this tick's command, (A,) float32 in the units of the spec."""


@dataclass(frozen=True)
class Outcome:
    """How the episode from one numbered initial state ended."""

    task: str
    seed: int
    instruction: str
    success: bool
    """Whether the simulator's state was one that was asked for. The policy's own word does not count."""
    ticks: int
    terminate_tick: int | None
    """The first tick, counted from 1, at which the policy said that it is done; None if it never did."""


def run_episode(
    env: Env,
    actor: Actor,
    *,
    spec: PolicySpec,
    task: str,
    seed: int,
    max_ticks: int | None = None,
    on_tick: OnTick | None = None,
) -> Outcome:
    """Drive `env` from initial state `seed` until success, its time limit, or `max_ticks`.

    The episode goes on after the policy has commanded `terminate`, which is only noted.
    """
    observation, info = env.reset(seed=seed, options={"task": task})
    instruction = info["instruction"]
    actor.reset(instruction)
    ticks, terminate_tick, over = 0, None, False

    def show() -> None:
        if on_tick is not None:
            on_tick(observation, {"tick": ticks, "time_s": ticks * spec.control_dt_s, **info})

    show()
    while not over and (max_ticks is None or ticks < max_ticks):
        action = actor.act(observation)
        observation, _, terminated, truncated, info = env.step(action)
        ticks += 1
        if terminate_tick is None and _says_done(spec, action):
            terminate_tick = ticks
        show()
        over = terminated or truncated
    return Outcome(task, seed, instruction, bool(info["success"]), ticks, terminate_tick)


def _says_done(spec: PolicySpec, action: np.ndarray) -> bool:
    where = spec.action_slices.get("terminate")
    return where is not None and bool(action[where].max() >= 0.5)
