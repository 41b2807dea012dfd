"""Writes recordings as demos of HDF5 files in robomimic's layout, which is ours."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from ttm.datasets.access.write_guard import new_file, reserve
from ttm.datasets.action_checks import outside_limits
from ttm.datasets.convert.recording import Recording, Source
from ttm.datasets.episode_writer import GZIP_PIXELS, ROBOMIMIC_GYM_TYPE
from ttm.datasets.frames import Frames, encode_jpeg
from ttm.datasets.layout import FORMAT_VERSION, JPEG
from ttm.policy.spec import PolicySpec

Compression = Literal["by size", "gzip", "none"]
"""How frames are stored without loss: small ones by gzip and others by LZF, all by gzip, or as they are."""

ROOM_A_FRAME = 2**8
"""Bytes that HDF5 may take beside the values of a frame."""


def write_demo_file(
    path: Path,
    spec: PolicySpec,
    recordings: Iterable[tuple[int, Recording]],
    *,
    with_spec: bool = True,
    jpeg_quality: int | None = None,
    compression: Compression = "by size",
) -> None:
    """Write a new file with the demos `demo_<number>`, their masks and the environment's facts.

    recordings: each after its number. with_spec: whether the file carries the spec. For the other
    arguments see `write_demo`.
    """
    masks: dict[str, list[str]] = defaultdict(list)
    with new_file(path) as file:
        write_file_attributes(file, spec, with_spec=with_spec)
        for number, recording in recordings:
            name = f"demo_{number}"
            write_demo(file, name, recording, jpeg_quality=jpeg_quality, compression=compression)
            for key in sorted(recording.masks):
                masks[key].append(name)
        write_masks(file, masks)


def write_file_attributes(file: h5py.File, spec: PolicySpec, *, with_spec: bool) -> None:
    """Give an empty file its group `data` with the environment's facts, and with the spec if asked."""
    env_args = {
        "env_name": spec.robot,
        "type": ROBOMIMIC_GYM_TYPE,
        "env_kwargs": {"control_freq": spec.rate_hz},
    }
    data = file.require_group("data")
    data.attrs.update(total=0, env_args=json.dumps(env_args), ttm_format=FORMAT_VERSION)
    if with_spec:
        data.attrs["ttm_spec"] = spec.to_json()


def write_demo(
    file: h5py.File,
    name: str,
    recording: Recording,
    *,
    jpeg_quality: int | None = None,
    keep_jpegs: bool = True,
    compression: Compression = "by size",
) -> h5py.Group:
    """Write a recording as `data/<name>`, frame by frame, and return the group.

    keep_jpegs: frames that were recorded as JPEGs stay the same bytes; False decodes them.
    jpeg_quality: other frames become JPEGs of this quality; None stores them losslessly.
    compression: how frames without loss are stored; "none" is one after another, as they are.
    """
    columns = _columns(recording)
    reserve(file, sum(np.asarray(values).nbytes for values in columns.values()))
    demo = file.create_group(f"data/{name}")
    for key, values in columns.items():
        demo.create_dataset(key, data=values)
    for camera, stream in recording.cameras.items():
        key = f"obs/{camera}"
        if stream.jpegs is not None and keep_jpegs:
            _write_jpegs(demo, key, recording.each_jpeg(camera), len(recording.actions))
        elif jpeg_quality is not None:
            jpegs = (encode_jpeg(frame, jpeg_quality) for frame in recording.each_frame(camera))
            _write_jpegs(demo, key, jpegs, len(recording.actions))
        else:
            frames = recording.each_frame(camera)
            write_frames(demo, key, frames, len(recording.actions), compression)
    _write_facts(demo, recording)
    file["data"].attrs["total"] = int(file["data"].attrs["total"]) + len(recording.actions)
    return demo


def write_frames(
    demo: h5py.Group,
    key: str,
    frames: Iterator[Frames],
    count: int,
    compression: Compression = "by size",
) -> None:
    """Write `count` frames (H, W, 3): one chunk each, with lossless compression, or as they are."""
    first = next(frames)
    reserve(demo.file, count * (first.nbytes + ROOM_A_FRAME))
    options: dict[str, Any] = {}
    if compression != "none":
        small = first.shape[0] * first.shape[1] <= GZIP_PIXELS
        gzip = {"compression": "gzip", "compression_opts": 1}
        options = gzip if small or compression == "gzip" else {"compression": "lzf"}
        options["chunks"] = (1, *first.shape)
    stored = demo.create_dataset(key, (count, *first.shape), np.uint8, **options)
    for tick, frame in enumerate(chain([first], frames)):
        stored[tick] = frame


def write_masks(file: h5py.File, masks: dict[str, list[str]]) -> None:
    """Write `mask/<key>` for each key -> names of demos."""
    for key, names in masks.items():
        file.create_dataset(f"mask/{key}", data=np.array([name.encode() for name in names]))


def fits_spec(source: Source) -> bool:
    """Return whether a file of the source's recordings can carry its spec.

    It can if the source has a spec of its own, or if all actions lie within the inferred one. A
    gripper that is binary in nearly all ticks does not; such files are read with an inferred spec.
    """
    return source.has_own_spec or all(
        not outside_limits(part, recording.actions[:, source.spec.action_slices[part.name]]).any()
        for recording in source.recordings()
        for part in source.spec.actions
    )


def _columns(recording: Recording) -> dict[str, Any]:
    count = len(recording.actions)
    last = np.arange(count) == count - 1
    columns: dict[str, Any] = {
        "actions": recording.actions,
        "rewards": np.zeros(count, np.float32) if recording.rewards is None else recording.rewards,
        "dones": last.astype(np.int64) if recording.dones is None else recording.dones,
    }
    columns |= {f"obs/{name}": values for name, values in recording.vectors.items()}
    optional = {
        "timestamps": recording.timestamps,
        "executed_actions": recording.executed_actions,
        "interventions": recording.interventions,
        "loss_weights": recording.loss_weights,
    }
    return columns | {key: values for key, values in optional.items() if values is not None}


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


def _write_facts(demo: h5py.Group, recording: Recording) -> None:
    demo.attrs.update(num_samples=len(recording.actions), task=recording.task)
    if recording.instruction:
        demo.attrs["language_instruction"] = recording.instruction
    if recording.success is not None:
        demo.attrs["success"] = recording.success
    if recording.seed is not None:
        demo.attrs["seed"] = recording.seed
    if recording.language_embedding is not None:
        stored = demo.create_dataset("language_embedding", data=recording.language_embedding)
        stored.attrs["language_model"] = recording.language_model or ""
