"""ALOHA's and ACT's HDF5 files, one for each episode (Zhao et al. 2023, https://github.com/tonyzhaozh/act).

    action                          (T, A)
    base_action                     (T, 2), of mobile ALOHA; follows `action` in ours
    observations/qpos, qvel, effort (T, K)
    observations/images/<camera>    (T, H, W, 3) uint8, or T JPEGs padded with zeros, (T, n) uint8

Files have no instruction and no rate, and their writers disagree about the order of colours: frames
that were compressed by OpenCV without a conversion have red and blue exchanged. The order is
therefore a choice that must be made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_file import decoded, instruction_of, open_file, plain_text
from ttm.datasets.files import find_files
from ttm.datasets.formats.hdf5 import write_frames
from ttm.datasets.formats.recording import (
    FrameStream,
    Recording,
    Source,
    index_labels,
    survey_actions,
)
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames, decode_image, encode_jpeg
from ttm.datasets.hdf5 import new_file, read_rows, require_readable
from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec, ProprioceptionSpec

RATE_HZ = 50.0  # ALOHA's control rate, which its files do not hold
ORDER = "ttm_colour_order"  # the attribute in which files that we wrote say their order of colours

OURS: dict[str, Any] = {
    "executed_actions": np.float32,
    "interventions": np.uint8,
    "loss_weights": np.float32,
    "timestamps": np.float64,
    "rewards": np.float32,
    "dones": np.int64,
}
"""Datasets that files which we wrote have at their top, and their types."""


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open a file, or a folder of files."""
    files = find_files(path, allow_external=options.choices.allow_external)
    for each in files:
        with options.choices.open(each) as file:
            require_readable(file)
    parts, notes = survey_actions((_read_actions(file) for file in files), str(path))
    with open_file(files[0]) as file:
        order = options.colour_order or decoded(file.attrs.get(ORDER))
        stored = decoded(file.attrs.get("ttm_spec"))
        images = file["observations"].get("images", {})
        if not all(map(len, images.values())):
            raise UserError(f"{files[0]} has no frames; leave this episode out")
        cameras = tuple(
            CameraSpec(name, *_decoded(images[name], 0, files[0]).shape[:2]) for name in images
        )
        vectors = tuple(
            ProprioceptionSpec(name, index_labels(name, values.shape[1]))
            for name, values in file["observations"].items()
            if isinstance(values, h5py.Dataset) and values.ndim == 2
        )
        read = {"images", *(vector.name for vector in vectors)}
        skipped = [name for name in file["observations"] if name not in read]
        notes += ["base_action follows action"] if "base_action" in file else []
    if order not in ("rgb", "bgr"):
        raise UserError(
            f"{path}: ALOHA's files do not say their order of colours; give --colour-order rgb, or "
            "bgr if red and blue are exchanged in `ttm data show TO --sheet sheet.png`"
        )
    if stored:
        spec = PolicySpec.from_json(stored)
    else:
        spec = PolicySpec(
            options.robot or "aloha", cameras, vectors, parts, options.rate_hz or RATE_HZ
        )
        if options.rate_hz is None:
            notes.append(f"the files hold no rate; {RATE_HZ:g} Hz is ALOHA's (--rate-hz)")
    notes += [f"not converted: {', '.join(skipped)}"] if skipped else []
    return Source(
        spec=spec,
        num_episodes=len(files),
        recordings=lambda: (_recording(file, spec, order) for file in files),
        has_own_spec=bool(stored),
        notes=tuple(notes),
    )


