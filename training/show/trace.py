"""A recorded episode replayed through a policy: what its memory read and wrote at every tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.frames import Frames, resize_frame
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.progress import track
from ttm.policy.network.policy import INSTRUCTION, PREVIOUS_ACTION, Policy
from ttm.policy.run.attention_recorder import record_attention
from ttm.policy.run.memory_attention import MEMORY, OUTPUTS, Floats, MemoryAttention, Which
from ttm.policy.run.runner import PolicyRunner
from ttm.policy.spec import PolicySpec

PROPRIOCEPTION = "proprioception"
"""The source that stands for all proprioception vectors together."""


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """The memory over the T ticks of one episode."""

    title: str
    """Names the episode and the policy."""
    instruction: str
    spec: PolicySpec
    """The spec of the policy."""
    frames: Mapping[str, Frames]
    """Camera -> (T, H, W, 3) uint8 RGB, as the policy saw them."""
    attention: tuple[MemoryAttention, ...]
    norms: Floats
    """(T, m): Euclidean norms of the memory tokens after each tick."""

    @property
    def num_ticks(self) -> int:
        """The number T of ticks."""
        return len(self.attention)

    @property
    def erase_add(self) -> bool:
        """Whether the memory is written by erase-and-add, whose writing has no weights."""
        return self.attention[0].write is None

    @property
    def directions(self) -> tuple[Which, ...]:
        """The directions that can be shown."""
        return ("read",) if self.erase_add else ("read", "write")

    @cached_property
    def shares(self) -> dict[Which, dict[str, Floats]]:
        """Direction -> source -> (T,) its share at every tick; proprioception is one source."""
        return {which: self._shares(which) for which in self.directions}

    @cached_property
    def maps(self) -> dict[Which, dict[str, Floats]]:
        """Direction -> camera -> (T, h, w): the share of every cell of the camera's image."""
        return {
            which: {
                camera: np.stack([tick.image_map(camera, which) for tick in self.attention])
                for camera in self.frames
            }
            for which in self.directions
        }

    @cached_property
    def brightest(self) -> float:
        """Share of a cell that gets the brightest colour: the 99.9th percentile of all maps."""
        maps = [values.ravel() for cameras in self.maps.values() for values in cameras.values()]
        return max(float(np.quantile(np.concatenate(maps), 0.999)), 1e-6)

    @cached_property
    def matrices(self) -> Floats:
        """(T, m, m): how much of each old memory token (last axis) each new one kept.

        With erase-and-add it is (T, vectors, m): to which memory slots each of its vectors went.
        """
        return np.stack([_matrix(tick) for tick in self.attention])

    @cached_property
    def slots(self) -> Floats:
        """(T, m): how much of each memory token was kept.

        With erase-and-add it is how much each slot received.
        """
        slots: Floats = self.matrices.mean(axis=1) if self.erase_add else self.matrices.sum(axis=2)
        return slots

    def _shares(self, which: Which) -> dict[str, Floats]:
        ticks = [
            tick.read_shares() if which == "read" else tick.write_shares()
            for tick in self.attention
        ]
        names = [vector.name for vector in self.spec.proprioception]
        members = {MEMORY: [MEMORY], **{camera: [camera] for camera in self.frames}}
        members |= {PROPRIOCEPTION: names} if names else {}
        members |= {
            name: [name] for name in (PREVIOUS_ACTION, INSTRUCTION, OUTPUTS) if name in ticks[0]
        }
        return {
            source: np.array([sum(tick[name] for name in parts) for tick in ticks], np.float32)
            for source, parts in members.items()
        }


def _matrix(tick: MemoryAttention) -> Floats:
    if tick.slots is not None:
        return tick.slots
    assert tick.write is not None
    return tick.write[:, : tick.memory_size]


def trace_memory(policy: Policy, episode: EpisodeReader, title: str) -> MemoryTrace:
    """Replay the observations of `episode` in order, with the memory kept, as on the robot.

    The previous action is the policy's own, so the demonstrator's actions have no influence. Frames
    are resized to the policy's cameras. Raises `UserError` if the core is no Token Turing Machine,
    or an observation is unfit.
    """
    runner = PolicyRunner(policy, engine="torch")  # hooks see only PyTorch's modules
    instruction = episode.instruction or DEFAULT_INSTRUCTION
    runner.reset(instruction, embedding=_embedding(policy, episode, instruction))
    observations = _observations(policy.spec, episode)
    attention, norms = [], []
    with record_attention(policy) as record:
        for tick in track(range(episode.num_samples), "replaying"):
            runner.step({name: values[tick] for name, values in observations.items()})
            attention.append(record.latest)
            norms.append(runner.memory_norms)
    return MemoryTrace(
        title=title,
        instruction=instruction,
        spec=policy.spec,
        frames={camera.name: observations[camera.name] for camera in policy.spec.cameras},
        attention=tuple(attention),
        norms=np.stack(norms),
    )


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
