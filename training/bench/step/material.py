"""The trainings whose steps are timed, on recorded or on made-up episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from ttm.datasets.episode_writer import EpisodeWriter
from ttm.policy.network.policy import Policy
from ttm.policy.spec import Observation, PolicySpec
from ttm.training.bench.step.contenders import Contender
from ttm.training.bench.step.options import StepOptions
from ttm.training.cloning.assembly import assembled
from ttm.training.cloning.frozen_vision.feature_cache import FeatureCache
from ttm.training.cloning.loop.trainer import Trainer
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.settings.groups import FrozenVisionConfig, LossConfig


def trainer_of(
    core: Contender, options: StepOptions, data: tuple[str, ...], features: FeatureCache
) -> Trainer:
    """Return the trainer of `ttm train` on whole episodes; it writes no files.

    features: of the vision of `options.init`; what it lacks is added.
    """
    training = TrainOptions(
        data=data,
        out=Path(),
        core=core.name,
        core_options=core.options,
        sight_tokens=core.sight.tokens,
        sight_cells=core.sight.cells,
        init=options.init,
        window="episode",
        batch_size=options.batch_size,
        vision=FrozenVisionConfig(freeze_vision=not core.trains_vision),
        loss=LossConfig(recall_weight=0 if core.trains_vision else options.recall_weight),
        device="cpu",
    )
    training.check()
    return assembled(training, Console(quiet=True), features)


def record_episodes(folder: Path, policy: Policy, options: StepOptions) -> None:
    """Record made-up episodes of the robot of `policy`, whose lengths `options.ticks` spans evenly."""
    lengths = np.linspace(*options.ticks, options.episodes).round().astype(int)
    size = policy.config.embedding_size
    for seed, length in enumerate(lengths):
        rng = np.random.default_rng(seed)
        with EpisodeWriter(folder / f"{seed}.hdf5", policy.spec) as writer:
            for tick in range(length):
                seen, action = _observation(policy.spec, rng), made_up_action(policy.spec, rng)
                writer.append(seen, action, timestamp_s=tick / policy.spec.rate_hz)
            embedding = np.full(size, size**-0.5, np.float32)
            writer.finish(instruction="bench", embedding=embedding)


def made_up_action(spec: PolicySpec, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return an action within the limits of the spec, (A,); binary parts are one of their commands."""
    low, high = (limit.astype(float) for limit in spec.action_limits)
    portion = rng.uniform(size=spec.action_size)
    chosen = np.where(portion < 0.5, low, high)
    # Where there is no limit: 1 from the other limit, or from 0.
    low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0) - 1)
    high = np.where(np.isfinite(high), high, low + 1)
    return np.where(spec.binary_mask, chosen, low + portion * (high - low))


def _observation(spec: PolicySpec, rng: np.random.Generator) -> Observation:
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}
