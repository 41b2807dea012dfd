"""The episodes of a training: opened by its options, split, and their frames at their size or as features."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset, embed_instructions, held_apart, open_dataset
from ttm.datasets.description import NONE, Choices
from ttm.datasets.hdf5 import available_memory_bytes
from ttm.datasets.reader import EpisodeReader, Floats
from ttm.datasets.samplers import DataShares
from ttm.datasets.windows import WindowDataset, reduced_spec, resized_frames, resized_spec
from ttm.policy.errors import UserError
from ttm.policy.policy import PRESETS, Policy
from ttm.policy.spec import CameraSpec, PolicySpec
from ttm.training.frozen_vision import EpisodeFeatures, MapStore, without_cameras
from ttm.training.options import TrainOptions
from ttm.training.run_log import LAST


@dataclass(frozen=True)
class DataSets:
    """Several data sets of one training, as `--data` names them: PATH or PATH:WEIGHT each."""

    names: Sequence[str]
    """As `--data` names them, without weights."""
    training: Sequence[int]
    """The data set of each episode to train on."""
    validation: Sequence[int]
    """The data set of each held-out episode."""
    shares: DataShares | None
    """How often windows of each data set are trained on; None for all windows equally often."""

    @classmethod
    def of(
        cls,
        opened: Sequence[EpisodeDataset],
        names: Sequence[str],
        shares: tuple[float, ...] | None,
        *parts: Iterable[EpisodeReader],
    ) -> DataSets:
        """Find out which data set each of the episodes to train on and of the held-out ones is from.

        Raises `UserError` if a data set with a share has no episode to train on.
        """
        numbers: dict[tuple[Path, str], int] = {}
        for number, data_set in enumerate(opened):
            for episode in data_set:
                numbers.setdefault((episode.path, episode.name), number)
        training, validation = (tuple(numbers[e.path, e.name] for e in part) for part in parts)
        for number, name in enumerate(names):
            if shares is not None and number not in training:
                raise UserError(
                    f"--data: {name} has a weight and no episode to train on; leave it out"
                )
        mixed = None if shares is None else DataShares(training, shares)
        return cls(names, training, validation, mixed)

    def lines(self) -> Iterator[str]:
        """Yield one line about each data set."""
        for number, name in enumerate(self.names):
            share = f" ({self.shares.shares[number]:.0%} of the windows)" if self.shares else ""
            yield (
                f"{name}: {self.training.count(number)} episodes to train on{share}, "
                f"{self.validation.count(number)} held out"
            )


def paths_and_shares(data: Sequence[str]) -> tuple[list[str], tuple[float, ...] | None]:
    """Return the paths, and the share of each in the windows; None if no weight is given.

    A path that exists is one as it stands, whatever it ends with. Raises `UserError` if only some of
    the data sets have a weight.
    """
    pairs = [_path_and_weight(text) for text in data]
    paths, weights = [path for path, _ in pairs], [weight for _, weight in pairs if weight]
    if not weights:
        return paths, None
    if len(weights) < len(pairs):
        bare = next(path for path, weight in pairs if not weight)
        raise UserError(
            f"--data: {bare} has no weight, and others have; give all of them one, such as {bare}:1, or none"
        )
    return paths, tuple(weight / sum(weights) for weight in weights)


def _path_and_weight(text: str) -> tuple[str, float | None]:
    path, _, number = text.rpartition(":")
    try:
        weight = float(number)
    except ValueError:
        return text, None
    if not path or not math.isfinite(weight) or Path(text).exists() or glob.glob(text):
        return text, None
    if weight <= 0:
        raise UserError(f"--data {text}: the weight must be above 0; or do not name it")
    return path, weight


def open_all(
    paths: Sequence[str],
    choices: Choices = Choices(),  # noqa: B008 (frozen)
    like: PolicySpec | None = None,
) -> list[EpisodeDataset]:
    """Open every data set in `paths`.

    like: the spec of a checkpoint, whose cameras are taken if none are chosen; see `open_dataset` for
    the rest. Raises `UserError` if a path cannot be opened, a camera is missing, or the data sets
    differ in their spec.
    """
    if not paths:
        raise UserError("no data is given; name HDF5 files, folders of them, or globs with --data")
    if like is not None and not choices.cameras:
        known = tuple(camera.name for camera in like.cameras) or (NONE,)
        choices = replace(choices, cameras=known)
    opened = [open_dataset(path, choices=choices, like=like) for path in paths]
    for other in opened[1:]:
        opened[0].spec.require_compatible(other.spec, ours=opened[0].source, theirs=other.source)
    return opened


def split(opened: Sequence[EpisodeDataset], mask: str) -> EpisodeDataset:
    """Join the episodes of all data sets that belong to `mask` (see `EpisodeDataset.filter`)."""
    parts = [dataset.filter(mask) for dataset in opened]
    return EpisodeDataset(
        [episode for part in parts for episode in part],
        opened[0].spec,
        source=", ".join(part.source for part in parts),
        note="; ".join(dict.fromkeys(part.note for part in parts if part.note)),
        members=opened[0].members,
    )


@dataclass(frozen=True)
class Data:
    """The episodes to train on and those held out."""

    training: EpisodeDataset
    validation: EpisodeDataset
    resize_to: dict[str, tuple[int, int]]
    """Camera -> (height, width) to which its frames are reduced."""
    sets: DataSets | None = None
    """The data sets, if there are several."""

    @property
    def spec(self) -> PolicySpec:
        """The spec with the cameras at the size that the network gets."""
        return resized_spec(self.training.spec, self.resize_to)

    @property
    def notes(self) -> list[str]:
        """What was assumed about the episodes, each once, and which frames are reduced."""
        notes = "; ".join([self.training.note, self.validation.note]).split("; ")
        cameras = [(self.training.spec.camera(name), size) for name, size in self.resize_to.items()]
        sizes = [f"{c.name} {c.width}x{c.height} to {size[1]}x{size[0]}" for c, size in cameras]
        if sizes:
            notes.append(
                f"frames are reduced ({', '.join(sizes)}), as evaluations and robots will reduce theirs; "
                "--image-size sets another size"
            )
        return list(dict.fromkeys(filter(None, notes)))

    def windows(self, options: TrainOptions, copies: int, *, frozen: bool) -> WindowDataset:
        """Return the windows to train on, of which `copies` processes of this machine keep one set each.

        frozen: without frames, in whose place are features.
        """
        whole = options.window == "episode"
        longest = max(episode.num_samples for episode in self.training)
        return WindowDataset(
            without_cameras(self.training) if frozen else self.training,
            longest if options.window == "episode" else options.window,
            pad="none" if whole else "both",
            resize_to={} if frozen else self.resize_to,
            shares=None if self.sets is None else self.sets.shares,
            copies=copies,
        )


def open_data(options: TrainOptions, checkpoint: Policy | None) -> Data:
    """Open the data of a training.

    checkpoint: the policy to resume or to fine-tune, whose spec the data must have; None for a new
    one. Raises `UserError` if there is nothing to train on, or the specs differ.
    """
    like = None if checkpoint is None else checkpoint.spec
    try:
        return _opened(options, like)
    except UserError as error:
        if like is None or options.resume:
            raise
        _opened(options, None)  # raises what is wrong with the data themselves
        instead = f"give --vision-weights {options.init} in place of --init"
        raise UserError(
            f"{error}; to train another robot with the same vision, {instead}"
        ) from error


def _opened(options: TrainOptions, like: PolicySpec | None) -> Data:
    """Open the data of a training, which must have the spec `like` if there is one."""
    paths, shares = paths_and_shares(options.data)
    opened = open_all(paths, options.choices, like)
    if shares is None:
        opened = _joined_files(opened)
        paths = [each.source for each in opened]
    validation = split(opened, options.validation_filter)
    # Without copies of held-out ones:
    training = held_apart(split(opened, options.filter), validation)
    if not len(training):
        raise UserError(
            f"{training.source}: no episode is in mask '{options.filter}'; record more, or give --filter"
        )
    sets = DataSets.of(opened, paths, shares, training, validation) if len(opened) > 1 else None
    data = Data(training, validation, _frame_sizes(options, training.spec, like), sets)
    if like is not None:
        name = options.out / LAST if options.resume else options.init
        like.require_compatible(data.spec, ours=str(name), theirs=training.source)
    return data


def _joined_files(opened: Sequence[EpisodeDataset]) -> list[EpisodeDataset]:
    """Return the data sets, those of one episode as one, such as a shell names for `folder/*.hdf5`."""
    files = [each for each in opened if len(each) == 1]
    if len(files) < 2:
        return list(opened)
    name, spec = f"{len(files)} files of one episode", files[0].spec
    note = "; ".join(dict.fromkeys(each.note for each in files if each.note))
    whole = EpisodeDataset(
        [e[0] for e in files], spec, source=name, note=note, members=files[0].members
    )
    return [*(each for each in opened if len(each) > 1), whole]


def _frame_sizes(
    options: TrainOptions, spec: PolicySpec, like: PolicySpec | None
) -> dict[str, tuple[int, int]]:
    """Return camera -> (height, width) for the cameras whose frames are reduced."""
    if options.image_size is None and like is not None:
        seen = spec.seen_by(like)
    else:
        seen = reduced_spec(spec, options.image_size or PRESETS[options.preset].image_size)
    return {c.name: (c.height, c.width) for c in seen.cameras if c not in spec.cameras}


@dataclass(frozen=True)
class PredictedStatistics:
    """Statistics of actions in the form in which a policy predicts them, (P,) each, in the spec's units."""

    mean: Floats
    std: Floats


