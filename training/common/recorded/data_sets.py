"""The data sets that `--data` names, PATH or PATH:WEIGHT each, and the episodes that are theirs."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.windows.shares import DataShares
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class DataSets:
    """Several data sets of one training."""

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
        places: dict[tuple[str, str], int] = {}
        for number, data_set in enumerate(opened):
            for episode in data_set:
                places.setdefault(_place(episode), number)
        of_training = tuple(places[_place(episode)] for episode in training)
        empty = [name for number, name in enumerate(names) if number not in of_training]
        if shares is not None and empty:
            raise UserError(
                f"--data: {empty[0]} has a weight and no episode to train on; leave it out, or choose "
                "another mask with --filter"
            )
        mixed = None if shares is None else DataShares(of_training, shares)
        of_validation = tuple(places[_place(episode)] for episode in validation)
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


def _place(episode: EpisodeReader) -> tuple[str, str]:
    return str(episode.path), episode.name
