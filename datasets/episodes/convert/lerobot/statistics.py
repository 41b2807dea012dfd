"""The statistics that LeRobot stores with its data sets, and normalises its policies' inputs with.

Quantiles of a whole data set are the means of its episodes' quantiles, weighted by their numbers of
frames, as LeRobot aggregates them; its other statistics are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import Frames

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Statistics = dict[str, npt.NDArray[Any]]

MOST_SIDE = 64
"""Statistics of images are taken from at most this many rows and columns of pixels."""


def of_numbers(values: npt.NDArray[Any]) -> Statistics:
    """Return the statistics of values (T,) or (T, K) over T, each (1,) or (K,)."""
    wide = values.astype(np.float64).reshape(len(values), -1)
    found = {
        "min": wide.min(axis=0),
        "max": wide.max(axis=0),
        "mean": wide.mean(axis=0),
        "std": wide.std(axis=0),
        "count": np.array([len(wide)]),
    }
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return found | dict(zip(QUANTILES, quantiles, strict=True))


class FrameStatistics:
    """Takes the statistics of a camera's frames as they pass by."""

    def __init__(self) -> None:
        self._histograms = np.zeros((3, 256), np.int64)
        self._count = 0

    def watch(self, frames: Iterable[Frames]) -> Iterator[Frames]:
        """Yield the frames on, and count the values of a grid of their pixels."""
        for frame in frames:
            steps = [max(side // MOST_SIDE, 1) for side in frame.shape[:2]]
            pixels = frame[:: steps[0], :: steps[1]].reshape(-1, 3)
            for channel in range(3):
                self._histograms[channel] += np.bincount(pixels[:, channel], minlength=256)
            self._count += 1
            yield frame

    def result(self) -> Statistics:
        """Return the statistics of each channel, (3, 1, 1), of values in [0, 1]."""
        levels = np.arange(256) / 255
        weights = self._histograms / self._histograms.sum(axis=1, keepdims=True)  # (3, 256)
        cumulative = weights.cumsum(axis=1)
        mean = weights @ levels
        present = self._histograms > 0
        found = {
            "min": levels[present.argmax(axis=1)],
            "max": levels[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(weights @ levels**2 - mean**2, 0)),
        }
        found |= {
            name: levels[(cumulative >= portion - 1e-12).argmax(axis=1)]
            for name, portion in QUANTILES.items()
        }
        shaped = {name: values.reshape(3, 1, 1) for name, values in found.items()}
        return shaped | {"count": np.array([self._count])}


class TotalStatistics:
    """Adds up the statistics of episodes to those of the whole data set."""

    def __init__(self) -> None:
        self.totals: dict[str, Statistics] = {}

    def add(self, episode: Mapping[str, Statistics]) -> None:
        """Add the statistics of one episode: feature -> statistics."""
        for feature, new in episode.items():
            old = self.totals.get(feature)
            self.totals[feature] = dict(new) if old is None else _combined(old, new)


def as_lists(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return statistics as nested lists, which JSON and Arrow take."""
    return {
        feature: {name: values.tolist() for name, values in found.items()}
        for feature, found in statistics.items()
    }


def _combined(old: Statistics, new: Statistics) -> Statistics:
    count = old["count"] + new["count"]
    ours, theirs = old["count"] / count, new["count"] / count
    mean = ours * old["mean"] + theirs * new["mean"]
    spread = (
        old["std"] ** 2 + (old["mean"] - mean) ** 2,
        new["std"] ** 2 + (new["mean"] - mean) ** 2,
    )
    found = {
        "min": np.minimum(old["min"], new["min"]),
        "max": np.maximum(old["max"], new["max"]),
        "mean": mean,
        "std": np.sqrt(ours * spread[0] + theirs * spread[1]),
        "count": count,
    }
    return found | {name: ours * old[name] + theirs * new[name] for name in QUANTILES}
