"""Training windows: runs of consecutive ticks of one episode, gathered in batches.

A window never extends past the end of its episode, and has no made-up ticks before its start: it
begins with its first real tick. Where it is shorter than the others, padding follows at its end,
which `valid` marks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from ttm.datasets.console import track
from ttm.datasets.dataset import (
    DatasetStatistics,
    EpisodeDataset,
    dataset_statistics,
    embed_instructions,
)
from ttm.datasets.episode_file import OpenFiles
from ttm.datasets.frames import Frames
from ttm.datasets.hdf5 import available_memory_bytes
from ttm.datasets.reader import EpisodeReader, Floats
from ttm.datasets.samplers import DataShares, Mix, Sections
from ttm.policy.errors import UserError, require_at_least
from ttm.policy.inputs import PolicyInputs
from ttm.policy.spec import CameraSpec, PolicySpec, resize_frame, whole_factors

CHANGE = 1.0
"""An action changes where a dimension differs by more than this from the tick before, in standard
deviations of that dimension. A binary dimension thereby changes whenever its value does."""
STILL = 0.02
"""A robot stands still while no proprioception moves by more than this in a tick, in standard
deviations of its dimension."""
STILL_TICKS = 3  # ticks without motion that make a stand-still
START_TICKS = 3  # ticks after a stand-still that count as its end, of which the first moves

RUN = 32  # ticks that are kept together or not at all, where there is no room for all
MEMORY_PORTION = 0.5
"""The portion of the free memory that `cache="auto"` and `FrameStore.recent` may fill with frames."""

Pad = Literal["none", "start", "both"]
Cache = Literal["auto", "ram", "none"]
Booleans = npt.NDArray[np.bool_]


def tick_weights(
    episodes: EpisodeDataset, *, changes: float = 1.0, starts: float = 1.0, policy: float = 1.0
) -> Tensor:
    """Return the weight of each dataset tick in the loss of a training, (num_ticks,) float32.

    The few ticks at which a choice shows decide the task, and weigh too little in a plain mean. The weight
    is the product of `EpisodeReader.loss_weights`, `changes` at the ticks at which the action changes,
    `starts` at the first ticks after a stand-still, and `policy` where a policy drove and no person.

    Raises `UserError` if `starts` is not 1 and the robot has no proprioception, and if nothing weighs
    more than 0.
    """
    found = []
    for episode in episodes:
        driven = None if policy == 1 else episode.interventions
        person = 1 if driven is None else np.where(driven, 1, policy).astype(np.float32)
        found.append(person * episode.loss_weights)
    if not any(weights.any() for weights in found):
        raise UserError(
            f"no tick of {episodes.source} has a weight above 0; add episodes that a person drove"
        )
    if starts != 1 and not episodes.spec.proprioception:
        raise UserError(
            f"{episodes.source} has no proprioception to stand still by; let starts weigh 1"
        )
    if changes != 1 or starts != 1:
        spread = dataset_statistics(episodes)
        for episode, weights in zip(episodes, found, strict=True):
            changed = np.zeros(len(weights), np.bool_)  # never at the first tick
            changed[1:] = _differs(episode.actions, CHANGE * spread.actions.std)
            weights[changed] *= changes
            if starts != 1:
                weights[starts_after_standing(_moves(episode, spread))] *= starts
    return torch.from_numpy(np.concatenate(found))


def stand_stills(episodes: EpisodeDataset) -> Tensor:
    """Return a number for each dataset tick, (num_ticks,) int64, equal for ticks of one stand-still.

    Ticks of one episode are of one stand-still if no proprioception moves between them. If no robot ever
    stands, it is taken to stand in every episode.
    """
    spread = dataset_statistics(episodes)
    moves = [np.append(True, _moves(episode, spread)[:-1]) for episode in episodes]
    if all(each.all() for each in moves):
        moves = [np.arange(len(each)) == 0 for each in moves]
    return torch.from_numpy(np.concatenate(moves).cumsum())


def _moves(episode: EpisodeReader, spread: DatasetStatistics) -> Booleans:
    """Return whether the robot moves from each tick to the next, (T,); False for the last one."""
    moves = np.zeros(len(episode.actions), np.bool_)
    for name, of_vector in spread.proprioception.items():
        moves[:-1] |= _differs(episode.proprioception(name), STILL * of_vector.std)
    return moves


def _differs(values: Floats, least: Floats) -> Booleans:
    """Return whether a value of (T, K) differs by more than `least` (K,) from the tick before, (T - 1,)."""
    return np.asarray((np.abs(np.diff(values, axis=0)) > least).any(axis=1))


def starts_after_standing(moves: Booleans) -> Booleans:
    """Return the first `START_TICKS` ticks of each motion that follows a stand-still, (T,)."""
    starts = np.zeros_like(moves)
    still = 0
    for tick, moving in enumerate(moves.tolist()):
        if moving and still >= STILL_TICKS:
            starts[tick : tick + START_TICKS] = True
        still = 0 if moving else still + 1
    return starts


class RecentFrames:
    """Keeps the frames that were used last, up to a number for each camera. For one thread at a time."""

    def __init__(self, ticks: int, portion: float = 1.0) -> None:
        """ticks: the number of frames of each camera to keep at most.

        portion: of all frames, those that are kept at all. To keep a third of the frames serves more of
        them again than to keep all of them for a third of the time.
        """
        self.ticks, self.portion = ticks, portion
        self._kept_of_all = int(portion * 2**32)
        self._cameras: dict[str, tuple[OrderedDict[int, int], Frames]] = {}

    def between(
        self, camera: CameraSpec, first: int, stop: int, read: Callable[[int, int], Frames]
    ) -> Frames:
        """Return the frames of dataset ticks `first` to `stop` - 1 of `camera`, (n, H, W, 3) uint8.

        read: returns those from a tick to another, which it is asked for if they are not kept.
        """
        if camera.name not in self._cameras:
            rows = np.empty((self.ticks, camera.height, camera.width, 3), np.uint8)
            self._cameras[camera.name] = OrderedDict(), rows
        slots, kept = self._cameras[camera.name]  # tick -> row, the longest unused first; the rows
        missing = [tick for tick in range(first, stop) if tick not in slots]
        found = np.empty((stop - first, *kept.shape[1:]), np.uint8)
        for tick in range(first, stop):
            if tick in slots:
                slots.move_to_end(tick)
                found[tick - first] = kept[slots[tick]]
        gaps = np.flatnonzero(np.diff(missing) > 1) + 1
        for run in np.split(missing, gaps) if missing else ():
            begin, end = int(run[0]), int(run[-1]) + 1
            found[begin - first : end - first] = read(begin, end)
        for tick in filter(self._is_kept, missing):
            slot = len(slots) if len(slots) < self.ticks else slots.popitem(last=False)[1]
            kept[slot] = found[tick - first]
            slots[tick] = slot
        return found

    def _is_kept(self, tick: int) -> bool:
        """Whether the run of a tick is among those that are kept, which are spread like random ones."""
        return self.ticks > 0 and (tick // RUN + 1) * 0x9E3779B1 % 2**32 < self._kept_of_all


def resized_frames(frames: Frames, camera: CameraSpec) -> Frames:
    """Return frames (n, H, W, 3) uint8 at the size of `camera`, as `resize_frame` up to rounding."""
    size = (camera.height, camera.width)
    if frames.shape[1:3] == size or not len(frames):
        return frames.reshape(-1, *size, 3)
    if whole_factors(frames[0], *size):
        return np.stack([resize_frame(frame, *size) for frame in frames])
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)  # (n, 3, H, W) over the same memory
    resized = interpolate(planes, size, mode="bilinear", antialias=True)
    return resized.permute(0, 2, 3, 1).contiguous().numpy()


class FrameStore:
    """Gives frames by their dataset tick, which counts the ticks of all episodes one after another.

    Frames have the sizes of `spec`. `cache` and `copies` are those of `WindowDataset`.
    """

    def __init__(
        self, episodes: EpisodeDataset, spec: PolicySpec, cache: Cache, copies: int
    ) -> None:
        self._episodes, self._spec = episodes, spec
        self._offsets = np.cumsum([0, *(episode.num_samples for episode in episodes)])
        self._device, self._files = torch.device("cpu"), OpenFiles()
        self.tick_bytes = sum(camera.height * camera.width * 3 for camera in spec.cameras)
        """The size of the frames of one tick of all cameras."""
        needed = self.tick_bytes * episodes.num_ticks * copies
        self._cached: dict[str, Tensor] | None = None
        available = available_memory_bytes()
        if cache == "ram" and needed > available:
            raise UserError(
                f"the frames need {needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB are "
                "free here; take cache='none', or resize them"
            )
        if cache == "ram" or (cache == "auto" and needed <= MEMORY_PORTION * available):
            self._cached = self._decode_all()

    @property
    def in_memory(self) -> bool:
        """Whether all frames are kept in memory."""
        return self._cached is not None

    def to(self, device: torch.device | str) -> None:
        """Move the cached frames to `device`, and return frames there from now on."""
        self._device = torch.device(device)
        if self._cached is not None:
            self._cached = {name: frames.to(device) for name, frames in self._cached.items()}

    def close(self) -> None:
        """Close the files that are open; what is read afterwards opens them again."""
        self._files.close()

    def recent(self, ticks: int, processes: int) -> RecentFrames:
        """Return what keeps the frames of so many ticks, or of those for which there is memory.

        processes: those of this machine that keep so many each.
        """
        room = int(MEMORY_PORTION * available_memory_bytes()) // (processes * self.tick_bytes)
        return RecentFrames(min(ticks, room), min(1.0, room / ticks))

    def gather(self, rows: Tensor, recent: RecentFrames | None = None) -> dict[str, Tensor]:
        """Return the frames at dataset ticks (B, T), by camera: (B, T, H, W, 3) uint8.

        Each row of `rows` must lie within one episode. recent: gives and keeps frames that would be read
        again; None to read all from the files.
        """
        if self._cached is not None:
            ticks = rows.flatten()  # index_select copies whole frames, unlike frames[rows]
            return {
                name: frames.index_select(0, ticks).reshape(*rows.shape, *frames.shape[1:])
                for name, frames in self._cached.items()
            }
        wanted = rows.cpu().numpy()
        found = {}
        for camera in self._spec.cameras:
            read = partial(self._read, camera)
            windows = np.empty((*wanted.shape, camera.height, camera.width, 3), np.uint8)
            for row, window in zip(wanted, windows, strict=True):
                span = int(row.min()), int(row.max()) + 1
                frames = read(*span) if recent is None else recent.between(camera, *span, read)
                np.take(frames, row - span[0], axis=0, out=window, mode="clip")
            found[camera.name] = torch.from_numpy(windows).to(self._device)
        return found

    def _read(self, camera: CameraSpec, first: int, stop: int) -> Frames:
        """Read the frames of dataset ticks `first` to `stop` - 1, of one episode, from its file."""
        index = int(np.searchsorted(self._offsets, first, side="right")) - 1
        start = int(self._offsets[index])
        episode, ticks = self._episodes[index], (first - start, stop - start)
        return resized_frames(episode.frames(camera.name, *ticks, files=self._files), camera)

    def _decode_all(self) -> dict[str, Tensor]:
        ticks = self._episodes.num_ticks
        cached = {
            camera.name: torch.empty((ticks, camera.height, camera.width, 3), dtype=torch.uint8)
            for camera in self._spec.cameras
        }
        for number, episode in enumerate(track(self._episodes, "decoding frames")):
            start = self._offsets[number]
            for camera in self._spec.cameras:
                frames = resized_frames(episode.frames(camera.name, files=self._files), camera)
                cached[camera.name][start : start + len(frames)] = torch.from_numpy(frames)
        self._files.close()
        return cached


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


def policy_inputs(batch: WindowBatch) -> PolicyInputs:
    """Return the network's inputs for a batch of windows; nothing is hidden or augmented."""
    return PolicyInputs(
        images={name: frames.permute(0, 1, 4, 2, 3) for name, frames in batch["images"].items()},
        proprioception=batch["proprioception"],
        previous_action=batch["previous_action"],
        previous_action_valid=batch["previous_action_valid"],
        language=batch["language"],
    )


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
        Which windows there are besides those that lie wholly in their episode. "start" adds those that
        begin before it, cut off at its first tick, and "both" also those that extend past its end, so
        that first and last ticks come as often as others. "none" adds none, except one window for each
        episode that is shorter than a window.
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
                f"{episodes.source}: no episode to make windows of; record more, or choose another mask"
            )
        self.episodes = episodes
        self.window = window
        self.shares = shares
        self.spec = resized_spec(episodes.spec, resize_to or {})
        lengths = [episode.num_samples for episode in episodes]
        self._offsets = torch.tensor(np.cumsum([0, *lengths[:-1]]))  # (E,) the first dataset ticks
        self._lengths = torch.tensor(lengths)
        # The places of all windows, (n, 3): episode, first tick, length
        self._windows = torch.from_numpy(_windows(lengths, window, pad))
        self._actions = _joined(episode.actions for episode in episodes)
        self._executed = _joined(episode.executed_actions for episode in episodes)
        self._proprioception = {
            vector.name: _joined(episode.proprioception(vector.name) for episode in episodes)
            for vector in self.spec.proprioception
        }
        self._require_finite("actions", self._actions)
        self._require_finite("executed_actions", self._executed)
        for name, values in self._proprioception.items():
            self._require_finite(f"obs/{name}", values)
        self._language = torch.from_numpy(embed_instructions(list(episodes)))  # (E, L)
        self.frames = FrameStore(episodes, self.spec, cache, copies)

    def _require_finite(self, name: str, values: Tensor) -> None:
        """Raise `UserError` for NaN or infinity, which would make every weight of a network NaN."""
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
        window: WindowBatch = _first(self.gather([range(len(self))[index]]))
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
        return [episode.num_samples for episode in self.episodes]

    @property
    def vectors(self) -> dict[str, Tensor]:
        """The vectors of all ticks by name, each (num_ticks, …), as `gather` reads them."""
        own = {"actions": self._actions, "executed actions": self._executed}
        return own | self._proprioception

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
        tick, each time with `episode_start`. Neither they nor the ticks of the burn-in are `valid`.
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

    def binary_transition_weights(self, weight: float) -> Tensor:
        """Return loss weights (num_ticks, A) that emphasise the ticks at which a gripper opens or closes.

        They are `weight` in a binary dimension for the last tick before a change, the tick of the change and
        the next, and 1 elsewhere. Index them with `dataset_tick`.
        """
        device = self._actions.device
        weights = torch.ones_like(self._actions)
        binary = torch.from_numpy(self.spec.binary_mask).to(device)
        commanded = self._actions > torch.from_numpy(self.spec.thresholds).to(device)
        lengths = self.episode_lengths
        for episode, own in zip(
            torch.split(commanded, lengths), torch.split(weights, lengths), strict=True
        ):
            changed = (episode[1:] != episode[:-1]) & binary
            for before, dimension in changed.nonzero().tolist():  # the last tick before the change
                own[before : before + 3, dimension] = weight
        return weights


