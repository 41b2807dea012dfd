"""The episodes of a training: opened by its options, split, and with the frames at their size."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttm.datasets.dataset import EpisodeDataset, held_apart, open_dataset
from ttm.datasets.description import NONE, Choices
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.samplers import DataShares
from ttm.datasets.windows import WindowBatch, resized_spec
from ttm.policy.errors import UserError
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import PRESETS, Policy
from ttm.policy.spec import PolicySpec
from ttm.training.options import TrainOptions
from ttm.training.run_log import LAST


@dataclass(frozen=True)
class DataSets:
    """Several data sets of one training, as `--data` names them: PATH or PATH:WEIGHT each."""

    names: tuple[str, ...]
    """As `--data` names them, without weights."""
    training: tuple[int, ...]
    """The data set of each episode to train on."""
    validation: tuple[int, ...]
    """The data set of each held-out episode."""
    shares: DataShares | None
    """How often windows of each data set are trained on; None for all windows equally often."""

    @classmethod
    def of(
        cls,
        opened: Sequence[EpisodeDataset],
        names: Sequence[str],
        shares: tuple[float, ...] | None,
        training: Iterable[EpisodeReader],
        validation: Iterable[EpisodeReader],
    ) -> DataSets:
        """Find out which data set each of the episodes is from.

        Raises `UserError` if a data set with a share has no episode to train on.
        """

        def place(episode: EpisodeReader) -> tuple[str, str]:
            return str(episode.path), episode.name

        numbers: dict[tuple[str, str], int] = {}
        for number, data_set in enumerate(opened):
            for episode in data_set:
                numbers.setdefault(place(episode), number)
        of_training = tuple(numbers[place(episode)] for episode in training)
        empty = [name for number, name in enumerate(names) if number not in of_training]
        if shares is not None and empty:
            raise UserError(
                f"--data: {empty[0]} has a weight and no episode to train on; leave it out, or choose "
                "another mask with --filter"
            )
        mixed = None if shares is None else DataShares(of_training, shares)
        of_validation = tuple(numbers[place(episode)] for episode in validation)
        return cls(tuple(names), of_training, of_validation, mixed)

    @property
    def validation_names(self) -> list[str]:
        """The name of the data set of each held-out episode."""
        return [self.names[number] for number in self.validation]

    def lines(self) -> Iterator[str]:
        """Yield one line about each data set."""
        for number, name in enumerate(self.names):
            share = (
                "" if self.shares is None else f" ({self.shares.shares[number]:.0%} of the windows)"
            )
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
        raise UserError(
            f"--data {text}: the weight must be above 0; to leave data out, do not name it"
        )
    return path, weight


def open_all(
    paths: Sequence[str],
    cameras: Sequence[str] = (),
    *,
    choices: Choices | None = None,
    like: PolicySpec | None = None,
) -> list[EpisodeDataset]:
    """Open every data set in `paths`, reduced to the cameras called `cameras` if any are named.

    choices: all choices of the user, in place of `cameras`. like: the spec of a checkpoint, whose
    cameras are taken if none are chosen; see `open_dataset` for the rest.
    Raises `UserError` if a path cannot be opened, a camera is missing, or the data sets differ in
    their spec.
    """
    if not paths:
        raise UserError("no data is given; name HDF5 files, folders of them, or globs with --data")
    choices = choices or Choices(cameras=tuple(cameras))
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
    episodes = [episode for part in parts for episode in part]
    notes = dict.fromkeys(part.note for part in parts if part.note)
    source = ", ".join(part.source for part in parts)
    return EpisodeDataset(
        episodes,
        opened[0].spec,
        source=source,
        note="; ".join(notes),
        members=opened[0].members,
    )


@dataclass(frozen=True)
class Data:
    """The episodes to train on and those held out."""

    training: EpisodeDataset
    validation: EpisodeDataset
    resize_to: dict[str, tuple[int, int]]
    """Camera -> (height, width) of the frames that the network gets, for cameras whose frames are
    resized."""
    sets: DataSets | None = None
    """The data sets, if there are several."""

    @property
    def spec(self) -> PolicySpec:
        """The spec with the cameras at the size that the network gets."""
        return resized_spec(self.training.spec, self.resize_to)

    @property
    def notes(self) -> list[str]:
        """What was assumed about the episodes, each once."""
        notes = "; ".join([self.training.note, self.validation.note]).split("; ")
        return list(dict.fromkeys(filter(None, notes)))


def open_data(options: TrainOptions, checkpoint: Policy | None) -> Data:
    """Open the data of a training.

    checkpoint: the policy to resume or to fine-tune, whose spec the data must have; None for a new
    one. Raises `UserError` if there is nothing to train on, or the specs differ.
    """
    like = None if checkpoint is None else checkpoint.spec
    paths, shares = paths_and_shares(options.data)
    opened = open_all(paths, choices=options.choices, like=like)
    validation = split(opened, options.validation_filter)
    training = held_apart(
        split(opened, options.filter), validation
    )  # without copies of held-out ones
    if not len(training):
        raise UserError(
            f"{training.source}: no episode is in mask '{options.filter}'; record more, or give --filter"
        )
    sets = DataSets.of(opened, paths, shares, training, validation) if len(paths) > 1 else None
    data = Data(training, validation, _frame_sizes(options, training.spec, checkpoint), sets)
    if checkpoint is not None:
        name = options.out / LAST if options.resume else options.init
        checkpoint.spec.require_compatible(data.spec, ours=str(name), theirs=training.source)
    return data


def _frame_sizes(
    options: TrainOptions, spec: PolicySpec, checkpoint: Policy | None
) -> dict[str, tuple[int, int]]:
    """Return camera -> (height, width) for the cameras to resize.

    Frames are enlarged only on request.
    """
    sizes = {camera.name: (camera.height, camera.width) for camera in spec.cameras}
    if options.image_size is not None:
        wanted = dict.fromkeys(sizes, (options.image_size, options.image_size))
    elif checkpoint is not None:
        wanted = {camera.name: (camera.height, camera.width) for camera in checkpoint.spec.cameras}
    else:
        side = PRESETS[options.preset].image_size
        wanted = {name: (side, side) for name, size in sizes.items() if max(size) > side}
    return {name: wanted[name] for name, size in sizes.items() if wanted.get(name, size) != size}


def policy_inputs(batch: WindowBatch) -> PolicyInputs:
    """Return the network's inputs for a batch of windows; nothing is hidden or augmented."""
    return PolicyInputs(
        images={name: frames.permute(0, 1, 4, 2, 3) for name, frames in batch["images"].items()},
        proprioception=batch["proprioception"],
        previous_action=batch["previous_action"],
        previous_action_valid=batch["previous_action_valid"],
        proprioception_valid=None,
        language=batch["language"],
    )
