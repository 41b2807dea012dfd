"""The features of frozen vision, kept in memory, and short codes of what the cameras show.

The feature maps before TokenLearner are kept, so that the camera tokens can still be trained. The code
of the instruction, on which the features depend, is frozen with vision. What a
sight memory sees is kept in the same way. `ttm.training.data.FeatureCache` computes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.datasets.dataset import EpisodeDataset
from ttm.policy.errors import UserError
from ttm.policy.inputs import FeatureMaps, PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory

DTYPE = torch.float16
"""The type of the kept maps, which halves the memory of float32."""
FRAMES_AT_ONCE, PARTS = 64, 256
"""Frames that are seen at once; parts that become one, whose memory the system gets back once it is freed."""


class MapStore:
    """The feature maps of the frames of one camera, under the instructions of their episodes."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # hash of frame and instruction -> row of `maps`
        self._parts: list[Tensor] = []
        self._large = 0  # how many of them, the first, were made of others

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_bytes(self) -> int:
        """The size of all maps in memory."""
        return sum(part.nbytes for part in self._parts)

    @property
    def maps(self) -> Tensor:
        """All maps, (U, h, w, C) of type `DTYPE`: a row for each distinct frame."""
        if len(self._parts) > 1:
            parts, self._parts = self._parts[::-1], []
            rest = whole = parts[0].new_empty(len(self), *parts[0].shape[1:])
            while parts:  # each part is freed once it is copied
                part = parts.pop()
                rest[: len(part)] = part
                rest = rest[len(part) :]
            self._parts, self._large = [whole], 1
        return self._parts[0]

    def rows(self, frames: Tensor, condition: bytes, see: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the row of each frame in `maps`, (n,) int64; add the frames that are new.

        frames: (n, 3, H, W) uint8. condition: stands for the instruction. see: maps m of the frames
        to (m, C, h, w). Raises `UserError` for a feature that `DTYPE` cannot hold.
        """
        seen = (frame.contiguous().numpy().tobytes() + condition for frame in frames)
        keys = (hashlib.blake2b(each, digest_size=16).digest() for each in seen)
        before, rows = len(self), [self._rows.setdefault(key, len(self)) for key in keys]
        new = [rows.index(row) for row in range(before, len(self))]
        for start in range(0, len(new), FRAMES_AT_ONCE):
            maps = see(frames[new[start : start + FRAMES_AT_ONCE]])  # (m, C, h, w)
            kept = maps.permute(0, 2, 3, 1).to("cpu", DTYPE).contiguous()
            if not kept.isfinite().all():
                raise UserError(
                    f"--freeze-vision keeps features as {DTYPE}, which cannot hold one; train without it"
                )
            self._parts.append(kept)
            if len(self._parts) == self._large + PARTS:
                self._parts[self._large :] = [torch.cat(self._parts[self._large :])]
                self._large += 1
        return torch.tensor(rows)

    def at(self, rows: Tensor, to_write: tuple[Tensor, ...] = ()) -> FeatureMaps:
        """Return the maps of ticks, whose rows are (B, T), each distinct one once.

        to_write: of all maps, see `FeatureMaps`.
        """
        used, index = torch.unique(rows, return_inverse=True)
        maps = self.maps[used].permute(0, 3, 1, 2)  # (U, C, h, w)
        return FeatureMaps(maps, index, tuple(each[used] for each in to_write))


def freeze_vision(policy: Policy) -> None:
    """Exclude vision and its condition, the code of the instruction, from training."""
    if policy.vision is None:
        raise UserError("--freeze-vision, but the checkpoint has no camera; leave the option out")
    policy.vision.requires_grad_(False)
    policy.language.requires_grad_(False)


def without_cameras(episodes: EpisodeDataset) -> EpisodeDataset:
    """Return the same episodes without their camera frames."""
    spec = replace(episodes.spec, cameras=())
    return EpisodeDataset(list(episodes), spec, source=episodes.source, note=episodes.note)


@dataclass(frozen=True)
class EpisodeFeatures:
    """The feature maps of all ticks of a data set."""

    stores: Mapping[str, MapStore]
    """Camera -> the maps of its distinct frames."""
    rows: Mapping[str, Tensor]
    """Camera -> (num_ticks,) int64: the map of each dataset tick."""
    cells: tuple[MapStore, Tensor] | None = None
    """What the sight memory sees, and its rows as above; None without a sight memory."""
    to_write: tuple[Tensor, ...] = ()
    """What the sight memory writes of each of its maps, which stays the same while it trains."""

    def seen(self) -> list[tuple[MapStore, Tensor]]:
        """Return the maps that codes are made of, those of all cameras."""
        return [(self.stores[name], rows) for name, rows in self.rows.items()]

    def by_sight(self, ticks: Tensor) -> FeatureMaps:
        """Return what the sight memory sees at dataset ticks (B, T)."""
        assert self.cells is not None
        store, rows = self.cells
        return store.at(rows[ticks], self.to_write)

    @torch.no_grad()
    def written_by(self, memory: SightMemory) -> EpisodeFeatures:
        """Return the same features, with `to_write` of a memory that has learned what to keep."""
        assert self.cells is not None
        device, parts = memory.scale.device, self.cells[0].maps.split(MAPS_AT_ONCE)
        seen = (memory.normalized(part.permute(0, 3, 1, 2).to(device)) for part in parts)
        found = zip(*(memory.to_write(each) for each in seen), strict=True)
        return replace(self, to_write=tuple(torch.cat(each).cpu() for each in found))

    def into(self, inputs: PolicyInputs, ticks: Tensor) -> PolicyInputs:
        """Return `inputs` with the features of dataset ticks (B, T)."""
        features = {name: self.stores[name].at(rows[ticks]) for name, rows in self.rows.items()}
        cells = None if self.cells is None else self.by_sight(ticks)
        return replace(inputs, features=features, cells=cells)


CODE_CELLS = 4
"""Cells along each side of a map of which codes are made: so few that a camera that shakes changes little."""
CODE_SIZE = 96
"""The most dimensions of a code."""
PAIRS = 4096
"""Pairs of ticks from which the components are found."""
FAINTEST = 1e-3
"""Components whose spread is a smaller portion of the largest spread are left out, as rounding."""
MAPS_AT_ONCE = 1024


def tick_codes(
    seen: Sequence[tuple[MapStore, Tensor]], lengths: Sequence[int], seed: int
) -> Tensor:
    """Return a short code of what the cameras show at each tick, (num_ticks, C) float32.

    seen: of `EpisodeFeatures.seen`. These maps are projected on the leading principal components of
    their differences between ticks of one episode, and scaled: the differences of codes have
    variance 1 in the first dimension. What never changes within an episode, such as the room, has no
    part in a code.

    lengths: the ticks of each episode. C is `CODE_SIZE`, or less where the frames differ in fewer
    ways. Raises `UserError` if no frame differs from another one of its episode.
    """
    generator = torch.Generator().manual_seed(seed)
    differences = _differences(seen, lengths, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the randomised decomposition
        wanted = min(CODE_SIZE + 16, *differences.shape)
        _, scales, components = torch.svd_lowrank(differences, q=wanted, niter=4)
    scales, components = scales[:CODE_SIZE], components[:, :CODE_SIZE]
    if scales[0] == 0:
        raise UserError(
            "recall-weight needs frames that differ within an episode, and here none does; leave it out"
        )
    clear = scales > FAINTEST * scales[0]
    matrix = components[:, clear] / (scales[0] / len(differences) ** 0.5)
    codes, start = torch.zeros(()), 0
    for store, rows in seen:
        maps = _pooled(store.maps)
        codes = codes + (maps @ matrix[start : start + maps.shape[1]])[rows]
        start += maps.shape[1]
    return codes


def _pooled(maps: Tensor) -> Tensor:
    """Return the means of `CODE_CELLS` x `CODE_CELLS` cells of maps (U, h, w, C), (U, K)."""
    parts = (part.permute(0, 3, 1, 2).float() for part in maps.split(MAPS_AT_ONCE))
    return torch.cat([F.adaptive_avg_pool2d(part, CODE_CELLS).flatten(1) for part in parts])


def _differences(
    seen: Sequence[tuple[MapStore, Tensor]], lengths: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Return differences of the features of two ticks of one episode, (PAIRS, all features)."""

    def draw(high: int) -> Tensor:
        return torch.randint(high, (PAIRS,), generator=generator)

    ticks = torch.tensor(lengths)
    first = torch.repeat_interleave(ticks.cumsum(0) - ticks, ticks)  # first tick of the episode
    one, _ = draw(len(first)), draw(1)  # what is drawn for nothing keeps the codes of old trainings
    length = torch.repeat_interleave(ticks, ticks)[one]
    other = first[one] + (torch.rand(PAIRS, generator=generator) * length).long()
    parts = []
    for store, rows in seen:
        maps = _pooled(store.maps)
        parts.append(maps[rows[one]] - maps[rows[other]])
    return torch.cat(parts, dim=1)