def reduced_spec(spec: PolicySpec, side: int) -> PolicySpec:
    """Return the spec with cameras of at most `side` pixels in height and width."""
    cameras = (CameraSpec(c.name, min(c.height, side), min(c.width, side)) for c in spec.cameras)
    return replace(spec, cameras=tuple(cameras))


def resized_spec(spec: PolicySpec, resize_to: Mapping[str, tuple[int, int]]) -> PolicySpec:
    """Return the spec with the cameras of `resize_to`, name -> (height, width), resized."""
    resized = {name: CameraSpec(spec.camera(name).name, *size) for name, size in resize_to.items()}
    return replace(spec, cameras=tuple(resized.get(each.name, each) for each in spec.cameras))


def _joined(arrays: Iterable[Floats]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(arrays)))


def _windows(lengths: list[int], window: int, pad: Pad) -> npt.NDArray[np.int64]:
    """Return the episode, first tick and length of each window, (n, 3)."""
    found = []
    for episode, length in enumerate(lengths):
        first = 0 if pad == "none" else 1 - window
        last = length - 1 if pad == "both" else max(length - window, 0)
        begins = np.arange(first, last + 1)
        starts, stops = np.maximum(begins, 0), np.minimum(begins + window, length)
        found.append(np.stack([np.full_like(starts, episode), starts, stops - starts], axis=1))
    return np.concatenate(found).astype(np.int64)


def _first(batch: Any) -> Any:
    """Return the first item of a batch, without the batch dimension."""
    if isinstance(batch, dict):
        return {key: _first(value) for key, value in batch.items()}
    return batch[0]
