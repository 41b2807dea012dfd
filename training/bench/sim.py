"""Time the tasks that the options name, and report their figures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import mujoco
import numpy as np
from rich.table import Table
from tyro.conf import arg

from ttm.policy.errors import options, require_at_least, require_some
from ttm.sim.environment import Env, inspect_env, make_env, reset_options
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.kitchen.spec import FRAME_PX
from ttm.sim.kitchen_env import KitchenEnv
from ttm.sim.shipped import KITCHEN
from ttm.sim.tasks.table import TASK_METAVAR
from ttm.training.bench.common import Report, rows_table

# Frames without any saving, to compare with.

Frame = Callable[[str], np.ndarray]
"""The name of a camera -> its view, (64, 64, 3) uint8 RGB."""


class Everything:
    """Draws the whole scene at every call, in view or not, and changed or not."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._renderer, self._data = mujoco.Renderer(model, FRAME_PX, FRAME_PX), data

    def frame(self, camera: str) -> np.ndarray:
        """Return the view of a camera, (64, 64, 3) uint8 RGB."""
        self._renderer.update_scene(self._data, camera)
        frame: np.ndarray = self._renderer.render()
        return frame

    def close(self) -> None:
        """Free the renderer. Rendering makes its GL context the one that is freed."""
        self._renderer.render()
        self._renderer.close()


# Running on a single core, so that nothing is spread over several without being noticed.


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


# The options of `ttm bench sim`.

TASKS = arg(
    metavar=f"{TASK_METAVAR} ...",
    help="Tasks that are timed, or words for several: all for the skills, memory for that suite.",
)


@dataclass(frozen=True)
class SimOptions:
    """Which episodes are timed."""

    tasks: Annotated[tuple[str, ...], TASKS] = ("pick", "open_drawer", "side_shown")
    gap: int = 15
    """Ticks for which memory tasks hide their cue."""
    episodes: int = 10
    """Episodes of each task; figures are medians over them. Each runs twice, drawn in two ways."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "tasks"))
        require_at_least(1, options(self, "episodes", "gap"))


# `ttm bench sim`: time the ticks of the simulated kitchen, by part.


@dataclass(frozen=True)
class BenchSimCommand(SimOptions):
    """Time the control ticks of the simulated kitchen on one core, by part. Takes about half a minute.

    The scripted expert drives the robot, whose own time does not count. Each episode runs twice in
    turns: with the frames as every command renders them, and with all of the scene drawn at every
    tick. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rendering()

        run_bench(self)
        return 0


