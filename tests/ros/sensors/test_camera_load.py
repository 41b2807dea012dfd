"""What `camera_load` reads back from a recorded episode."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from ttm_policy.sensors.camera_load import (
    BLOCK,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    numbers_in,
    picture,
    write_number,
)


class Episode:
    """As long as three blocks and a frame, of which the last one is there twice."""

    num_samples = 3 * BLOCK + 1

    def __init__(self) -> None:
        self._given: list[weakref.ref[Any]] = []
        self.most_alive = 0

    def frames(self, camera: str, start: int, stop: int) -> np.ndarray:
        self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self._given) + 1)
        block = np.stack([picture(LEAST_HEIGHT, LEAST_WIDTH, 0)] * (stop - start))
        for frame, number in zip(block, range(start, stop), strict=True):
            write_number(frame, min(number, 3 * BLOCK - 1))
        self._given.append(weakref.ref(block))
        return block


def test_the_frames_of_a_long_episode_are_never_in_memory_at_once() -> None:
    """They were, and ten minutes of two cameras took more memory than the machine had."""
    episode: Any = Episode()
    assert numbers_in(episode, "head").tolist() == list(range(3 * BLOCK))
    assert episode.most_alive <= 2
