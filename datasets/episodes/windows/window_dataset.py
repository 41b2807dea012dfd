"""Training windows: runs of consecutive ticks of one episode, gathered in batches.

A window never extends past the end of its episode, and has no made-up ticks before its start: it
begins with its first real tick. Where it is shorter than the others, padding follows at its end,
which `valid` marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.instructions import embed_instructions
from ttm.datasets.windows.frame_store import FrameStore
from ttm.datasets.windows.recent_frames import RecentFrames
from ttm.datasets.windows.sections import Sections
from ttm.datasets.windows.shares import DataShares, Mix
from ttm.policy.checks import require_at_least
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Pad = Literal["none", "start", "both"]
Cache = Literal["auto", "ram", "none"]


class WindowBatch(TypedDict):
    """B windows of T ticks.

    A tick where `valid` is False is padding and must not count; it holds some tick of the episode.
    """

    images: dict[str, Tensor]
    """Camera name -> (B, T, H, W, 3) uint8 RGB."""
    proprioception: dict[str, Tensor]
    """Name -> (B, T, K) float32, in the spec's units."""
    actions: Tensor
    """(B, T, A) float32, in the spec's units."""
    previous_action: Tensor
    """(B, T, A) float32, the action that was carried out; zeros at an episode's first tick."""
    previous_action_valid: Tensor
    """(B, T) bool, False at an episode's first tick."""
    episode_start: Tensor
    """(B, T) bool, True at an episode's first tick."""
    valid: Tensor
    """(B, T) bool, False at padding."""
    language: Tensor
    """(B, L) float32, the sentence embedding of the instruction."""
    episode: Tensor
    """(B,) int64, index into the episodes."""
    tick: Tensor
    """(B, T) int64, index into the ticks of the episode."""
    dataset_tick: Tensor
    """(B, T) int64, index into per-tick arrays such as `binary_transition_weights`."""


class Chunks(NamedTuple):
    """The next K actions of each tick of a batch."""

    actions: Tensor
    """(B, T, K, A) float32, in the spec's units."""
    inside: Tensor
    """(B, T, K) bool, False beyond the end of the episode."""
    dataset_tick: Tensor
    """(B, T, K) int64, the ticks of the actions, as in `WindowBatch`."""


