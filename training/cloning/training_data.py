"""The episodes of a training: opened by its options, split, and with the frames at their size."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.windows.window_dataset import resized_spec
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.network.presets import PRESETS
from ttm.policy.spec import PolicySpec
from ttm.training.cloning.loop.run_folder import LAST
from ttm.training.cloning.options import TrainOptions
from ttm.training.common.recorded.data_sets import DataSets, paths_and_shares
from ttm.training.common.recorded.episodes import open_all, split_apart


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
    training, validation = split_apart(opened, options.filter, options.validation_filter)
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
    if options.image_size is not None:
        side = options.image_size
        wanted = {camera.name: (side, side) for camera in spec.cameras}
    elif checkpoint is not None:
        wanted = {camera.name: (camera.height, camera.width) for camera in checkpoint.spec.cameras}
    else:
        side = PRESETS[options.preset].image_size
        wanted = {
            camera.name: (side, side)
            for camera in spec.cameras
            if max(camera.height, camera.width) > side
        }
    return {
        camera.name: wanted[camera.name]
        for camera in spec.cameras
        if wanted.get(camera.name, (camera.height, camera.width)) != (camera.height, camera.width)
    }
