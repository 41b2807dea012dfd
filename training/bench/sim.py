"""`ttm bench sim`: the time of the control ticks of the simulated kitchen on one core, by part.

The parts of a tick are timed by replacing methods of the running environment. The same episodes are
also rendered without any saving, to compare with: the whole scene at every tick, in view or not, and
changed or not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
from tyro.conf import arg

from ttm.policy.errors import options, require_at_least, require_some
from ttm.sim.condition import KITCHEN, Condition
from ttm.sim.environment import Env, inspect_env, make_env, reset_options
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.cameras import Renderer
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.kitchen.spec import FRAME_PX
from ttm.sim.kitchen_env import KitchenEnv
from ttm.sim.tasks.table import TASK_METAVAR
from ttm.sim.workers import VARY
from ttm.training.bench.common import BenchCommand, Cell, Figures, Report, rows_table

PARTS = ("physics", "inverse kinematics", "head", "wrist", "task", "rest")
PHYSICS, KINEMATICS, HEAD, WRIST, TASK, REST = PARTS
TASK_METHODS = ("go", "update", "predicate", "choice", "tick_limit")

SHIPPED, ALWAYS = "as shipped", "everything"
"""Frames as every command renders them; the whole scene drawn at every tick."""
BAR_TICKS_PER_S = 160
"""The project's bar for the whole environment on one core."""
NOTES = f"""\
  frames    as shipped: only what is in view is drawn, and nothing twice that did not change.
            everything: the whole scene is drawn at every tick; "speed" is relative to it.
  gap       those ticks of a memory task in which the robot is held still and the cue is hidden.
  bar       {BAR_TICKS_PER_S} ticks a second.
  changed   frames that differ in some bit from those of the whole scene.
  physics   50 substeps and the commands to the motors in each. IK: inverse kinematics (mink).
  task      cue, predicate and choice. rest: measuring the robot, and Gymnasium's wrappers.
"""

Frame = Callable[[str], np.ndarray]
"""The name of a camera -> its view, (64, 64, 3) uint8 RGB."""


