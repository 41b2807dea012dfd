"""The simulator of `point_env.py` with a memory task: a colour is shown, then hidden, then chosen.

Importing this module registers it with Gymnasium as `test/MemoryPoint-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from point_env import BLUE, RED, PointEnv, PointExpert

CUE_TICKS = 2
GAPS = (1, 8)
"""The gap is drawn from this range, both ends included, unless `reset` is given one."""
GREY, WHITE = (90, 90, 90), (255, 255, 255)
COLOURS = {"red": RED, "blue": BLUE}
SIDES_M = {"red": -1.0, "blue": 1.0}
CHOICE_M = 0.25
"""The side is chosen for good at so many metres from the middle."""
TICK_LIMIT = 30


class WaitingExpert(PointExpert):
    """Knows the cue, and stands still until it may move."""

    def action(self) -> np.ndarray:
        """Return the (2,) action for the present state."""
        waits = isinstance(self.env, MemoryPointEnv) and not self.env.go
        return np.zeros(2, np.float32) if waits else super().action()


class MemoryPointEnv(PointEnv):
    """Red is to the left and blue to the right of a point, which is held still until "go".

    The camera sees the cue's colour for two ticks, grey for `gap` ticks, and white from then on.
    """

    tasks = {**PointEnv.tasks, "recall": ("touch the side of the colour",)}  # noqa: RUF012
    task_groups = {"all": ("touch",), "memory": ("recall",)}  # noqa: RUF012

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin the numbered initial state `seed`."""
        options = options or {}
        super().reset(seed=seed)
        self.task, self.tick, self.choice = options.get("task", "touch"), 0, None
        if self.task == "recall":
            self.cue_stays = options.get("cue", "hidden") == "left_on"
            self.gap = int(options.get("gap", self.np_random.integers(GAPS[0], GAPS[1] + 1)))
            self.x_m = 0.0
            self.instruction = self.tasks["recall"][0]
            drawn = str(np.random.default_rng((seed or 0, 9)).choice(list(COLOURS)))
            self.cue = options.get("right_choice", drawn)
            self.goal_m = SIDES_M[self.cue]
        return self._observe(), self._info()

    @property
    def go(self) -> bool:
        """Whether the point may move."""
        return self.task == "touch" or self.tick >= CUE_TICKS + self.gap

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Move the point by `action[0]` metres if it may move, and say how far it was to move."""
        executed = np.zeros(2, np.float32)
        if self.go:
            executed = np.clip(action, self.action_space.low, self.action_space.high)
        self.tick += 1
        if abs(self.x_m + executed[0]) >= CHOICE_M and self.choice is None:
            self.choice = "red" if self.x_m + executed[0] < 0 else "blue"
        observation, reward, terminated, truncated, info = super().step(executed)
        return observation, reward, terminated, truncated, info | {"executed_action": executed}

    def expert(self) -> PointExpert:
        """Return what demonstrates the task."""
        return WaitingExpert(self)

    def _observe(self) -> dict[str, np.ndarray]:
        observation = super()._observe()
        if getattr(self, "task", "touch") == "recall":
            shown = self.tick < CUE_TICKS or self.cue_stays
            colour = COLOURS[self.cue] if shown else WHITE if self.go else GREY
            observation["above"] = np.full((8, 8, 3), colour, np.uint8)
        return observation

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if getattr(self, "task", "touch") == "recall":
            info |= {
                "go": self.go,
                "gap": self.gap,
                "choice": self.choice,
                "choices": tuple(COLOURS),
                "right_choice": self.cue,
            }
        return info


gymnasium.register("test/MemoryPoint-v0", entry_point=MemoryPointEnv, max_episode_steps=TICK_LIMIT)
