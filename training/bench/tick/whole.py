"""The time of a whole tick, from images to the action, for every preset and for the shipped policy."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.run.engine_options import EngineName, Precision
from ttm.policy.run.openvino_module import supported_precisions
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.shipped import default_checkpoint
from ttm.training.bench.tick.options import Timed
from ttm.training.bench.tick.preset_policy import (
    begin_episode,
    preset_policy,
    random_observation,
    tick_loop,
)
from ttm.training.bench.timing import median_ms, repeated

BAR_MS: dict[Timed, float] = {"tiny": 10.0, "base": 40.0, "paper": 100.0, "shipped": 10.0}
"""What is timed -> the project's bar for the median tick on two CPU cores."""
COMPARED_TICKS = 20


@dataclass(frozen=True)
class WholeRow:
    """A tick of one policy through `PolicyRunner.step`."""

    preset: Timed
    image_size: int
    cameras: int
    engine: str
    precision: str
    median_ms: float
    p99_ms: float
    load_s: float
    error: float
    """The largest difference of an action from PyTorch's over 20 ticks; commands lie in [-1, 1]."""


def measure_presets(presets: Iterable[Timed], ticks: int, torch_ticks: int) -> list[WholeRow]:
    """Measure each preset: `torch_ticks` ticks with PyTorch, then `ticks` with each precision of OpenVINO."""
    return [row for preset in presets for row in measure_whole(preset, ticks, torch_ticks)]


def measure_whole(preset: Timed, ticks: int, torch_ticks: int) -> list[WholeRow]:
    """Measure every engine and precision on one preset with random weights, or on the shipped policy."""
    settings: list[tuple[EngineName, Precision, int]] = [("torch", "float32", torch_ticks)]
    settings += [("openvino", precision, ticks) for precision in supported_precisions()]
    policy = timed_policy(preset)
    rows: list[WholeRow] = []
    expected = None
    for engine, precision, count in settings:
        begun = time.perf_counter()
        runner = PolicyRunner(policy, engine=engine, precision=precision)
        load_s = time.perf_counter() - begun
        actions = actions_of(runner)
        expected = actions if expected is None else expected
        times = repeated(tick_loop(runner), count)
        rows.append(
            WholeRow(
                preset=preset,
                image_size=policy.spec.cameras[0].height,
                cameras=len(policy.spec.cameras),
                engine=engine,
                precision=precision,
                median_ms=median_ms(times),
                p99_ms=float(np.quantile(times, 0.99)) * 1e3,
                load_s=load_s,
                error=float(np.abs(actions - expected).max()),
            )
        )
    return rows


def timed_policy(name: Timed) -> Policy:
    """Return the policy that is shipped, or one of a preset with random weights."""
    if name == "shipped":
        return load_checkpoint(default_checkpoint())[0]
    return preset_policy(name)


def actions_of(runner: PolicyRunner) -> npt.NDArray[np.float32]:
    """Return the actions (20, A) of an episode of random observations."""
    begin_episode(runner)
    observations = (random_observation(runner.spec, seed) for seed in range(COMPARED_TICKS))
    return np.stack([runner.step(observation).probabilities for observation in observations])
