"""HDF5 files in robomimic's layout (robomimic, robosuite, MimicGen, LIBERO, RoboCasa, ours): read.

What is read is what `open_dataset` gives. Ours are written: a folder with one file for each episode,
or one file with all of them if its name ends in `.hdf5`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ttm.datasets.access.rows import read_rows
from ttm.datasets.convert.demo_group import fits_spec, write_demo_file
from ttm.datasets.convert.inferred import survey_actions
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.convert.recording import FrameStream, Recording, Source
from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.episode_file import open_file, read_stored_spec
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.frames import Frames, decode_image
from ttm.datasets.layout import JPEG, SUFFIXES
from ttm.policy.errors import UserError

FRAMES_A_READ = 16
"""How many frames are in memory at a time."""


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open a file, a folder of files, or a glob, as `open_dataset` does."""
    episodes = open_dataset(path, choices=options.choices)
    return source_of(episodes, str(path), has_spec=options.choices.changes_spec)


def source_of(episodes: EpisodeDataset, where: str, *, has_spec: bool = False) -> Source:
    """Return opened episodes as what is converted.

    where: their path, for messages. has_spec: whether their spec was given, and not inferred.
    """
    rounding = survey_actions((_stored_actions(episode) for episode in episodes), where)[1]
    return Source(
        spec=episodes.spec,
        num_episodes=len(episodes),
        recordings=lambda: (recording_of(episode) for episode in episodes),
        has_own_spec=has_spec or has_own_spec(episodes),
        notes=tuple(filter(None, [episodes.note, *rounding, _left_out(episodes)])),
    )


def write(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write ours to `target`: one file if it is named `*.hdf5` or `*.h5`, or else a folder."""
    write_file = partial(
        write_demo_file, with_spec=fits_spec(source), jpeg_quality=options.jpeg_quality
    )
    numbered = enumerate(source.recordings())
    if target.name.removesuffix(".partial").endswith(SUFFIXES):
        write_file(target, source.spec, numbered)
    else:
        target.mkdir()
        for number, recording in numbered:
            file = target / f"episode_{number:05d}.hdf5"
            write_file(file, source.spec, [(0, recording)])


def recording_of(episode: EpisodeReader) -> Recording:
    """Return an episode that can be written in another format; its frames are read one by one."""
    with open_file(episode.path) as file:
        demo = file["data"][episode.name]
        columns = {
            name: _column(demo[name], dtype, episode)
            for name, dtype in (("rewards", np.float32), ("dones", np.int64))
            if name in demo
        }
        jpegs = {
            camera.name: demo[f"obs/{camera.name}"].attrs.get("encoding") == JPEG
            and _is_read_as_stored(episode, camera.name, demo[f"obs/{camera.name}"][0])
            for camera in episode.spec.cameras
        }
        has_executed, has_weights = (key in demo for key in ("executed_actions", "loss_weights"))
    return Recording(
        name=f"{episode.path}: {episode.name}",
        actions=episode.actions,
        vectors={v.name: episode.proprioception(v.name) for v in episode.spec.proprioception},
        cameras={
            name: FrameStream(
                partial(_frames, episode, name), partial(_jpegs, episode, name) if kept else None
            )
            for name, kept in jpegs.items()
        },
        instruction=episode.instruction,
        task=episode.task,
        success=episode.success,
        seed=episode.seed,
        masks=episode.masks,
        timestamps=episode.timestamps,
        rewards=columns.get("rewards"),
        dones=columns.get("dones"),
        executed_actions=episode.executed_actions if has_executed else None,
        interventions=None
        if (driven := episode.interventions) is None
        else driven.astype(np.uint8),
        loss_weights=episode.loss_weights if has_weights else None,
        language_embedding=episode.language_embedding,
        language_model=episode.language_model,
    )


def _is_read_as_stored(episode: EpisodeReader, camera: str, first: Frames) -> bool:
    """Return whether a JPEG holds the frame that the reader gives, rather than it upside down."""
    return np.array_equal(decode_image(first), episode.frames(camera, 0, 1)[0])


def _column(stored: Any, dtype: Any, episode: EpisodeReader) -> Any:
    """Return a dataset of one number a tick; nothing of it is read if its shape is another."""
    shape, kind = getattr(stored, "shape", None), getattr(stored, "dtype", np.dtype(object)).kind
    if shape != (episode.num_samples,) or kind not in "fiub":
        raise UserError(
            f"{stored.name} has shape {shape}, or no numbers, and the demo has {episode.num_samples} ticks; "
            "take it out of the file"
        )
    return np.asarray(stored[()], dtype)


def _frames(episode: EpisodeReader, camera: str) -> Iterator[Frames]:
    for start in range(0, episode.num_samples, FRAMES_A_READ):
        yield from episode.frames(camera, start, start + FRAMES_A_READ)


def _jpegs(episode: EpisodeReader, camera: str) -> Iterator[Frames]:
    with open_file(episode.path) as file:
        stored = file["data"][episode.name][f"obs/{camera}"]
        for tick in range(len(stored)):
            yield read_rows(stored, tick, tick + 1)[0]


def has_own_spec(episodes: EpisodeDataset) -> bool:
    """Return whether the files of a data set carry a spec."""
    with open_file(episodes[0].path) as file:
        return read_stored_spec(file) is not None


def _stored_actions(episode: EpisodeReader) -> Any:
    with open_file(episode.path) as file:
        return file["data"][episode.name]["actions"][()]


def _left_out(episodes: EpisodeDataset) -> str:
    """Return a note on what the first demo holds beside the members that are converted."""
    spec = episodes.spec
    used = {camera.name for camera in spec.cameras} | {v.name for v in spec.proprioception}
    with open_file(episodes[0].path) as file:
        demo = file["data"][episodes[0].name]
        skipped = [f"obs/{name}" for name in demo["obs"] if name not in used]
        skipped += [name for name in demo if name not in CONVERTED]
    return f"not converted: {', '.join(skipped)}" if skipped else ""


CONVERTED = (
    "obs",
    "actions",
    "rewards",
    "dones",
    "timestamps",
    "executed_actions",
    "interventions",
    "loss_weights",
    "language_embedding",
)
"""The members of a demo that are converted; of `obs` those that the spec names."""
