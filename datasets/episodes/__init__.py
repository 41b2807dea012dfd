"""Episodes in HDF5: writer, reader, data sets, statistics, checks and training windows.

Names are loaded when they are first asked for, so that `import ttm.datasets` needs neither torch
nor h5py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttm.datasets.action_checks import validate_action
    from ttm.datasets.check.check import check_dataset
    from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
    from ttm.datasets.episode_reader import EpisodeReader
    from ttm.datasets.episode_writer import EpisodeWriter
    from ttm.datasets.instructions import embed_instructions
    from ttm.datasets.layout import DEFAULT_INSTRUCTION, next_episode_path
    from ttm.datasets.spec_inference import infer_spec
    from ttm.datasets.statistics import dataset_statistics
    from ttm.datasets.windows.lane_sampler import LaneSampler
    from ttm.datasets.windows.sampler import WindowSampler
    from ttm.datasets.windows.window_dataset import WindowBatch, WindowDataset

__all__ = [
    "DEFAULT_INSTRUCTION",
    "EpisodeDataset",
    "EpisodeReader",
    "EpisodeWriter",
    "LaneSampler",
    "WindowBatch",
    "WindowDataset",
    "WindowSampler",
    "check_dataset",
    "dataset_statistics",
    "embed_instructions",
    "infer_spec",
    "next_episode_path",
    "open_dataset",
    "validate_action",
]

_MODULES = {
    "DEFAULT_INSTRUCTION": "layout",
    "EpisodeDataset": "episode_dataset",
    "EpisodeReader": "episode_reader",
    "EpisodeWriter": "episode_writer",
    "LaneSampler": "windows.lane_sampler",
    "WindowBatch": "windows.window_dataset",
    "WindowDataset": "windows.window_dataset",
    "WindowSampler": "windows.sampler",
    "check_dataset": "check.check",
    "dataset_statistics": "statistics",
    "embed_instructions": "instructions",
    "infer_spec": "spec_inference",
    "next_episode_path": "layout",
    "open_dataset": "episode_dataset",
    "validate_action": "action_checks",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
