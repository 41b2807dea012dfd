"""The spec of a small robot, and fixtures that record episodes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.datasets import EpisodeWriter
from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

SPEC = PolicySpec(
    robot="test_arm",
    cameras=(CameraSpec("head", 12, 16), CameraSpec("wrist", 8, 8)),
    proprioception=(
        ProprioceptionSpec("joints", ("shoulder (rad)", "elbow (rad)", "wrist (rad)")),
    ),
    actions=(ActionPart("arm", 3, "m", low=-0.1, high=0.1), ActionPart("gripper", 1, "", "binary")),
    rate_hz=5.0,
)
"""Two cameras of different sizes, one vector, one continuous and one binary action part."""


def observation_at(tick: int, seed: int = 0) -> dict[str, Any]:
    """Return an observation that differs at each tick."""
    random = np.random.default_rng([seed, tick])
    frames = {
        c.name: random.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8)
        for c in SPEC.cameras
    }
    return {**frames, "joints": np.array([0.1 * tick, seed, -0.1 * tick], dtype=np.float32)}


def action_at(tick: int) -> Any:
    """Return an action that moves the arm slowly and closes the gripper at tick 3."""
    return np.array([0.01 * (tick % 7), -0.02, 0.0, float(tick >= 3)], dtype=np.float32)


@pytest.fixture
def spec() -> PolicySpec:
    return SPEC


@pytest.fixture
def observation() -> Callable[..., dict[str, Any]]:
    return observation_at


@pytest.fixture
def action() -> Callable[[int], Any]:
    return action_at


@pytest.fixture
def record() -> Callable[..., Path]:
    """record(path, ticks=6, seed=0, jpeg_quality=None, drivers=False, **facts) records an episode.

    drivers: record that person and policy took turns. `facts` are options of `EpisodeWriter.finish`.
    It returns the path.
    """

    def record_episode(
        path: Path,
        ticks: int = 6,
        seed: int = 0,
        jpeg_quality: int | None = None,
        drivers: bool = False,
        **facts: Any,
    ) -> Path:
        facts = {"instruction": "pick up the mug", "seed": seed, **facts}
        with EpisodeWriter(path, SPEC, jpeg_quality=jpeg_quality) as writer:
            for tick in range(ticks):
                writer.append(
                    observation_at(tick, seed),
                    action_at(tick),
                    timestamp_s=100.0 + 0.2 * tick,
                    intervention=tick % 2 == 0 if drivers else None,
                )
            return writer.finish(**facts)

    return record_episode


@pytest.fixture
def real_data() -> Path:
    """The folder of real episodes, which lies next to the repository."""
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not (folder / "bridge_v2_robomimic.hdf5").is_file():
        pytest.skip("the real episodes (../shared/data) are not here")
    return folder
