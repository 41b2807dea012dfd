"""Reads LeRobot data sets of version 2.0, 2.1 and 3.0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ttm.datasets.formats.lerobot import (
    ACTION,
    CAPTURE_TIME,
    DONE,
    EXECUTED,
    REWARD,
    STATE,
    SUCCESS,
    WEIGHT,
    Camera,
    Observed,
    Place,
    observed,
    read_info,
    read_places,
    read_tasks,
)
from ttm.datasets.formats.lerobot_video import read_video
from ttm.datasets.formats.recording import (
    FrameStream,
    Recording,
    Source,
    inferred_spec,
    interventions_of,
    read_facts,
    read_spec,
    survey_actions,
)
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.frames import Frames, decode_image
from ttm.datasets.hdf5 import require_no_way_out
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Table = Callable[[Place], pa.Table]


def read_source(path: Path, options: ConvertOptions) -> Source:
    """Open the data set in the folder `path`."""
    allow_external = options.choices.allow_external
    if not allow_external:
        require_no_way_out(path)
    info = read_info(path)
    places = read_places(path, info, allow_external=allow_external)
    tasks = read_tasks(path, info)
    found = observed(info["features"], str(path))
    table = _table_reader((ACTION, EXECUTED, STATE, *found.vectors.values()))
    parts, rounding = survey_actions((_matrix(table(place), ACTION) for place in places), str(path))
    stored = read_spec(path / "meta")
    spec = stored or inferred_spec(
        robot=str(info.get("robot_type") or options.robot or "unknown"),
        cameras={name: (c.height, c.width) for name, c in found.cameras.items()},
        vectors=found.labels,
        actions=parts,
        rate_hz=float(info["fps"]),
    )
    facts, stale = read_facts(path / "meta", {place.index: place.length for place in places})
    masks = _masks(info, len(places))

    def recordings() -> Iterator[Recording]:
        for position, place in enumerate(places):
            own = dict(facts.get(place.index, {}))
            if any(masks):  # also of our own, to which somebody has given splits since
                own["masks"] = masks[position]
            yield _recording(place, table, tasks, spec, found, own, stored is not None)

    skipped = f"not converted: {', '.join(found.skipped)}" if found.skipped else ""
    lossy = any(camera.is_video for camera in found.cameras.values())
    notes = (
        skipped,
        "the frames were stored as lossy video; they are as the video has them" if lossy else "",
        stale,
    )
    return Source(
        spec=spec,
        num_episodes=len(places),
        recordings=recordings,
        has_own_spec=stored is not None,
        notes=(*rounding, *filter(None, notes)),
    )


def _recording(
    place: Place,
    table: Table,
    tasks: Mapping[int, str],
    spec: PolicySpec,
    found: Observed,
    facts: Mapping[str, Any],
    own: bool,
) -> Recording:
    rows = table(place)

    def column(key: str, dtype: Any) -> Any:
        return _values(rows, key).astype(dtype) if key in rows.column_names else None

    success = column(SUCCESS, bool)
    judged = facts.get("success", None if success is None else bool(success.any()))
    return Recording(
        name=f"{place.data}: episode {place.index}",
        actions=_matrix(rows, ACTION).astype(np.float32),
        vectors=_vectors(rows, spec, found, own),
        cameras={
            name: FrameStream(partial(_frames, table, place, camera, spec.rate_hz))
            for name, camera in found.cameras.items()
        },
        instruction=tasks.get(int(rows["task_index"][0].as_py()), ""),
        task=facts.get("task", ""),
        success=judged,
        seed=facts.get("seed"),
        masks=frozenset(facts.get("masks", ())),
        timestamps=_capture_times(rows, spec.rate_hz),
        rewards=column(REWARD, np.float32),
        dones=column(DONE, np.int64),
        executed_actions=_matrix(rows, EXECUTED).astype(np.float32)
        if EXECUTED in rows.column_names
        else None,
        interventions=interventions_of(facts),
        loss_weights=column(WEIGHT, np.float32),
    )


def _vectors(
    rows: pa.Table, spec: PolicySpec, found: Observed, own: bool
) -> dict[str, npt.NDArray[np.float32]]:
    if not own:
        return {name: _matrix(rows, key).astype(np.float32) for name, key in found.vectors.items()}
    vectors, start = {}, 0
    state = _matrix(rows, STATE) if STATE in rows.column_names else np.zeros((len(rows), 0))
    for vector in spec.proprioception:
        vectors[vector.name] = state[:, start : start + vector.size].astype(np.float32)
        start += vector.size
    return vectors


def _capture_times(rows: pa.Table, rate_hz: float) -> npt.NDArray[np.float64] | None:
    """Return when the observations were captured; None if the stamps were only counted up."""
    if CAPTURE_TIME in rows.column_names:
        times = _values(rows, CAPTURE_TIME).astype(np.float64)
        return None if np.isnan(times).all() else times
    times = _values(rows, "timestamp").astype(np.float64)
    counted = np.arange(len(times)) / rate_hz
    return None if np.allclose(times - times[0], counted, atol=1e-3) else times


def _frames(table: Table, place: Place, camera: Camera, rate_hz: float) -> Iterator[Frames]:
    if camera.is_video:
        file, start_s = place.videos[camera.key]
        yield from read_video(file, start_s, place.length, rate_hz)
        return
    for row in table(place)[camera.key]:
        stored = row.as_py()
        try:
            yield decode_image(stored["bytes"] or place.file(stored["path"]).read_bytes())
        except (OSError, TypeError) as error:
            raise UserError(
                f"{place.data}: episode {place.index} has a damaged image ({error}); "
                "fetch the data set again"
            ) from error


def _table_reader(vectors: Iterable[str]) -> Table:
    """Return a function that gives the rows of an episode. The last data file is kept in memory.

    vectors: columns that must have one number of values in all rows.
    """

    @lru_cache(maxsize=1)
    def read(path: Path) -> pa.Table:
        try:
            return pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path} is damaged ({error}); fetch the data set again") from error

    def rows(place: Place) -> pa.Table:
        whole = read(place.data)
        mine = np.flatnonzero(whole["episode_index"].to_numpy() == place.index)
        if len(mine) != place.length:
            raise UserError(
                f"{place.data} has {len(mine)} rows of episode {place.index}, but the list of "
                f"episodes says {place.length}; fetch the data set again"
            )
        if len(mine) and mine[-1] - mine[0] >= len(mine):
            raise UserError(
                f"{place.data}: the rows of episode {place.index} do not follow one another; "
                "sort them by their index"
            )
        found = whole.slice(mine[0] if len(mine) else 0, len(mine))
        for key in vectors:
            _require_even(found, key, place)
        return found

    return rows


def _require_even(rows: pa.Table, key: str, place: Place) -> None:
    """Raise `UserError` if the vectors of a column differ in length, or some are missing."""
    if key not in rows.column_names or not _is_list(rows[key].type):
        return
    lengths = sorted(pc.list_value_length(rows[key]).fill_null(0).unique().to_pylist())
    if len(lengths) > 1:
        raise UserError(
            f"{place.data}: episode {place.index} has rows of {lengths[0]} and of {lengths[-1]} values "
            f"in {key}; leave this episode out, or fetch the data set again"
        )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _matrix(rows: pa.Table, key: str) -> npt.NDArray[Any]:
    """Return a column of vectors as (T, K); those of one value are stored as plain numbers."""
    return _values(rows, key).reshape(len(rows), -1)


def _values(rows: pa.Table, key: str) -> npt.NDArray[Any]:
    """Return a column as (T,) or (T, K)."""
    column = rows[key].combine_chunks()
    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values.reshape(len(column), -1) if len(column) else values.reshape(0, 0))


def _masks(info: Mapping[str, Any], count: int) -> list[tuple[str, ...]]:
    """Return the masks of each episode from `splits`, such as {"train": "0:80", "val": "80:100"}."""
    names: list[tuple[str, ...]] = [()] * count
    for name, span in (info.get("splits") or {}).items():
        start, _, stop = str(span).partition(":")
        for index in range(int(start or 0), min(int(stop or count), count)):
            names[index] += ("valid" if name in ("val", "validation") else name,)
    # LeRobot writes of every data set that all of it is "train", which holds nothing out.
    return [()] * count if set(names) == {("train",)} else names