# Where the time of a call goes: the seconds of its parts, which may be nested.

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Stopwatch:
    """Adds up the seconds of parts. What a part spends within another one counts for the inner one alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []  # for each part that is running: seconds of the parts in it

    def timed(self, part: str, call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return `call` such that its time counts for `part`."""

        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            self._inner.append(0.0)
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._add(part, time.perf_counter() - begun)

        return run

    def take(self) -> dict[str, float]:
        """Return part -> seconds since the last call of this method, and begin anew."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _add(self, part: str, seconds: float) -> None:
        own = seconds - self._inner.pop()
        self._seconds[part] = self._seconds.get(part, 0.0) + own
        if self._inner:
            self._inner[-1] += seconds


# The parts of a tick of the kitchen, and how each is timed.

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


# One timed episode of the scripted expert.

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


# Time the ticks of tasks, rendered in two ways, in turns.

SHIPPED, ALWAYS = "as shipped", "everything"
"""Frames as every command renders them; the whole scene drawn at every tick."""
Episodes = dict[str, list[list[TimedTick]]]
"""How frames are rendered -> the ticks of each episode."""


@dataclass(frozen=True)
class SimRow:
    """The ticks of one task in one situation, rendered in one way."""

    task: str
    situation: Situation
    frames: str
    ticks: int
    ticks_per_s: float
    """Median over the episodes, as the times below."""
    speed: float
    """How many times as fast as with the whole scene drawn at every tick; the median of the ratios of
    the same episodes."""
    tick_ms: float
    parts_ms: dict[str, float]
    different_frames: int
    """Frames that differ in some bit from those of the whole scene."""


def measure_tasks(tasks: Sequence[str], episodes: int, gap: int) -> list[SimRow]:
    """Time `episodes` episodes of each task. gap: ticks for which memory tasks hide their cue."""
    with closing(make_env(KITCHEN)) as env:
        return [row for task in tasks for row in measure_task(env, task, episodes, gap)]


def measure_task(env: Env, task: str, episodes: int, gap: int) -> list[SimRow]:
    """Time one task. An episode before the others is run and not counted."""
    _, info = env.reset(seed=0, options=reset_options(task))
    held = "go" in info
    options = reset_options(task, gap if held else None)
    kitchen = env.unwrapped
    assert isinstance(kitchen, KitchenEnv)
    taken: Episodes = {SHIPPED: [], ALWAYS: []}
    with closing(Everything(kitchen.model, kitchen.data)) as everything:
        frames = {SHIPPED: kitchen.world.cameras.frame, ALWAYS: everything.frame}
        for seed in range(episodes + 1):
            for name, frame in frames.items():
                taken[name].append(timed_episode(env, frame, options, seed))
    counted = {name: ticks[1:] for name, ticks in taken.items()}
    situations: tuple[Situation, ...] = ("gap", "acting") if held else ("acting",)
    return [row for situation in situations for row in rows_of(task, situation, counted)]


def rows_of(task: str, situation: Situation, taken: Episodes) -> list[SimRow]:
    """Return the row of each way to render."""
    means = {
        name: np.array([_mean_parts(ticks, situation) for ticks in episodes])
        for name, episodes in taken.items()
    }  # (episodes, parts), seconds
    whole = {name: parts.sum(axis=1) for name, parts in means.items()}
    different = _different_frames(taken, situation)
    return [
        SimRow(
            task=task,
            situation=situation,
            frames=name,
            ticks=sum(tick.situation == situation for tick in chain(*taken[name])),
            ticks_per_s=float(np.median(1 / whole[name])),
            speed=float(np.median(whole[ALWAYS] / whole[name])),
            tick_ms=float(np.median(whole[name])) * 1e3,
            parts_ms={
                part: float(ms)
                for part, ms in zip(PARTS, np.median(means[name], axis=0) * 1e3, strict=True)
            },
            different_frames=different if name == SHIPPED else 0,
        )
        for name in taken
    ]


def _mean_parts(ticks: Sequence[TimedTick], situation: Situation) -> list[float]:
    """Return the mean seconds of each part over the ticks of an episode in that situation."""
    chosen = [tick.seconds for tick in ticks if tick.situation == situation]
    return [float(np.mean([seconds.get(part, 0.0) for seconds in chosen])) for part in PARTS]


def _different_frames(taken: Episodes, situation: Situation) -> int:
    """Return how many frames depend on the way to render. The same actions led to both."""
    pairs = zip(chain(*taken[SHIPPED]), chain(*taken[ALWAYS]), strict=True)
    return sum(
        not np.array_equal(shipped, always)
        for ours, theirs in pairs
        if ours.situation == situation
        for shipped, always in zip(ours.frames, theirs.frames, strict=True)
    )


# The tables that `ttm bench sim` prints.

BAR_TICKS_PER_S = 160
"""The project's bar for the whole environment on one core."""
HEADINGS = {"inverse kinematics": "IK"}
"""Part -> a shorter name of its column."""
NAMES: Mapping[str, Callable[[SimRow], str]] = MappingProxyType(
    {
        "ticks of": lambda row: row.task if row.situation == "acting" else f"{row.task}, gap",
        "frames": lambda row: row.frames,
    }
)
"""The first columns of both tables."""
NOTES = f"""\
  frames    as shipped: only what is in view is drawn, and nothing twice that did not change.
            everything: the whole scene is drawn at every tick; "speed" is relative to it.
  gap       those ticks of a memory task in which the robot is held still and the cue is hidden.
  bar       {BAR_TICKS_PER_S} ticks a second.
  changed   frames that differ in some bit from those of the whole scene.
  physics   50 substeps and the commands to the motors in each. IK: inverse kinematics (mink).
  task      cue, predicate and choice. rest: measuring the robot, and Gymnasium's wrappers.
"""


def speed_table(rows: Sequence[SimRow]) -> Table:
    """Return the table of ticks a second."""
    columns: dict[str, Callable[[SimRow], str]] = {
        **NAMES,
        "ticks/s": lambda row: f"{row.ticks_per_s:,.0f}",
        "bar": lambda row: f">= {BAR_TICKS_PER_S}" if row.frames == SHIPPED else "",
        "speed": lambda row: f"{row.speed:.2f}",
        "changed": lambda row: str(row.different_frames) if row.frames == SHIPPED else "",
    }
    return rows_table("Ticks of the kitchen on one core; medians over the episodes", columns, rows)


def part_table(rows: Sequence[SimRow]) -> Table:
    """Return the table of the milliseconds of each part of a tick."""
    columns: dict[str, Callable[[SimRow], str]] = {
        **NAMES,
        "tick": lambda row: f"{row.tick_ms:.2f}",
    }
    for part in PARTS:
        columns[HEADINGS.get(part, part)] = partial(_part, part)
    return rows_table("The time of a tick and of its parts, ms", columns, rows)


def _part(part: str, row: SimRow) -> str:
    return f"{row.parts_ms[part]:.2f}"


def run_bench(options: SimOptions) -> None:
    """Time all tasks on one core, print tables, and write the figures."""
    with one_core() as kept:
        tasks = inspect_env(KITCHEN).choose(options.tasks)
        rows = measure_tasks(tasks, options.episodes, options.gap)
    report = Report(options.json, one_core=kept, gap=options.gap, episodes=options.episodes)
    report.table(speed_table(rows))
    report.table(part_table(rows), NOTES)
    report.figures["rows"] = [asdict(row) for row in rows]
    report.write()