def predicted_statistics(
    policy: Policy, episodes: Iterable[EpisodeReader]
) -> PredictedStatistics | None:
    """Return the statistics of all actions of the chunks that begin at each tick of `episodes`.

    Chunks of a policy that is told of delays go on for the longest one. None for a policy that predicts
    actions in the robot's form. Raises `UserError` if what is said to be rotations are none.
    """
    if not (form := policy.relative):
        return None
    delay_ticks = round(policy.config.longest_delay_s / policy.spec.control_dt_s)
    count, sums, squares = 0, np.zeros(()), np.zeros(())
    for episode in episodes:
        vectors = {v.name: episode.proprioception(v.name) for v in policy.spec.proprioception}
        measured = {name: torch.from_numpy(values).double() for name, values in vectors.items()}
        commands, ticks = torch.from_numpy(episode.actions).double(), episode.num_samples
        form.require_rotations(commands, measured, f"{episode.path}: {episode.name}")
        plans = form.plan(form.averageable(commands), measured)
        for ahead in range(min(policy.config.chunk + delay_ticks, ticks)):
            start = {name: values[: ticks - ahead] for name, values in measured.items()}
            actions = form.predicted(plans[ahead:], start).numpy()  # the k-th of each chunk, (n, P)
            count += len(actions)
            sums, squares = sums + actions.sum(axis=0), squares + np.square(actions).sum(axis=0)
    mean = sums / count
    std = form.even(np.sqrt(np.maximum(squares / count - np.square(mean), 0)))
    return PredictedStatistics(mean.astype(np.float32), std.astype(np.float32))