class WindowDataset(Dataset[WindowBatch]):
    """All windows of `window` ticks in a data set. `gather` makes a batch of them.

    Indexing gives a single window, as a `WindowBatch` without the dimension B.

    Parameters
    ----------
    episodes
        The data set; at least one episode.
    window
        T, the number of ticks in a window.
    pad
        Which windows there are besides those that lie wholly in their episode. "start" adds those
        that would begin before it, cut off at its first tick, so that the first ticks come as often
        as others. "both" also adds those that would extend past its end, so that the last ticks
        (which terminate) come as often. "none" adds none, except one window for each episode that
        is shorter than a window.
    resize_to
        Camera name -> (height, width), for networks that take another size; `spec` then has it.
    cache
        "ram" keeps all decoded frames in memory, "none" reads them from the files for each batch,
        and "auto" takes "ram" if they fit into half of the free memory.
    copies
        The number of processes of this machine that keep such a data set each.
    shares
        Of several data sets, for samplers; None to draw all windows equally often.
    """

    def __init__(
        self,
        episodes: EpisodeDataset,
        window: int = 8,
        *,
        pad: Pad = "start",
        resize_to: Mapping[str, tuple[int, int]] | None = None,
        cache: Cache = "auto",
        shares: DataShares | None = None,
        copies: int = 1,
    ) -> None:
        require_at_least(1, {"window": window})
        if not len(episodes):
            raise UserError(
                f"{episodes.source}: no episode to make windows of; "
                "record more, or choose another mask"
            )
        self.episodes = episodes
        self.window = window
        self.shares = shares
        self.spec = resized_spec(episodes.spec, resize_to or {})
        lengths = [episode.num_samples for episode in episodes]
        # The dataset tick of each episode's first tick, (E,)
        self._offsets = torch.tensor(np.cumsum([0, *lengths[:-1]]))
        self._lengths = torch.tensor(lengths)
        # The places of all windows, (n, 3): episode, first tick, length
        self._windows = torch.from_numpy(_windows(lengths, window, pad))
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
        self.frames = FrameStore(episodes, self.spec, cache, copies)

    def _require_finite(self) -> None:
        """Raise `UserError` for NaN or infinity, which would make every weight of a network NaN."""
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
                    "`ttm data check` names every fault; leave the episode out by a mask"
                )

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> WindowBatch:
        batch = self.gather([range(len(self))[index]])
        window: WindowBatch = _first(batch)
        return window

    @property
    def num_ticks(self) -> int:
        """The number of ticks of all episodes together, which is the length of per-tick arrays."""
        return len(self._actions)

    def to(self, device: torch.device | str) -> WindowDataset:
        """Move everything that `gather` reads, including cached frames, to `device`."""
        for name in ("_offsets", "_lengths", "_windows", "_actions", "_executed", "_language"):
            setattr(self, name, getattr(self, name).to(device))
        self._proprioception = {
            name: values.to(device) for name, values in self._proprioception.items()
        }
        self.frames.to(device)
        return self

    @property
    def episode_lengths(self) -> list[int]:
        """The number of ticks of each episode."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    @property
    def vectors(self) -> dict[str, Tensor]:
        """The vectors of all ticks by name, each (num_ticks, …), as `gather` reads them."""
        return {
            "actions": self._actions,
            "executed actions": self._executed,
            **self._proprioception,
        }

    @property
    def window_mix(self) -> Mix | None:
        """The mix of windows by the shares of the data sets, if there are any."""
        if self.shares is None:
            return None
        return self.shares.of_windows(self._windows[:, 0].cpu().numpy())

    def sections(self, apart: int) -> Sections:
        """Return what arranges the windows of a pass in sections; see there for `apart`."""
        episodes, first_ticks, _ = self._windows.cpu().numpy().T
        return Sections(episodes, first_ticks, apart)

    def places(self, indices: Tensor | list[int]) -> Tensor:
        """Return the episode, first tick and length of each of these windows, (B, 3) int64."""
        return self._windows[torch.as_tensor(indices, device=self._windows.device)]

    def gather(self, indices: Tensor | list[int]) -> WindowBatch:
        """Return the windows of these indices (B,) as one batch, on the device of this data set."""
        return self.gather_at(self.places(indices))

    def gather_at(
        self,
        places: Tensor,
        *,
        burn_in: int = 0,
        ticks: int | None = None,
        recent: RecentFrames | None = None,
    ) -> WindowBatch:
        """Return the windows at any places, as one batch of T = `burn_in` + `window` ticks.

        places: (B, 3) int64, as `places` returns them: episode, first tick, length.
        burn_in: the number of ticks to include before each window, for a memory to build up.
        ticks: T without the burn-in, where the longest of these windows needs fewer than `window`.
        recent: see `FrameStore.gather`.

        The first tick may be negative. In place of ticks before an episode's start stands its first
        tick, each time with `episode_start`, so that a memory which is reset there keeps nothing of
        them. Neither they nor the ticks of the burn-in are `valid`.
        """
        device = self._windows.device
        episode, start, length = places.to(device).unbind(1)  # (B,) each
        steps = torch.arange(-burn_in, ticks or self.window, device=device)
        wanted = start[:, None] + steps  # (B, T)
        valid = (steps >= 0) & (steps < length[:, None]) & (wanted >= 0)
        tick = torch.minimum(wanted.clamp_min(0), (self._lengths[episode] - 1)[:, None])
        rows = self._offsets[episode][:, None] + tick
        return WindowBatch(
            images=self.frames.gather(rows, recent),
            proprioception=self.measured(rows),
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

    def measured(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the proprioception of some ticks: name -> (..., K). rows: as `dataset_tick`."""
        return {name: values[rows] for name, values in self._proprioception.items()}

    def chunks(self, batch: WindowBatch, size: int) -> Chunks:
        """Return the actions of each tick of `batch` and of the `size` - 1 ticks after it.

        They may be of ticks after the window. Beyond the episode's end the last action stands.
        """
        ahead = torch.arange(size, device=batch["tick"].device)
        last = self._lengths[batch["episode"]] - 1  # (B,)
        left = (last[:, None] - batch["tick"]).unsqueeze(-1)  # (B, T, 1) ticks after each tick
        rows = batch["dataset_tick"].unsqueeze(-1) + torch.minimum(ahead, left)
        return Chunks(self._actions[rows], ahead <= left, rows)

    def binary_transition_weights(self, weight: float, radius: int = 1) -> Tensor:
        """Return loss weights that emphasise the ticks at which a gripper opens or closes.

        They are (num_ticks, A) float32: `weight` in a binary dimension for the ticks within
        `radius` of a change, and 1 elsewhere. With radius 1 these are the last tick before the
        change, the tick of the change and the next. Index the weights with `dataset_tick`.
        """
        device = self._actions.device
        weights = torch.ones_like(self._actions)
        binary = torch.from_numpy(self.spec.binary_mask).to(device)
        commanded = self._actions > torch.from_numpy(self.spec.thresholds).to(device)
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


def resized_spec(spec: PolicySpec, resize_to: Mapping[str, tuple[int, int]]) -> PolicySpec:
    """Return the spec with the cameras of `resize_to`, name -> (height, width), resized."""
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
    """Return the episode, first tick and length of each window, (n, 3)."""
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
    """Return the first item of a batch, without the batch dimension."""
    return (
        {key: _first(value) for key, value in batch.items()}
        if isinstance(batch, dict)
        else batch[0]
    )
