"""The parts of a tick of the kitchen, and how each is timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen_env import KitchenEnv
from ttm.training.bench.sim.everything import Frame
from ttm.training.bench.sim.stopwatch import Stopwatch

PHYSICS, KINEMATICS, HEAD, WRIST, TASK, REST = (
    "physics",
    "inverse kinematics",
    "head",
    "wrist",
    "task",
    "rest",
)
PARTS = (PHYSICS, KINEMATICS, HEAD, WRIST, TASK, REST)
TASK_METHODS = ("go", "update", "predicate", "choice", "tick_limit")


@contextmanager
def timed_parts(env: KitchenEnv, frame: Frame) -> Iterator[Stopwatch]:
    """Time the parts of the present episode's ticks within the context, in which `frame` renders.

    What belongs to no other part, such as measuring the robot, is `REST`, for which the caller times
    the whole of `step`.
    """
    watch = Stopwatch()
    frames = {
        fetch.SCENE_PREFIX + camera: watch.timed(part, frame)
        for camera, part in ((fetch.HEAD_CAMERA, HEAD), (fetch.WRIST_CAMERA, WRIST))
    }

    def timed_frame(camera: str) -> np.ndarray:
        return frames[camera](camera)

    replaced: list[tuple[Any, str]] = [(env.world.cameras, "frame")]
    timed: dict[str, list[tuple[Any, str]]] = {
        PHYSICS: [(env.world, "step"), (env.world, "hold")],
        KINEMATICS: [(env.controller.kinematics, "solve")],
        TASK: [(env.task, name) for name in TASK_METHODS if hasattr(env.task, name)],
    }
    env.world.cameras.frame = timed_frame  # type: ignore[method-assign, assignment]
    for part, methods in timed.items():
        for owner, name in methods:
            setattr(owner, name, watch.timed(part, getattr(owner, name)))
            replaced.append((owner, name))
    try:
        yield watch
    finally:
        for owner, name in replaced:
            delattr(owner, name)  # the method of the class is there again
