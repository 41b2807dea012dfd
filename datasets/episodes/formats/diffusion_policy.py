"""diffusion_policy's replay buffers in zarr (Chi et al. 2023, https://github.com/real-stanford/diffusion_policy).

    data/action               (N, A), of all episodes one after another
    data/<camera>             (N, H, W, 3) uint8, or float from 0 to 255 or to 1
    data/<vector>             (N, K) float
    data/timestamp            (N,) seconds, optional
    meta/episode_ends         (E,) the index behind the last tick of each episode

Written are directories of zarr's format 2, which diffusion_policy's version of zarr reads; read are
formats 2 and 3, also zipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
import zarr.storage
from numcodecs import Blosc

from ttm.datasets.formats.recording import (
    EPISODES,
    FrameStream,
    Recording,
    Source,
    facts_line,
    fields_of,
    index_labels,
    read_facts,
    read_spec,
    survey_actions,
    write_spec,
)
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import RANGE_SLACK, Frames
from ttm.datasets.hdf5 import MOST_CHUNK_BYTES, require_no_way_out
from ttm.datasets.spec_inference import DEFAULT_RATE_HZ, not_measured
from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec, ProprioceptionSpec

COLUMNS = {
    "timestamp": ("timestamps", np.float64),
    "reward": ("rewards", np.float32),
    "done": ("dones", np.int64),
    "executed_action": ("executed_actions", np.float32),
    "loss_weight": ("loss_weights", np.float32),
}
"""Array -> field of `Recording`, and its type."""

FRAMES_A_READ = 16
ROWS_A_CHUNK = 1024
OVERSHOOT = 2.0
"""Frames whose greatest value lies between 1 and this have neither 1 nor 255 for white."""


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open a replay buffer: a folder, or a zip file of one."""
    if path.is_dir() and not options.choices.allow_external:
        require_no_way_out(path)
    data, ends = _open(path)
    starts = [0, *ends[:-1]]
    spans = list(zip(starts, ends, strict=True))
    cameras, vectors, skipped = _members(data)
    rows = (np.asarray(data["action"][start:end]) for start, end in spans)
    parts, notes = survey_actions(rows, str(path))
    stored = read_spec(path)
    rate_hz = options.rate_hz or _measured_rate(data, spans)
    labels = {name: index_labels(name, data[name].shape[1]) for name in vectors}
    spec = stored or PolicySpec(
        robot=options.robot or "unknown",
        cameras=tuple(CameraSpec(name, *data[name].shape[1:3]) for name in cameras),
        proprioception=tuple(ProprioceptionSpec(*each) for each in labels.items()),
        actions=parts,
        rate_hz=rate_hz or DEFAULT_RATE_HZ,
    )
    lengths = {number: end - start for number, (start, end) in enumerate(spans)}
    facts, stale = read_facts(path, lengths)
    if not stored and rate_hz is None:
        notes.append(f"the data hold no rate; {DEFAULT_RATE_HZ:g} Hz is assumed (--rate-hz)")
    notes += [f"not converted: {', '.join(skipped)}"] if skipped else []
    # zarr reads zeros where a chunk has no file. Writers may leave out such, so that this is no error.
    counts = {
        name: data[name].nchunks - data[name].nchunks_initialized
        for name in (*cameras, *vectors, "action")
    }
    if lacking := ", ".join(f"{count} of data/{name}" for name, count in counts.items() if count):
        notes.append(f"chunks without a file are read as zeros: {lacking}; were all files fetched?")
    scales = {name: _scale(data[name], ends[-1], path) for name in cameras}

    def recordings() -> Iterator[Recording]:
        for number, span in enumerate(spans):
            yield _recording(path, data, number, span, spec, scales, facts.get(number, {}))

    return Source(
        spec=spec,
        num_episodes=len(spans),
        recordings=recordings,
        has_own_spec=stored is not None,
        notes=(*notes, *filter(None, [stale])),
    )