@contextmanager
def one_core() -> Iterator[bool]:
    """Keep this thread, and those that it starts, on one core; yield whether the system can do that.

    Renderers without a graphics card use a thread for each core. They start them when the first
    frame is rendered.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def whole_scene(kitchen: KitchenEnv) -> Iterator[Frame]:
    """Yield a function that draws the whole scene at every call."""
    renderer = Renderer(kitchen.model, FRAME_PX, FRAME_PX)

    def frame(camera: str) -> np.ndarray:
        renderer.update_scene(kitchen.data, camera)
        return renderer.render()

    yield frame
    renderer.render()  # makes its GL context the one that is freed
    renderer.close()


class Stopwatch:
    """Adds up the seconds of parts. What a part spends within another one counts for the inner one alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []  # for each part that is running: seconds of the parts in it

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` such that its time counts for `part`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - begun
                own = seconds - self._inner.pop()
                self._seconds[part] = self._seconds.get(part, 0.0) + own
                if self._inner:
                    self._inner[-1] += seconds

        return run

    def take(self) -> dict[str, float]:
        """Return part -> seconds since the last call of this method, and begin again."""
        taken, self._seconds = self._seconds, {}
        return taken


@contextmanager
def timed_parts(env: KitchenEnv, frame: Frame) -> Iterator[Stopwatch]:
    """Time the parts of the present episode's ticks within the context, in which `frame` renders.

    The caller times the whole of `step` as `REST`.
    """
    watch = Stopwatch()
    frames = {
        fetch.SCENE_PREFIX + fetch.HEAD_CAMERA: watch.timed(HEAD, frame),
        fetch.SCENE_PREFIX + fetch.WRIST_CAMERA: watch.timed(WRIST, frame),
    }
    with ExitStack() as replaced:
        for part, owner, names in (
            (PHYSICS, env.world, ("step", "hold")),
            (KINEMATICS, env.controller.kinematics, ("solve",)),
            (TASK, env.task, [name for name in TASK_METHODS if hasattr(env.task, name)]),
        ):
            for name in names:
                timed = watch.timed(part, getattr(owner, name))
                replaced.enter_context(patch.object(owner, name, timed))
        drawn = patch.object(env.world.cameras, "frame", lambda camera: frames[camera](camera))
        replaced.enter_context(drawn)
        yield watch


class TimedTick(NamedTuple):
    """One tick of the environment."""

    situation: str
    """acting: the robot acted. Where it was held still: "gap", or "shown" for the cue and "go"."""
    seconds: Mapping[str, float]
    """Part -> its seconds."""
    frames: tuple[np.ndarray, np.ndarray]
    """What head and wrist saw after it."""


Episodes = dict[str, list[list[TimedTick]]]
"""How frames are rendered -> the ticks of each episode."""


def timed_episode(env: Env, frame: Frame, start: Mapping[str, Any], seed: int) -> list[TimedTick]:
    """Run the expert from an initial state to the end, with frames rendered by `frame`.

    env: the kitchen, within Gymnasium's wrappers, which count as `REST`. start: options of the reset.
    """
    _, info = env.reset(seed=seed, options=dict(start))
    kitchen: Any = env.unwrapped
    ticks, over = [], False
    with timed_parts(kitchen, frame) as watch:
        step = watch.timed(REST, env.step)
        while not over:
            action, acting = kitchen.expert().action(), info.get("go", True)
            watch.take()  # what the expert asked of the task does not count
            seen, _, terminated, truncated, info = step(action)
            seconds, over = watch.take(), terminated or truncated
            situation = "acting"
            if not acting:
                world, task = kitchen.world, kitchen.task
                hidden = world.tick >= task.cue_end(world) and not info["go"]
                situation = "gap" if hidden else "shown"
            ticks.append(TimedTick(situation, seconds, (seen["head"], seen["wrist"])))
    return ticks


def measure_task(env: Env, task: str, episodes: int, condition: Condition) -> list[Figures]:
    """Time the ticks of a task, rendered in both ways, in turns.

    condition: the gap of memory tasks, and what varies. An episode before the others is run and not
    counted.
    """
    held = "go" in env.reset(seed=0, options=reset_options(task))[1]
    start = reset_options(task, condition.gap if held else None, vary=condition.levels)
    kitchen: Any = env.unwrapped
    taken: Episodes = {SHIPPED: [], ALWAYS: []}
    with whole_scene(kitchen) as everything:
        frames = {SHIPPED: kitchen.world.cameras.frame, ALWAYS: everything}
        for seed in range(episodes + 1):
            for name, frame in frames.items():
                taken[name].append(timed_episode(env, frame, start, seed))
    counted = {name: ticks[1:] for name, ticks in taken.items()}
    situations = ("gap", "acting") if held else ("acting",)
    return [row for situation in situations for row in rows_of(task, situation, counted)]


def rows_of(task: str, situation: str, taken: Episodes) -> list[Figures]:
    """Return the row of each way to render. Times, and speed relative to `ALWAYS`, are medians of episodes.

    different_frames: those that differ in some bit from the whole scene's.
    """
    chosen = {
        name: [[tick for tick in episode if tick.situation == situation] for episode in episodes]
        for name, episodes in taken.items()
    }
    # The same actions led to both.
    pairs = zip(*(chain(*chosen[name]) for name in (SHIPPED, ALWAYS)), strict=True)
    views = chain(*(zip(ours.frames, theirs.frames, strict=True) for ours, theirs in pairs))
    different = sum(not np.array_equal(*both) for both in views)

    def means(name: str) -> np.ndarray:
        """Return the mean seconds of each part in each episode, (episodes, parts)."""
        seconds = ([[t.seconds.get(p, 0.0) for p in PARTS] for t in of] for of in chosen[name])
        return np.array([np.mean(each, axis=0) for each in seconds])

    always = means(ALWAYS).sum(axis=1)
    rows = []
    for name in taken:
        parts = means(name)
        whole = parts.sum(axis=1)
        parts_ms = (np.median(parts, axis=0) * 1e3).tolist()
        rows.append(
            {
                "task": task,
                "situation": situation,
                "frames": name,
                "ticks": sum(map(len, chosen[name])),
                "ticks_per_s": float(np.median(1 / whole)),
                "speed": float(np.median(always / whole)),
                "tick_ms": float(np.median(whole)) * 1e3,
                "parts_ms": dict(zip(PARTS, parts_ms, strict=True)),
                "different_frames": different if name == SHIPPED else 0,
            }
        )
    return rows


@dataclass(frozen=True)
class BenchSimCommand(BenchCommand):
    """Time the control ticks of the simulated kitchen on one core, by part. Takes about half a minute.

    The scripted expert drives the robot, whose own time does not count. Each episode runs twice in
    turns: with the frames as every command renders them, and with all of the scene drawn at every
    tick. Run it while nothing else runs.
    """

    tasks: Annotated[tuple[str, ...], arg(metavar=f"{TASK_METAVAR} ...")] = (
        "pick",
        "open_drawer",
        "side_shown",
    )
    """Tasks that are timed, or words for several: all for the skills, memory for that suite."""
    gap: int = 15
    """Ticks for which memory tasks hide their cue."""
    episodes: int = 10
    """Episodes of each task; figures are medians over them. Each runs twice, drawn in two ways."""
    vary: Annotated[tuple[str, ...], VARY] = ()

    def measure(self, report: Report) -> None:
        """Time all tasks on one core."""
        require_some(options(self, "tasks"))
        require_at_least(1, options(self, "episodes", "gap"))
        require_rendering()
        rows: list[Figures] = []
        with one_core() as kept:
            facts = inspect_env(KITCHEN)
            condition = Condition(self.gap, vary=facts.variants(self.vary)[0])
            with closing(make_env(KITCHEN)) as env:
                for task in facts.choose(self.tasks):
                    rows += measure_task(env, task, self.episodes, condition)
        report.figures |= {"one_core": kept, "gap": self.gap, "episodes": self.episodes}
        report.figures |= {"vary": condition.vary}
        names: dict[str, Cell] = {
            "ticks of": lambda r: r["task"] if r["situation"] == "acting" else f"{r['task']}, gap",
            "frames": "{frames}",
        }
        speeds: dict[str, Cell] = {
            "ticks/s": "{ticks_per_s:,.0f}",
            "bar": lambda r: f">= {BAR_TICKS_PER_S}" if r["frames"] == SHIPPED else "",
            "speed": "{speed:.2f}",
            "changed": lambda r: str(r["different_frames"]) if r["frames"] == SHIPPED else "",
        }
        parts: dict[str, Cell] = {
            "IK" if part == KINEMATICS else part: f"{{parts_ms[{part}]:.2f}}" for part in PARTS
        }
        title = "Ticks of the kitchen on one core; medians over the episodes"
        report.rows("rows", title, {**names, **speeds}, rows)
        title = "The time of a tick and of its parts, ms"
        report.table(rows_table(title, {**names, "tick": "{tick_ms:.2f}", **parts}, rows), NOTES)
