"""Episodes in HDF5: everything that recording, training and replaying them needs, in one import."""

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.episode_reader import Episode
from ttm.datasets.episode_writer import EpisodeWriter, validate_action
from ttm.datasets.layout import next_episode_path

__all__ = [
    "Episode",
    "EpisodeDataset",
    "EpisodeWriter",
    "next_episode_path",
    "open_dataset",
    "validate_action",
]
