"""Another simulator, which has nothing of the kitchen: a point that must touch the coloured side.

Importing this module registers it with Gymnasium as `test/Point-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

RED, BLUE = (200, 30, 30), (30, 30, 200)
STEP_M = 0.1
TICK_LIMIT = 30


class PointExpert:
    """Walks straight to the side that is asked for."""

    def __init__(self, env: PointEnv):
        self.env = env

    def action(self) -> np.ndarray:
        """Return the (2,) action for the present state."""
        step_m = np.clip(self.env.goal_m - self.env.x_m, -STEP_M, STEP_M)
        return np.array([step_m, self.env.success], np.float32)


class PointEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A point between a red and a blue side, which lie 1 m to its left and right in random order."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own attribute)
    policy_spec = PolicySpec(
        robot="point",
        cameras=(CameraSpec("above", 8, 8),),
        proprioception=(ProprioceptionSpec("position", ("x (m)",)),),
        actions=(
            ActionPart("step", 1, "m/tick", low=-STEP_M, high=STEP_M),
            ActionPart("terminate", 1, "1 done", kind="binary", low=0.0, high=1.0),
        ),
        rate_hz=10.0,
    )
    tasks = {"touch": ("touch the red side", "touch the blue side")}  # noqa: RUF012
    observation_space = gymnasium.spaces.Dict(
        {
            "above": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "position": gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Box(
        np.array([-STEP_M, 0], np.float32), np.array([STEP_M, 1], np.float32)
    )

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin the numbered initial state `seed`."""
        super().reset(seed=seed)
        self.x_m = self.np_random.uniform(-0.3, 0.3)
        self.red_m = float(self.np_random.choice([-1.0, 1.0]))
        self.instruction = str(self.np_random.choice(self.tasks["touch"]))
        self.goal_m = self.red_m if "red" in self.instruction else -self.red_m
        return self._observe(), self._info()

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Move the point by `action[0]` metres."""
        self.x_m = float(np.clip(self.x_m + np.clip(action[0], -STEP_M, STEP_M), -1.5, 1.5))
        return self._observe(), float(self.success), self.success, False, self._info()

    @property
    def success(self) -> bool:
        """Whether the point touches the side that is asked for."""
        return abs(self.x_m - self.goal_m) < 0.05

    def expert(self) -> PointExpert:
        """Return what demonstrates the task."""
        return PointExpert(self)

    def render(self) -> np.ndarray:
        """Return what the camera sees, larger."""
        return self._observe()["above"].repeat(16, axis=0).repeat(16, axis=1)

    def _observe(self) -> dict[str, np.ndarray]:
        frame = np.zeros((8, 8, 3), np.uint8)
        left, right = (RED, BLUE) if self.red_m < 0 else (BLUE, RED)
        frame[:, :2], frame[:, -2:] = left, right
        frame[4, round(2 + 1.5 * (self.x_m + 1))] = 255
        return {"above": frame, "position": np.array([self.x_m], np.float32)}

    def _info(self) -> dict[str, Any]:
        return {"instruction": self.instruction, "success": self.success}


gymnasium.register("test/Point-v0", entry_point=PointEnv, max_episode_steps=TICK_LIMIT)
