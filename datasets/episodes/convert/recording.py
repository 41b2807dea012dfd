"""One episode on its way from one format to another, and the data set that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import Floats
from ttm.datasets.frames import Frames
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FrameStream:
    """The frames of one camera in one episode, which are read one after another."""

    frames: Callable[[], Iterator[Frames]]
    """Starts a pass over the T frames, each (H, W, 3) uint8 RGB."""
    jpegs: Callable[[], Iterator[Frames]] | None = None
    """Starts a pass over the same frames as the JPEGs that were recorded, each (n,) uint8.

    None if they were recorded in another way."""


@dataclass(frozen=True)
class Recording:
    """One episode of T ticks. None stands for what its format did not record."""

    name: str
    """Where it comes from, for error messages."""
    actions: Floats
    """(T, A) float32."""
    vectors: Mapping[str, Floats]
    """Proprioception name -> (T, K) float32."""
    cameras: Mapping[str, FrameStream]
    instruction: str = ""
    task: str = ""
    success: bool | None = None
    seed: int | None = None
    masks: frozenset[str] = frozenset()
    timestamps: Seconds | None = None
    """(T,), capture times in seconds."""
    rewards: Floats | None = None
    dones: npt.NDArray[np.int64] | None = None
    executed_actions: Floats | None = None
    """(T, A), where they differ from `actions`."""
    loss_weights: Floats | None = None
    language_embedding: Floats | None = None
    language_model: str | None = None

    def each_frame(self, camera: str) -> Iterator[Frames]:
        """Yield the T frames of a camera; raise `UserError` if the file holds more or fewer."""
        yield from self._exactly(camera, self.cameras[camera].frames())

    def each_jpeg(self, camera: str) -> Iterator[Frames]:
        """Yield the T JPEGs of a camera that has them, like `each_frame`."""
        jpegs = self.cameras[camera].jpegs
        assert jpegs is not None, f"{camera} was not recorded as JPEG"
        yield from self._exactly(camera, jpegs())

    def _exactly(self, camera: str, items: Iterator[Frames]) -> Iterator[Frames]:
        count, expected = 0, len(self.actions)
        for count, item in enumerate(items, start=1):
            if count > expected:
                break
            yield item
        if count != expected:
            found = f"more than {expected}" if count > expected else str(count)
            raise UserError(
                f"{self.name}: camera '{camera}' has {found} frames, but there are {expected} "
                "actions; leave this episode out, or repair the file"
            )


@dataclass(frozen=True)
class Source:
    """An opened data set of any format."""

    spec: PolicySpec
    num_episodes: int
    recordings: Callable[[], Iterator[Recording]]
    """Starts a pass over all episodes. They are read one by one."""
    has_own_spec: bool = False
    """Whether the data set says what its spec is; otherwise `spec` was inferred from the values."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed or left out, each in one sentence."""
