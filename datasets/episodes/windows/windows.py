"""Training windows: runs of consecutive ticks of one episode, gathered in batches from frames kept in memory.

A window never crosses an episode's end and invents no tick before its start: it begins with its first real
tick, and what is missing of its length comes as padding at the end, marked in `valid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.instructions import embed_instructions
from ttm.datasets.windows.frame_store import FrameStore
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Pad = Literal["none", "start", "both"]
Cache = Literal["auto", "ram", "none"]


class WindowBatch(TypedDict):
    """B windows of T ticks. Where `valid` is False the tick does not count: some tick of the episode, as padding."""

    images: dict[str, Tensor]  # camera -> (B, T, H, W, 3) uint8 RGB
    proprioception: dict[str, Tensor]  # name -> (B, T, K) float32, in the spec's units
    actions: Tensor  # (B, T, A) float32, in the spec's units
    previous_action: (
        Tensor  # (B, T, A) float32, the one that was executed; zeros at an episode's first tick
    )
    previous_action_valid: Tensor  # (B, T) bool; False at an episode's first tick
    episode_start: Tensor  # (B, T) bool; True at an episode's first tick
    valid: Tensor  # (B, T) bool; False at padding
    language: Tensor  # (B, L) float32 sentence embedding
    episode: Tensor  # (B,) int64, index into the episodes
    tick: Tensor  # (B, T) int64, within the episode
    dataset_tick: Tensor  # (B, T) int64, row of per-tick arrays such as binary_transition_weights


class WindowDataset(Dataset[WindowBatch]):
    """Every window of `window` ticks in `episodes`. `gather` makes a batch; indexing gives one, without B.

    `pad`: which windows there are besides those that lie wholly in their episode. "start" adds those that
    hang over the start, shortened by what hangs over, so that the first ticks, of which few windows hold one,
    come as often as others; "both" adds those over the end too (the last ticks: terminate). "none" adds none,
    save one for each episode that is shorter than a window.

    `resize_to`: camera -> (height, width), for networks that take another size; `spec` then says the new one.
    `cache`: "ram" keeps all decoded frames in memory, "none" reads them from the files for each batch, and
    "auto" takes "ram" if they fit into half of the free memory. `to` moves everything kept to a device.
    """

    def __init__(
        self,
        episodes: EpisodeDataset,
        window: int = 8,
        *,
        pad: Pad = "start",
        resize_to: Mapping[str, tuple[int, int]] | None = None,
        cache: Cache = "auto",
    ) -> None:
        if window < 1:
            raise UserError(f"window is {window} ticks; take at least 1")
        if not len(episodes):
            raise UserError(
                f"{episodes.source}: no episode to make windows of; record more, or choose another mask"
            )
        self.episodes = episodes
        self.window = window
        self.spec = resized_spec(episodes.spec, resize_to or {})
        lengths = [episode.num_samples for episode in episodes]
        self._offsets = torch.tensor(
            np.cumsum([0, *lengths[:-1]])
        )  # (E,), dataset tick of each episode's first
        self._lengths = torch.tensor(lengths)
        self._windows = torch.from_numpy(
            _windows(lengths, window, pad)
        )  # (n, 3): episode, first tick, length
        self._actions = torch.from_numpy(np.concatenate([episode.actions for episode in episodes]))
        self._executed = torch.from_numpy(
            np.concatenate([episode.executed_actions for episode in episodes])
        )
        self._proprioception = {
            vector.name: torch.from_numpy(
                np.concatenate([e.proprioception(vector.name) for e in episodes])
            )
            for vector in self.spec.proprioception
        }
        self._require_finite()
        self._language = torch.from_numpy(embed_instructions(list(episodes)))  # (E, L)
        self.frames = FrameStore(episodes, self.spec, cache)

    def _require_finite(self) -> None:
        """One NaN would make every weight of a network NaN, without a word."""
        arrays = {"actions": self._actions, "executed_actions": self._executed} | {
            f"obs/{name}": values for name, values in self._proprioception.items()
        }
        for name, values in arrays.items():
            bad = (~values.isfinite()).any(dim=1).nonzero()
            if len(bad):
                row = int(bad[0])
                index = int(torch.searchsorted(self._offsets, row, right=True)) - 1
                episode, tick = self.episodes[index], row - int(self._offsets[index])
                raise UserError(
                    f"{episode.path}: {episode.name}: {name} is NaN or infinite at tick {tick}; "
                    "`ttm data check` names every fault, then delete or re-record the episode"
                )

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> WindowBatch:
        batch = self.gather([range(len(self))[index]])
        window: WindowBatch = _first(batch)
        return window

    @property
    def num_ticks(self) -> int:
        """Ticks of all episodes together: the rows of per-tick arrays."""
        return len(self._actions)

    def to(self, device: torch.device | str) -> WindowDataset:
        """Move all that `gather` reads (cached frames too) to `device`; batches are made there."""
        for name in ("_offsets", "_lengths", "_windows", "_actions", "_executed", "_language"):
            setattr(self, name, getattr(self, name).to(device))
        self._proprioception = {
            name: values.to(device) for name, values in self._proprioception.items()
        }
        self.frames.to(device)
        return self

    @property
    def episode_lengths(self) -> list[int]:
        """Ticks of each episode."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    def places(self, indices: Tensor | list[int]) -> Tensor:
        """(B, 3) int64: the episode, the first tick and the number of ticks of the windows of those indices."""
        return self._windows[torch.as_tensor(indices, device=self._windows.device)]

    def gather(self, indices: Tensor | list[int]) -> WindowBatch:
        """The windows of those indices, (B,), as one batch on this data set's device."""
        return self.gather_at(self.places(indices))

    def gather_at(self, places: Tensor, *, burn_in: int = 0) -> WindowBatch:
        """Windows anywhere, given as `places` gives them, each with the `burn_in` ticks before it: T is both together.

        The first tick may be negative. Instead of ticks before an episode's start stands its first one again, each
        time with `episode_start`: where that resets the memory, nothing of them is left. Neither they nor the
        ticks of the burn-in are `valid`.
        """
        device = self._windows.device
        episode, start, length = places.to(device).unbind(1)  # (B,) each
        steps = torch.arange(-burn_in, self.window, device=device)
        wanted = start[:, None] + steps  # (B, T)
        valid = (steps >= 0) & (steps < length[:, None]) & (wanted >= 0)
        tick = torch.minimum(wanted.clamp_min(0), (self._lengths[episode] - 1)[:, None])
        rows = self._offsets[episode][:, None] + tick
        return WindowBatch(
            images=self.frames.gather(rows),
            proprioception={name: values[rows] for name, values in self._proprioception.items()},
            actions=self._actions[rows],
            previous_action=self._executed[(rows - 1).clamp_min(0)] * (tick > 0)[..., None],
            previous_action_valid=tick > 0,
            episode_start=tick == 0,
            valid=valid,
            language=self._language[episode],
            episode=episode,
            tick=tick,
            dataset_tick=rows,
        )

    def binary_transition_weights(self, weight: float, radius: int = 1) -> Tensor:
        """Loss weights (num_ticks, A) float32 that dwell on the rare moments when a gripper opens or closes.

        1 everywhere, but `weight` in each binary dimension for the ticks within `radius` of a change: at
        radius 1, the last tick before it, the tick of the change and the next. Index it with `dataset_tick`.
        """
        device = self._actions.device
        weights = torch.ones_like(self._actions)
        binary = torch.from_numpy(self.spec.binary_mask).to(device)
        commanded = self._actions > 0.5
        for first, length in zip(self._offsets.tolist(), self._lengths.tolist(), strict=True):
            episode = commanded[first : first + length]
            changed = torch.zeros_like(episode)
            changed[1:] = episode[1:] != episode[:-1]
            for tick, dimension in (changed & binary).nonzero().tolist():
                weights[
                    first + max(tick - radius, 0) : first + min(tick + radius + 1, length),
                    dimension,
                ] = weight
        return weights


