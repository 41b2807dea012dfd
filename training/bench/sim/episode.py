"""One timed episode of the scripted expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ttm.sim.environment import Env
from ttm.sim.kitchen_env import KitchenEnv
from ttm.training.bench.sim.everything import Frame
from ttm.training.bench.sim.parts import REST, timed_parts

Situation = Literal["acting", "gap", "shown"]


@dataclass(frozen=True)
class TimedTick:
    """One tick of the environment."""

    situation: Situation
    """Whether the robot acted. Where it was held still: whether the tick is of the gap, or shows the cue
    or "go"."""
    seconds: Mapping[str, float]
    """Part -> its seconds."""
    frames: tuple[np.ndarray, np.ndarray]
    """What head and wrist saw after it."""


def timed_episode(
    env: Env, frame: Frame, reset_options: Mapping[str, Any], seed: int
) -> list[TimedTick]:
    """Run the expert from an initial state to the end, with frames rendered by `frame`.

    env: the kitchen, within Gymnasium's wrappers, which count as `REST`.
    """
    _, info = env.reset(seed=seed, options=dict(reset_options))
    kitchen = env.unwrapped
    assert isinstance(kitchen, KitchenEnv)
    ticks, over = [], False
    with timed_parts(kitchen, frame) as watch:
        step = watch.timed(REST, env.step)
        while not over:
            action, acting = kitchen.expert().action(), info.get("go", True)
            watch.take()  # what the expert asked of the task does not count
            observation, _, terminated, truncated, info = step(action)
            seconds, over = watch.take(), terminated or truncated
            situation = "acting" if acting else _held(kitchen, info)
            ticks.append(TimedTick(situation, seconds, (observation["head"], observation["wrist"])))
    return ticks


def _held(kitchen: KitchenEnv, info: Mapping[str, Any]) -> Situation:
    """Return the situation of a tick in which the robot was held still."""
    cue_ticks: int = kitchen.task.cue_ticks  # type: ignore[attr-defined]
    return "gap" if info["tick"] >= cue_ticks and not info["go"] else "shown"
