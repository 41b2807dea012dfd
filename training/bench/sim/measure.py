"""Time the ticks of tasks, rendered in two ways, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ttm.sim.environment import KITCHEN, Env, make_env, reset_options
from ttm.sim.kitchen_env import KitchenEnv
from ttm.training.bench.sim.episode import Situation, TimedTick, timed_episode
from ttm.training.bench.sim.everything import Everything
from ttm.training.bench.sim.parts import PARTS

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