def write(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write one file for each episode to the folder `target`."""
    order = options.colour_order or ("rgb" if options.jpeg_quality is None else None)
    if order is None:
        raise UserError(
            "give --colour-order rgb for JPEGs, or bgr for programs that decode by OpenCV alone"
        )
    target.mkdir()
    for number, recording in enumerate(source.recordings()):
        with new_file(target / f"episode_{number}.hdf5") as file:
            _write(file, recording, source, options.jpeg_quality, order)


def _recording(path: Path, spec: PolicySpec, order: str) -> Recording:
    actions = _read_actions(path).astype(np.float32)
    with open_file(path) as file:
        success, seed = file.attrs.get("success"), file.attrs.get("seed")
        task, variation = (plain_text(decoded(file.attrs.get(n)), n) for n in ("task", "variation"))
        columns: Any = {n: np.asarray(file[n][()], kind) for n, kind in OURS.items() if n in file}
        return Recording(
            name=str(path),
            actions=actions,
            vectors=_read_vectors(file["observations"], spec, path),
            cameras={c.name: _stream(file, path, c.name, order) for c in spec.cameras},
            instruction=instruction_of(file),
            task=task,
            success=None if success is None else bool(success),
            seed=None if seed is None else int(seed),
            variation=variation,
            masks=frozenset(json.loads(decoded(file.attrs.get("masks")) or "[]")),
            **columns,
        )


def _read_actions(path: Path) -> npt.NDArray[Any]:
    with open_file(path) as file:
        if "action" not in file or "observations" not in file:
            raise UserError(f"{path} has no action and observations, as its neighbours have")
        actions = np.asarray(file["action"][()])
        if "base_action" in file and "ttm_spec" not in file.attrs:
            actions = np.concatenate([actions, file["base_action"][()]], axis=1)
    return actions


def _read_vectors(
    observations: Any, spec: PolicySpec, path: Path
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the vectors by their names, or cut from `qpos` where `_write` has joined them there."""
    vectors, start = {}, 0
    for vector in spec.proprioception:
        if vector.name in observations:
            values = observations[vector.name][()]
        else:
            values = observations["qpos"][:, start : start + vector.size]
            start += vector.size
        if values.ndim != 2 or values.shape[1] != vector.size:
            what = f"observations/{vector.name} has shape {values.shape}, others (T, {vector.size})"
            raise UserError(f"{path}: {what}")
        vectors[vector.name] = values.astype(np.float32)
    return vectors


def _stream(file: Any, path: Path, camera: str, order: str) -> FrameStream:
    stored = file["observations"].get(f"images/{camera}")
    if stored is None:
        raise UserError(f"{path} has no images of camera '{camera}', which its neighbours have")
    jpegs = partial(_jpegs, path, camera) if stored.ndim < 4 and order == "rgb" else None
    return FrameStream(partial(_frames, path, camera, order), jpegs)


def _frames(path: Path, camera: str, order: str) -> Iterator[Frames]:
    with open_file(path) as file:
        stored = file[f"observations/images/{camera}"]
        for tick in range(len(stored)):
            frame = _decoded(stored, tick, path)
            yield frame if order == "rgb" else np.ascontiguousarray(frame[..., ::-1])


def _jpegs(path: Path, camera: str) -> Iterator[Frames]:
    with open_file(path) as file:
        stored = file[f"observations/images/{camera}"]
        for tick in range(len(stored)):  # the last byte of a JPEG is not 0
            yield np.trim_zeros(read_rows(stored, tick, tick + 1)[0], "b")


def _decoded(stored: Any, tick: int, path: Path) -> Frames:
    try:
        data = read_rows(stored, tick, tick + 1)[0]
        frame = decode_image(data) if stored.ndim < 4 else data
    except (OSError, SyntaxError) as error:
        raise UserError(
            f"{path}: frame {tick} of {stored.name} is damaged ({error}); leave it out"
        ) from error
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        raise UserError(
            f"{path}: {stored.name} holds {frame.dtype} {frame.shape}, not uint8 (H, W, 3)"
        )
    return np.asarray(frame)


def _write(
    file: h5py.File, recording: Recording, source: Source, quality: int | None, order: str
) -> None:
    file["action"] = recording.actions
    count, vectors = len(recording.actions), dict(recording.vectors)
    if "qpos" not in vectors:
        joined = [np.zeros((count, 0), np.float32), *vectors.values()]
        vectors = {"qpos": np.concatenate(joined, axis=1)}
    # ACT reads velocities, but takes no notice of them.
    vectors.setdefault("qvel", np.zeros_like(vectors["qpos"]))
    for name, values in vectors.items():
        file[f"observations/{name}"] = values
    lengths = []
    for camera in recording.cameras:
        key, frames = f"observations/images/{camera}", recording.each_frame(camera)
        ordered = (frame if order == "rgb" else frame[..., ::-1] for frame in frames)
        if quality is None:
            write_frames(file, key, ordered, count, "none")
        else:
            jpegs = [encode_jpeg(np.ascontiguousarray(frame), quality) for frame in ordered]
            lengths.append([len(data) for data in jpegs])
            width = max(lengths[-1])
            file[key] = np.stack([np.pad(data, (0, width - len(data))) for data in jpegs])
    if lengths:
        file["compress_len"] = np.array(lengths)
    for name, dtype in OURS.items():
        if (values := getattr(recording, name)) is not None:
            file[name] = np.asarray(values, dtype)
    facts = {
        # ACT shifts the actions of a real robot's files by a tick; ours need no shift.
        "sim": True,
        "compress": bool(lengths),
        ORDER: order,
        "language_instruction": recording.instruction,
        "task": recording.task,
        "masks": json.dumps(sorted(recording.masks)),
        "success": recording.success,
        "seed": recording.seed,
        "variation": recording.variation or None,
        "ttm_spec": source.spec.to_json() if source.has_own_spec else None,
    }
    file.attrs.update({name: value for name, value in facts.items() if value is not None})
