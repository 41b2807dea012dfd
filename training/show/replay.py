"""A recorded episode, replayed through a policy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.frames import resize_frame
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.progress import track
from ttm.policy.network.policy import Policy
from ttm.policy.run.memory_attention import Floats
from ttm.policy.spec import PolicySpec
from ttm.sim.memory_picture.trace import MemoryTrace, SeenEpisode, trace_memory


def trace_episode(policy: Policy, episode: EpisodeReader, title: str) -> MemoryTrace:
    """Replay the observations of `episode` as `trace_memory` does, under a progress bar.

    The previous action is the one that was executed, as in training. Frames are resized to the
    policy's cameras.
    """
    instruction = episode.instruction or DEFAULT_INSTRUCTION
    observations = _observations(policy.spec, episode)
    seen = SeenEpisode(
        title,
        instruction,
        observations,
        _embedding(policy, episode, instruction),
        executed=episode.executed_actions,
    )
    return trace_memory(policy, seen, each=partial(track, description="replaying"))


def _observations(spec: PolicySpec, episode: EpisodeReader) -> dict[str, npt.NDArray[Any]]:
    """Return every observation as (T, ...).

    All are read at once, so that the file is not opened at every tick.
    """
    seen: dict[str, npt.NDArray[Any]] = {
        camera.name: np.stack(
            [
                resize_frame(frame, camera.height, camera.width)
                for frame in episode.frames(camera.name)
            ]
        )
        for camera in spec.cameras
    }
    return seen | {
        vector.name: episode.proprioception(vector.name) for vector in spec.proprioception
    }


def _embedding(policy: Policy, episode: EpisodeReader, instruction: str) -> Floats | None:
    """Return the episode's embedding if the policy needs it, and if it is of its language model."""
    known = instruction in policy.known_instructions
    fits = episode.language_model in (None, policy.config.language_model)
    return episode.language_embedding if fits and not known else None
