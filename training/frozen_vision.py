"""The features of frozen vision for whole data sets, computed once and kept in memory.

The feature maps before TokenLearner are kept, so that the camera tokens, which choose where to look,
can still be trained. Vision runs in evaluation mode, as it does on the robot. Its condition, the code
of the instruction, is frozen with it, because the features depend on it. A sight memory, which has
weights of its own to train, gets the colours that it sees in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset, embed_instructions
from ttm.datasets.hdf5 import available_memory_bytes
from ttm.datasets.windows import resized_frames
from ttm.policy.errors import UserError
from ttm.policy.inputs import FeatureMaps, PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory, cell_colours
from ttm.policy.spec import CameraSpec
from ttm.training.augmentation import augment
from ttm.training.options import AugmentationConfig

DTYPE = torch.float16
"""The type of the kept maps.

It halves the memory of float32. On the shipped policy it changes the camera tokens by 1e-4 of their
spread, and the loss of a batch by 2e-5 of its value."""
FRAMES_AT_ONCE = 64
MEMORY_PORTION = 0.8
"""The portion of the free memory that the features may fill."""


class MapStore:
    """The feature maps of the frames of one camera, under the instructions of their episodes."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # hash of frame and instruction -> row of `maps`
        self._parts: list[Tensor] = []

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
            whole = parts[0].new_empty(len(self), *parts[0].shape[1:])
            start = 0
            while parts:  # each part is freed once it is copied
                part = parts.pop()
                whole[start : start + len(part)] = part
                start += len(part)
            self._parts = [whole]
        return self._parts[0]

    def rows(self, frames: Tensor, condition: bytes, see: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the row of each frame in `maps`, (n,) int64; add the frames that are new.

        frames: (n, 3, H, W) uint8. condition: stands for the instruction. see: maps m of the frames
        to (m, C, h, w). Raises `UserError` for a feature that `DTYPE` cannot hold.
        """
        keys = [
            hashlib.blake2b(frame.contiguous().numpy().tobytes() + condition, digest_size=16)
            for frame in frames
        ]
        rows, new = [], []
        for place, key in enumerate(key.digest() for key in keys):
            if key not in self._rows:
                self._rows[key] = len(self._rows)
                new.append(place)
            rows.append(self._rows[key])
        for places in torch.tensor(new, dtype=torch.int64).split(FRAMES_AT_ONCE):
            if len(places):
                maps = see(frames[places])  # (m, C, h, w)
                kept = maps.permute(0, 2, 3, 1).to("cpu", DTYPE).contiguous()
                if not kept.isfinite().all():
                    raise UserError(
                        f"--freeze-vision keeps features as {DTYPE}, which one of them exceeds "
                        f"({float(maps.abs().max()):g}); train without it, or begin with another --init"
                    )
                self._parts.append(kept)
        return torch.tensor(rows)


def freeze_vision(policy: Policy) -> None:
    """Exclude vision and the code of the instruction, its condition, from training.

    Raises `UserError` if the policy has no camera.
    """
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
    """The feature maps of all ticks of a data set, in one or more versions of its frames."""

    stores: Mapping[str, MapStore]
    """Camera -> the maps of its distinct frames."""
    rows: Mapping[str, Tensor]
    """Camera -> (versions, num_ticks) int64: the map of each dataset tick."""
    colours: tuple[MapStore, Tensor] | None = None
    """The colours that the sight memory sees, and their rows as above; None without a sight memory."""

    @property
    def versions(self) -> int:
        """The number of versions; version 0 is as recorded."""
        return len(next(iter(self.rows.values())))

    def into(
        self, inputs: PolicyInputs, ticks: Tensor, versions: Tensor | None = None
    ) -> PolicyInputs:
        """Return `inputs` with the features of dataset ticks (B, T).

        versions: (B,) int64, one for each window; None for the frames as recorded.
        """
        version = torch.zeros(len(ticks), dtype=torch.int64) if versions is None else versions
        features = {
            name: _at(self.stores[name], rows[version[:, None], ticks])
            for name, rows in self.rows.items()
        }
        if self.colours is None:
            return replace(inputs, features=features)
        store, rows = self.colours
        colours = _at(store, rows[version[:, None], ticks])
        return replace(inputs, features=features, colours=colours)


class FeatureCache:
    """Computes the features of data sets and shares those of equal frames among them."""

    def __init__(self, policy: Policy, cameras: tuple[CameraSpec, ...], copies: int = 1) -> None:
        """cameras: with the sizes of the frames that the network gets.

        copies: the number of caches that share the memory of the machine.
        """
        self._policy = policy
        self._sight = policy.sight
        self._cameras = cameras
        self._stores = {camera.name: MapStore() for camera in cameras}
        self._colours: dict[int, MapStore] = {}  # cells along a side -> colours of the cells
        self._limit = MEMORY_PORTION * available_memory_bytes() / copies

    def for_sight(self, sight: SightMemory | None) -> FeatureCache:
        """Return a cache that shares all features with this one, and keeps what `sight` sees."""
        same = copy(self)
        same._sight = sight
        return same

    def features(
        self,
        episodes: EpisodeDataset,
        versions: int = 1,
        augmentation: AugmentationConfig = AugmentationConfig(),  # noqa: B008 (frozen)
        seed: int = 0,
    ) -> EpisodeFeatures:
        """Return the features of `episodes`.

        Version 0 has the frames as recorded. Those of version k > 0 are augmented, by changes that
        are drawn from (seed, episode, k) once for each episode and camera.
        """
        codes = embed_instructions(list(episodes))
        found: dict[str, list[Tensor]] = {camera.name: [] for camera in self._cameras}
        sighted: list[Tensor] = []
        for number, episode in enumerate(track(list(episodes), "computing features")):
            condition = torch.from_numpy(codes[number : number + 1])
            for camera in self._cameras:
                frames = resized_frames(episode.frames(camera.name), camera)
                recorded = torch.from_numpy(frames).permute(0, 3, 1, 2)  # (T, 3, H, W)
                seen = [recorded]
                for version in range(1, versions):
                    rng = np.random.default_rng([seed, number, version])
                    seen.append(augment(recorded[None], augmentation, rng)[0])
                rows = [self._see(camera, frames, condition) for frames in seen]
                found[camera.name].append(torch.stack(rows))
                if self._sight is not None and camera is self._cameras[0]:
                    sighted.append(torch.stack([self._look(self._sight, each) for each in seen]))
        colours = None
        if self._sight is not None and sighted:
            colours = self._colours[self._sight.cells], torch.cat(sighted, dim=1)
        rows_of = {name: torch.cat(rows, dim=1) for name, rows in found.items()}
        return EpisodeFeatures(self._stores, rows_of, colours)

    def summary(self) -> str:
        """Return in words how much is kept."""
        distinct = sum(map(len, self._stores.values()))
        return f"features of {distinct} distinct frames in {self._num_bytes / 1e6:.1f} MB"

    @property
    def _num_bytes(self) -> int:
        return sum(store.num_bytes for store in (*self._stores.values(), *self._colours.values()))

    @torch.no_grad()
    def _see(self, camera: CameraSpec, frames: Tensor, language: Tensor) -> Tensor:
        """Return the rows of frames (T, 3, H, W) in the store of the camera, (T,)."""
        policy, vision = self._policy, self._policy.vision
        assert vision is not None, "`freeze_vision` refuses a policy without cameras"
        device, training = next(policy.parameters()).device, policy.training
        policy.eval()
        code = policy.instruction_code(language.to(device))
        rows = self._stores[camera.name].rows(
            frames, language.numpy().tobytes(), lambda new: vision(new.to(device), code)
        )
        policy.train(training)
        if self._num_bytes > self._limit:
            raise UserError(
                f"the features of frozen vision exceed {self._limit / 2**30:.1f} GiB, the free memory; "
                "take fewer --augmented-versions or episodes, or train without --freeze-vision"
            )
        return rows

    def _look(self, sight: SightMemory, frames: Tensor) -> Tensor:
        """Return the rows of frames (T, 3, H, W) in the store of the colours that it sees, (T,)."""
        store = self._colours.setdefault(sight.cells, MapStore())
        return store.rows(frames, b"", partial(cell_colours, cells=sight.cells))


def _at(store: MapStore, rows: Tensor) -> FeatureMaps:
    """Return the maps of ticks, whose rows in the store are (B, T), each distinct one once."""
    used, index = torch.unique(rows, return_inverse=True)
    return FeatureMaps(store.maps[used].permute(0, 3, 1, 2), index)  # maps (U, C, h, w)