class WindowSampler(Sampler[list[int]]):
    """Endless batches of window indices, shuffled anew in every pass.

    Batch n is a function of (seed, n) alone, so that a resumed training, with `first_batch` = the steps done,
    sees what an unbroken one would have seen. Every window comes once a pass; the last few that fill no batch
    wait for the next one.
    """

    def __init__(
        self, num_windows: int, batch_size: int, *, seed: int = 0, first_batch: int = 0
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; take at least 1")
        self.num_windows = num_windows
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch

    @property
    def batches_per_pass(self) -> int:
        """Batches until every window has come once; a data set smaller than a batch repeats windows in it."""
        return max(self.num_windows // self.batch_size, 1)

    def __iter__(self) -> Iterator[list[int]]:
        done, skip = divmod(self.first_batch, self.batches_per_pass)
        while True:
            order = np.resize(
                np.random.default_rng([self.seed, done]).permutation(self.num_windows), self._used
            )
            for batch in order.reshape(-1, self.batch_size)[skip:]:
                yield batch.tolist()
            done, skip = done + 1, 0

    @property
    def _used(self) -> int:
        return self.batches_per_pass * self.batch_size


def resized_spec(spec: PolicySpec, resize_to: Mapping[str, tuple[int, int]]) -> PolicySpec:
    """The spec with the cameras in `resize_to` (camera -> (height, width)) at their new size."""
    for name in resize_to:
        spec.camera(name)
    cameras = tuple(
        replace(camera, height=resize_to[camera.name][0], width=resize_to[camera.name][1])
        if camera.name in resize_to
        else camera
        for camera in spec.cameras
    )
    return replace(spec, cameras=cameras)


def _windows(
    lengths: list[int], window: int, pad: Pad
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """(n, 3): the episode, first tick and number of ticks of each window."""
    found = []
    for episode, length in enumerate(lengths):
        last_whole = max(length - window, 0)
        first = 0 if pad == "none" else 1 - window
        last = length - 1 if pad == "both" else last_whole
        starts = np.arange(first, last + 1)
        stops = np.minimum(starts + window, length)
        starts = np.maximum(starts, 0)
        found.append(np.stack([np.full_like(starts, episode), starts, stops - starts], axis=1))
    return np.concatenate(found).astype(np.int64)


def _first(batch: Any) -> Any:
    """Without the batch dimension."""
    return (
        {key: _first(value) for key, value in batch.items()}
        if isinstance(batch, dict)
        else batch[0]
    )