def write(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the folder `target`."""
    root = zarr.open_group(str(target), mode="w", zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    extras = {  # what any episode has values for
        name
        for recording in source.recordings()
        for name, (field, _) in COLUMNS.items()
        if getattr(recording, field) is not None
    }
    ends: list[int] = []
    with (target / EPISODES).open("w", encoding="utf-8") as facts:
        for number, recording in enumerate(source.recordings()):
            start = ends[-1] if ends else 0
            ends.append(start + len(recording.actions))
            columns: dict[str, Any] = {"action": recording.actions, **recording.vectors}
            for name in sorted(extras):
                field, dtype = COLUMNS[name]
                columns[name] = np.asarray(recording.filled(field), dtype)
            for name, values in columns.items():
                _grown(data, name, values.shape[1:], values.dtype, ends[-1])[start:] = values
            for camera in source.spec.cameras:
                shape = (camera.height, camera.width, 3)
                stored = _grown(data, camera.name, shape, np.dtype(np.uint8), ends[-1])
                for tick, frame in enumerate(recording.each_frame(camera.name), start=start):
                    stored[tick] = frame
            facts.write(facts_line(number, recording))
    stored = meta.create_array(
        "episode_ends", shape=(len(ends),), chunks=(len(ends),), dtype=np.int64, compressors=None
    )
    stored[:] = np.array(ends, np.int64)
    if source.has_own_spec:
        write_spec(target, source.spec)


def _open(path: Path) -> tuple[Any, list[int]]:
    """Return the group `data` and the ends of the episodes."""
    try:
        store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
        root = zarr.open_group(store, mode="r")
        data, meta = root["data"], root["meta"]
        for name, stored in (*data.arrays(), *meta.arrays()):
            # A chunk is unpacked as a whole to read one value.
            chunk_bytes = math.prod(stored.chunks) * stored.dtype.itemsize
            if chunk_bytes > MOST_CHUNK_BYTES:
                raise UserError(
                    f"{path}: {name} has chunks of {chunk_bytes / 2**30:.1f} GiB each; write it in small ones"
                )
        ends = [int(end) for end in meta["episode_ends"][:]]
        lengths = {name: stored.shape[0] for name, stored in data.arrays() if stored.shape}
    except UserError:
        raise
    except Exception as error:  # zarr's stores and codecs raise errors of many types
        what = f"{path} is no whole replay buffer of diffusion_policy ({type(error).__name__}: {error})"
        raise UserError(f"{what}; fetch it again, or: pip install imagecodecs") from error
    if "action" not in lengths or not ends:
        raise UserError(f"{path} has no data/action or no episode; nothing can be learned")
    short = [f"{name} is too short" for name, length in lengths.items() if length < ends[-1]]
    if short or np.diff([0, *ends]).min() <= 0:
        what = short[0] if short else "its values do not increase"
        raise UserError(f"{path}: meta/episode_ends does not fit ({what}); fetch the data again")
    return data, ends


def _members(data: Any) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the cameras and the vectors, and of the rest with the reasons."""
    cameras, vectors, skipped = [], [], []
    names: list[str] = sorted(set(data) - {"action", *COLUMNS})
    for name in names:
        stored = data[name]
        shape: tuple[int, ...] = getattr(stored, "shape", ())
        kind = stored.dtype.kind if shape else ""
        if len(shape) == 4 and shape[-1] == 3 and (stored.dtype == np.uint8 or kind == "f"):
            cameras.append(name)
        elif len(shape) != 2 or kind != "f":
            skipped.append(f"{name} (neither frames nor float vectors)")
        elif reason := not_measured(name, names):
            skipped.append(f"{name} ({reason})")
        else:
            vectors.append(name)
    return cameras, vectors, skipped


def _recording(
    path: Path,
    data: Any,
    number: int,
    span: tuple[int, int],
    spec: PolicySpec,
    scales: Mapping[str, float],
    facts: Mapping[str, Any],
) -> Recording:
    def rows(name: str, dtype: Any) -> npt.NDArray[Any]:
        return np.asarray(data[name][slice(*span)], dtype)

    columns: dict[str, Any] = {
        field: rows(name, dtype) for name, (field, dtype) in COLUMNS.items() if name in data
    }
    if "timestamps" in columns and np.isnan(columns["timestamps"]).all():
        del columns["timestamps"]
    return Recording(
        name=f"{path}: episode {number}",
        actions=rows("action", np.float32),
        vectors={vector.name: rows(vector.name, np.float32) for vector in spec.proprioception},
        cameras={
            camera.name: FrameStream(partial(_frames, data[camera.name], span, scales[camera.name]))
            for camera in spec.cameras
        },
        instruction=facts.get("instruction", ""),
        success=facts.get("success"),
        **fields_of(facts),
        **columns,
    )


def _frames(stored: Any, span: tuple[int, int], scale: float) -> Iterator[Frames]:
    start, stop = span
    rows = max(stored.chunks[0], FRAMES_A_READ)  # a chunk is unpacked as a whole
    for first in range(start // rows * rows, stop, rows):
        block = np.asarray(stored[max(first, start) : min(first + rows, stop)])
        if block.dtype != np.uint8:
            block = np.clip(np.rint(block * scale), 0, 255).astype(np.uint8)
        yield from block


def _scale(stored: Any, length: int, path: Path) -> float:
    """Return the factor that brings frames of floats to 0 to 255, by the values of all `length` frames."""
    if stored.dtype == np.uint8:
        return 1.0
    rows = max(stored.chunks[0], 1)  # a chunk is unpacked as a whole
    blocks = (np.asarray(stored[at : min(at + rows, length)]) for at in range(0, length, rows))
    extremes = np.array([(block.min(), block.max()) for block in blocks], np.float64)
    low, high = float(extremes.min()), float(extremes.max())  # NaN if any is
    for white, least in ((1.0, 0.0), (255.0, OVERSHOOT)):
        slack = RANGE_SLACK * white
        if low >= -slack and least < high <= white + slack:
            return 255.0 / white
    raise UserError(
        f"{path}: data/{stored.basename} holds values from {low:g} to {high:g}; bring them to uint8"
    )


def _measured_rate(data: Any, spans: list[tuple[int, int]]) -> float | None:
    """Return the rate of the timestamps, rounded to half a hertz as everywhere; None without them."""
    if "timestamp" not in data:
        return None
    stamps = np.asarray(data["timestamp"][:], np.float64)
    steps = np.concatenate([np.diff(stamps[start:end]) for start, end in spans])
    median = float(np.median(steps)) if len(steps) else 0.0
    return max(round(2 / median) / 2, 0.5) if median > 0 else None


def _grown(data: Any, name: str, shape: tuple[int, ...], dtype: Any, length: int) -> Any:
    """Return the array `name`, made if it is not there, with `length` rows."""
    if name in data:
        stored = data[name]
        stored.resize((length, *shape))
        return stored
    rows = 1 if len(shape) == 3 else ROWS_A_CHUNK
    return data.create_array(
        name,
        shape=(length, *shape),
        chunks=(rows, *shape),
        dtype=dtype,
        compressors=Blosc(cname="lz4", clevel=5, shuffle=Blosc.NOSHUFFLE),
    )