MEMORY_PORTION = 0.8
"""The portion of the free memory that the features of frozen vision may fill."""
SIGHT = ""
"""Stands among the names of cameras for what a sight memory sees, which is of the first camera."""


class FeatureCache:
    """Computes the features of data sets and shares those of equal frames among them."""

    def __init__(self, policy: Policy, cameras: tuple[CameraSpec, ...], copies: int = 1) -> None:
        """cameras: with the sizes of the frames that the network gets.

        copies: the number of caches that share the memory of the machine.
        """
        self._policy = policy
        self._has_sight = policy.sight is not None
        self._cameras = cameras
        self._stores = {camera.name: MapStore() for camera in cameras}
        self._cells = MapStore()  # what a sight memory sees
        self._known: dict[tuple[Path, str], dict[str, Tensor]] = {}  # file and episode -> rows
        self._limit = MEMORY_PORTION * available_memory_bytes() / copies

    def for_sight(self, has_sight: bool) -> FeatureCache:
        """Return a cache that shares all features with this one, with what a sight memory sees or without."""
        same = copy(self)
        same._has_sight = has_sight
        return same

    def features(self, episodes: EpisodeDataset) -> EpisodeFeatures:
        """Return the features of `episodes`."""
        codes = torch.from_numpy(embed_instructions(list(episodes)))
        each = zip(track(list(episodes), "computing features"), codes, strict=True)
        found = [self._rows(episode, code.unsqueeze(0)) for episode, code in each]
        rows = {name: torch.cat([known[name] for known in found]) for name in self._stores}
        cells = torch.cat([known[SIGHT] for known in found]) if self._has_sight else None
        return EpisodeFeatures(self._stores, rows, None if cells is None else (self._cells, cells))

    def _rows(self, episode: EpisodeReader, code: Tensor) -> dict[str, Tensor]:
        """Return the rows of an episode's frames by camera, and `SIGHT`. Frames are read once."""
        known = self._known.setdefault((episode.path, episode.name), {})
        for camera in self._cameras:
            names = [camera.name] + [SIGHT] * (self._has_sight and camera is self._cameras[0])
            if new := [name for name in names if name not in known]:
                frames = torch.from_numpy(resized_frames(episode.frames(camera.name), camera))
                known |= {name: self._see(name, frames.permute(0, 3, 1, 2), code) for name in new}
        return known

    def summary(self) -> str:
        """Return in words how much is kept."""
        distinct = sum(map(len, self._stores.values()))
        return f"features of {distinct} distinct frames in {self._num_bytes / 1e6:.1f} MB"

    @property
    def _num_bytes(self) -> int:
        return sum(store.num_bytes for store in (*self._stores.values(), self._cells))

    @torch.no_grad()
    def _see(self, name: str, frames: Tensor, language: Tensor) -> Tensor:
        """Return the rows of frames (T, 3, H, W) in the store of a camera, or of `SIGHT`, (T,)."""
        policy, vision = self._policy, self._policy.vision
        assert vision is not None, "`freeze_vision` refuses a policy without cameras"
        device, training = next(policy.parameters()).device, policy.training
        policy.eval()
        if name == SIGHT:
            rows = self._cells.rows(frames, b"", lambda new: policy.cells_of(new.to(device)))
        else:
            code, key = policy.instruction_code(language.to(device)), language.numpy().tobytes()
            rows = self._stores[name].rows(frames, key, lambda new: vision(new.to(device), code))
        policy.train(training)
        if self._num_bytes > self._limit:
            raise UserError(
                f"the features exceed {self._limit / 2**30:.1f} GiB, the free memory; take fewer episodes"
            )
        return rows
