"""HDF5 files in robomimic's layout (robomimic, robosuite, MimicGen, LIBERO, RoboCasa, ours).

What is read is what `open_dataset` gives. Ours are written: a folder with one file for each episode,
or one file with all of them if its name ends in `.hdf5`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.episode_file import decoded, open_file, plain_text, read_stored_spec
from ttm.datasets.formats.recording import PER_TICK, FrameStream, Recording, Source, survey_actions
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames, decode_image, encode_jpeg
from ttm.datasets.hdf5 import new_file, read_rows, reserve
from ttm.datasets.layout import JPEG, SUFFIXES
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.writer import GZIP, lossless, outside_limits, write_file_attributes
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Compression = Literal["by size", "gzip", "none"]
"""How frames are stored without loss: small ones by gzip and others by LZF, all by gzip, or as they are."""

ROOM_A_FRAME = 2**8  # bytes that HDF5 may take beside the values of a frame
FRAMES_A_READ = 16  # frames that are in memory at a time

CONVERTED = {"obs", "actions", "executed_actions", "language_embedding", *PER_TICK}
"""The members of a demo that are converted; of `obs` those that the spec names."""


def write_demo_file(
    path: Path,
    spec: PolicySpec,
    recordings: Iterable[tuple[int, Recording]],
    *,
    with_spec: bool = True,
    robomimic: bool = False,
    **storage: Any,
) -> None:
    """Write a new file with the demos `demo_<number>`, their masks and the environment's facts.

    recordings: each after its number. with_spec: whether the file carries the spec. robomimic: as
    robomimic reads it; see `write_robomimic`. storage: `jpeg_quality` and `compression` of `write_demo`.
    """
    masks: dict[str, list[bytes]] = defaultdict(list)
    instructions = set()
    with new_file(path) as file:
        write_file_attributes(file, spec, with_spec=with_spec)
        for number, recording in recordings:
            demo = write_demo(file, number, recording, decode=robomimic, **storage)
            if robomimic:
                demo.attrs["ep_meta"] = json.dumps({"lang": recording.instruction})
                _write_next_observations(demo, recording)
            instructions.add(recording.instruction)
            for key in sorted(recording.masks):
                masks[key].append(f"demo_{number}".encode())
        if robomimic and len(instructions) == 1:
            problem = {"language_instruction": instructions.pop()}
            file["data"].attrs["problem_info"] = json.dumps(problem)
        for key, names in masks.items():
            file.create_dataset(f"mask/{key}", data=np.array(names))


def write_demo(
    file: h5py.File,
    number: int,
    recording: Recording,
    *,
    decode: bool,
    jpeg_quality: int | None = None,
    compression: Compression = "by size",
) -> h5py.Group:
    """Write a recording as `data/demo_<number>`, frame by frame, and return the group.

    decode: whether frames that were recorded as JPEGs are decoded, rather than kept to the byte.
    jpeg_quality: frames that were not recorded as JPEGs become such; None stores them without loss.
    """
    count = len(recording.actions)
    columns: dict[str, Any] = {
        "actions": recording.actions,
        "rewards": recording.filled("rewards"),
        "dones": recording.filled("dones"),
        **{f"obs/{name}": values for name, values in recording.vectors.items()},
    }
    optional = ("timestamps", "executed_actions", "interventions", "loss_weights")
    columns |= {name: getattr(recording, name) for name in optional}
    columns = {name: values for name, values in columns.items() if values is not None}
    reserve(file, sum(np.asarray(values).nbytes for values in columns.values()))
    demo = file.create_group(f"data/demo_{number}")
    for key, values in columns.items():
        demo.create_dataset(key, data=values)
    for camera, stream in recording.cameras.items():
        key, frames = f"obs/{camera}", recording.each_frame(camera)
        if stream.jpegs is not None and not decode:
            _write_jpegs(demo, key, recording.each_jpeg(camera), count)
        elif jpeg_quality is not None:
            _write_jpegs(demo, key, (encode_jpeg(each, jpeg_quality) for each in frames), count)
        else:
            write_frames(demo, key, frames, count, compression)
    facts = {
        "num_samples": count,
        "task": recording.task,
        "language_instruction": recording.instruction or None,
        "success": recording.success,
        "seed": recording.seed,
        "variation": recording.variation or None,
    }
    demo.attrs.update({name: value for name, value in facts.items() if value is not None})
    if recording.language_embedding is not None:
        stored = demo.create_dataset("language_embedding", data=recording.language_embedding)
        stored.attrs["language_model"] = recording.language_model or ""
    file["data"].attrs["total"] = int(file["data"].attrs["total"]) + count
    return demo


def write_frames(
    group: h5py.Group,
    key: str,
    frames: Iterator[Frames],
    count: int,
    compression: Compression = "by size",
) -> None:
    """Write `count` frames, one by one, as one dataset of a group in a file of `new_file`."""
    first = next(frames)
    reserve(group.file, count * (first.nbytes + ROOM_A_FRAME))
    options: dict[str, Any] = {}
    if compression != "none":
        chosen = GZIP if compression == "gzip" else lossless(*first.shape[:2])
        options = {**chosen, "chunks": (1, *first.shape)}
    stored = group.create_dataset(key, (count, *first.shape), np.uint8, **options)
    for tick, frame in enumerate(chain([first], frames)):
        stored[tick] = frame


def _write_jpegs(demo: h5py.Group, key: str, jpegs: Iterator[Frames], count: int) -> None:
    stored = demo.create_dataset(key, (count,), h5py.vlen_dtype(np.uint8))
    stored.attrs["encoding"] = JPEG
    left = 0
    for tick, data in enumerate(jpegs):
        if left < data.nbytes + ROOM_A_FRAME:
            left = 2 * (count - tick) * (data.nbytes + ROOM_A_FRAME)
            reserve(demo.file, left)
        left -= data.nbytes + ROOM_A_FRAME
        stored[tick] = data


def _write_next_observations(demo: h5py.Group, recording: Recording) -> None:
    """Write the observations one tick later, and the last one twice."""
    count = len(recording.actions)
    for name, values in recording.vectors.items():
        demo[f"next_obs/{name}"] = np.concatenate([values[1:], values[-1:]])
    for camera in recording.cameras:
        frames = _one_later(recording.each_frame(camera))
        write_frames(demo, f"next_obs/{camera}", frames, count)


def _one_later(frames: Iterator[Frames]) -> Iterator[Frames]:
    last = next(frames)
    for last in frames:
        yield last
    yield last


def fits_spec(source: Source) -> bool:
    """Return whether a file can carry the source's spec: its own, or one that all actions lie within."""
    return source.has_own_spec or all(
        not outside_limits(part, recording.actions[:, source.spec.action_slices[part.name]]).any()
        for recording in source.recordings()
        for part in source.spec.actions
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
            write_file(target / f"episode_{number:05d}.hdf5", source.spec, [(0, recording)])


def write_robomimic(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write one HDF5 file as robomimic's `SequenceDataset` reads it, `hdf5_load_next_obs` on or off.

    Each demo has `next_obs`, and frames are stored as they are, since robomimic decodes no JPEGs. The
    instruction stands where RoboCasa (`ep_meta`) and, if all share one, LIBERO (`problem_info`) look for it.
    """
    recordings = enumerate(source.recordings())
    write_demo_file(target, source.spec, recordings, with_spec=fits_spec(source), robomimic=True)


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open a file, a folder of files, or a glob, as `open_dataset` does."""
    episodes = open_dataset(path, choices=options.choices)
    return source_of(episodes, str(path), has_spec=options.choices.changes_spec)


def source_of(episodes: EpisodeDataset, where: str, *, has_spec: bool = False) -> Source:
    """Return opened episodes as what is converted.

    where: their path, for messages. has_spec: whether their spec was given, and not inferred.
    """

    def stored_actions(episode: EpisodeReader) -> Any:
        with open_file(episode.path) as file:
            return file["data"][episode.name]["actions"][()]

    rounding = survey_actions(map(stored_actions, episodes), where)[1]
    return Source(
        spec=episodes.spec,
        num_episodes=len(episodes),
        recordings=lambda: map(recording_of, episodes),
        has_own_spec=has_spec or has_own_spec(episodes),
        notes=tuple(filter(None, [episodes.note, *rounding, _left_out(episodes)])),
    )


def recording_of(episode: EpisodeReader) -> Recording:
    """Return an episode that can be written in another format; its frames are read one by one."""
    with open_file(episode.path) as file:
        demo = file["data"][episode.name]
        rewards, dones = _column(demo, "rewards", np.float32), _column(demo, "dones", np.int64)
        jpegs = {
            camera.name: demo[f"obs/{camera.name}"].attrs.get("encoding") == JPEG
            # A JPEG is taken over if it holds the frame that the reader gives, and not it upside down.
            and np.array_equal(
                decode_image(demo[f"obs/{camera.name}"][0]), episode.frames(camera.name, 0, 1)[0]
            )
            for camera in episode.spec.cameras
        }
        variation = plain_text(decoded(demo.attrs.get("variation")), "variation")
        has_executed, has_weights = (key in demo for key in ("executed_actions", "loss_weights"))
    driven = episode.interventions
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
        variation=variation,
        masks=episode.masks,
        timestamps=episode.timestamps,
        rewards=rewards,
        dones=dones,
        executed_actions=episode.executed_actions if has_executed else None,
        interventions=None if driven is None else driven.astype(np.uint8),
        loss_weights=episode.loss_weights if has_weights else None,
        language_embedding=episode.language_embedding,
        language_model=episode.language_model,
    )


def _column(demo: Any, name: str, dtype: Any) -> Any:
    """Return a dataset of one number a tick, or None; nothing of it is read if its shape is another."""
    if name not in demo:
        return None
    stored, ticks = demo[name], len(demo["actions"])
    shape, kind = getattr(stored, "shape", None), getattr(stored, "dtype", np.dtype(object)).kind
    if shape != (ticks,) or kind not in "fiub":
        raise UserError(
            f"{stored.name} has shape {shape} or no numbers, and the demo has {ticks} ticks; take it out"
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


def _left_out(episodes: EpisodeDataset) -> str:
    """Return a note on what the first demo holds beside the members that are converted."""
    spec = episodes.spec
    used = {camera.name for camera in spec.cameras} | {v.name for v in spec.proprioception}
    with open_file(episodes[0].path) as file:
        demo = file["data"][episodes[0].name]
        skipped = [f"obs/{name}" for name in demo["obs"] if name not in used]
        skipped += [name for name in demo if name not in CONVERTED]
    return f"not converted: {', '.join(skipped)}" if skipped else ""
