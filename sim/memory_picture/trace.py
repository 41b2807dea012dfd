"""An episode replayed through a policy: what its memory read and wrote at every tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import Frames
from ttm.policy.network.policy import INSTRUCTION, PREVIOUS_ACTION, Policy
from ttm.policy.network.sight import SOURCES as SIGHT_SOURCES
from ttm.policy.run.attention_recorder import record_attention
from ttm.policy.run.memory_attention import MEMORY, OUTPUTS, Floats, MemoryAttention, Which
from ttm.policy.run.runner import PolicyRunner
from ttm.policy.spec import PolicySpec

PROPRIOCEPTION = "proprioception"
"""The source that stands for all proprioception vectors together."""
SIGHT = "sight memory"
"""The source that stands for all tokens of the sight memory together."""


@dataclass(frozen=True, eq=False)
class SeenEpisode:
    """What a policy saw over the T ticks of one episode."""

    title: str
    """Names the episode and the policy."""
    instruction: str
    observations: Mapping[str, npt.NDArray[Any]]
    """Camera -> (T, H, W, 3) uint8 RGB, and proprioception -> (T, n), of the policy's own sizes."""
    embedding: Floats | None = None
    """Of the instruction, (L,), if the policy does not know it."""
    moments: Mapping[str, int] = field(default_factory=dict)
    """What happened -> the tick at which it did, to be marked in pictures."""
    executed: Floats | None = None
    """(T, A): what the robot did at each tick; None if it did what the policy commanded."""
    delay_s: float = 0.0
    """What the policy was told of the time until its command is in force."""


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """The memory over the T ticks of one episode."""

    seen: SeenEpisode
    spec: PolicySpec
    """The spec of the policy."""
    attention: tuple[MemoryAttention, ...]
    norms: Floats
    """(T, m): Euclidean norms of the memory tokens after each tick."""

    @property
    def num_ticks(self) -> int:
        """The number T of ticks."""
        return len(self.attention)

    @property
    def frames(self) -> dict[str, Frames]:
        """Camera -> (T, H, W, 3) uint8 RGB, as the policy saw them."""
        return {camera.name: self.seen.observations[camera.name] for camera in self.spec.cameras}

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
        """Direction -> source -> (T,) its share at every tick; all proprioception is one source, and so is
        the sight memory."""
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
        members |= {SIGHT: list(SIGHT_SOURCES)} if SIGHT_SOURCES[0] in ticks[0] else {}
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


def trace_memory(
    policy: Policy, seen: SeenEpisode, *, each: Callable[[range], Iterable[int]] = iter
) -> MemoryTrace:
    """Replay the observations of `seen` in order, with the memory kept, as on the robot.

    The previous action is what the robot did, or the policy's own command if `seen` does not say it.
    `each` yields the ticks, for a caller that shows its progress. Raises `UserError` if the core is no
    Token Turing Machine, or an observation is unfit.
    """
    runner = PolicyRunner(policy, engine="torch")  # hooks see only PyTorch's modules
    runner.reset(seen.instruction, embedding=seen.embedding)
    attention, norms = [], []
    num_ticks = len(next(iter(seen.observations.values())))
    with record_attention(policy) as record:
        for tick in each(range(num_ticks)):
            now = {name: values[tick] for name, values in seen.observations.items()}
            runner.step(now, delay_s=seen.delay_s)
            if seen.executed is not None:
                runner.executed(seen.executed[tick])
            attention.append(record.latest)
            norms.append(runner.memory_norms)
    return MemoryTrace(seen, policy.spec, tuple(attention), np.stack(norms))
