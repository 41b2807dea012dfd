"""One episode on its way from one format to another, and the data set that it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_file import plain_text
from ttm.datasets.frames import Frames, image_size
from ttm.datasets.reader import Floats
from ttm.datasets.spec_inference import infer_action_parts
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec

PER_TICK = ("timestamps", "rewards", "dones", "interventions", "loss_weights")
"""The fields of `Recording` that have one value for each tick."""


@dataclass(frozen=True)
class FrameStream:
    """The frames of one camera in one episode, which are read one after another."""

    frames: Callable[[], Iterator[Frames]]
    """Starts a pass over the T frames, each (H, W, 3) uint8 RGB."""
    jpegs: Callable[[], Iterator[Frames]] | None = None
    """Starts a pass over the same frames as the JPEGs that were recorded, each (n,) uint8.

    None if they were recorded in another way."""


@dataclass(frozen=True)
class Recording:
    """One episode of T ticks. None stands for what its format did not record."""

    name: str
    """Where it comes from, for error messages."""
    actions: Floats
    """(T, A) float32."""
    vectors: Mapping[str, Floats]
    """Proprioception name -> (T, K) float32."""
    cameras: Mapping[str, FrameStream]
    instruction: str = ""
    task: str = ""
    success: bool | None = None
    seed: int | None = None
    variation: str = ""
    masks: frozenset[str] = frozenset()
    timestamps: npt.NDArray[np.float64] | None = None
    """(T,), capture times in seconds."""
    rewards: Floats | None = None
    dones: npt.NDArray[np.int64] | None = None
    executed_actions: Floats | None = None
    """(T, A), where they differ from `actions`."""
    interventions: npt.NDArray[np.uint8] | None = None
    """(T,), 1 where a person drove in the policy's place."""
    loss_weights: Floats | None = None
    language_embedding: Floats | None = None
    language_model: str | None = None

    def filled(self, name: str) -> npt.NDArray[Any]:
        """Return a field of one row for each tick, or what stands for it where it was not recorded."""
        if (values := getattr(self, name)) is not None:
            return np.asarray(values)
        count = len(self.actions)
        missing: dict[str, npt.NDArray[Any]] = {
            "timestamps": np.full(count, np.nan),
            "rewards": np.zeros(count, np.float32),
            "dones": (np.arange(count) == count - 1).astype(np.int64),
            "executed_actions": self.actions,
            "loss_weights": np.ones(count, np.float32),
        }
        return missing[name]

    def each_frame(self, camera: str) -> Iterator[Frames]:
        """Yield the T frames of a camera; raise `UserError` if the file holds more or fewer."""
        yield from self._exactly(camera, self.cameras[camera].frames())

    def each_jpeg(self, camera: str) -> Iterator[Frames]:
        """Yield the T JPEGs of a camera that has them, like `each_frame`."""
        jpegs = self.cameras[camera].jpegs
        assert jpegs is not None, f"{camera} was not recorded as JPEG"
        yield from self._exactly(camera, jpegs())

    def _exactly(self, camera: str, items: Iterator[Frames]) -> Iterator[Frames]:
        count, expected = 0, len(self.actions)
        for count, item in enumerate(items, start=1):
            if count > expected:
                break
            yield item
        if count != expected:
            found = f"more than {expected}" if count > expected else str(count)
            raise UserError(
                f"{self.name}: camera '{camera}' has {found} frames for {expected} actions; leave it out"
            )


@dataclass(frozen=True)
class Source:
    """An opened data set of any format."""

    spec: PolicySpec
    num_episodes: int
    recordings: Callable[[], Iterator[Recording]]
    """Starts a pass over all episodes. They are read one by one."""
    has_own_spec: bool = False
    """Whether the data set says what its spec is; otherwise `spec` was inferred from the values."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed or left out, each in one sentence."""


def require_fit(recording: Recording, spec: PolicySpec) -> Recording:
    """Return the recording with frames that are checked as they are read.

    Raises `UserError` if an array or a frame has another shape than the spec and the number of actions
    say, if a value is not finite as float32, or if the cameras have other names.
    """
    if not (count := len(recording.actions)):
        raise UserError(f"{recording.name} has no tick; leave this episode out")
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "actions": (recording.actions, (count, spec.action_size)),
        "executed_actions": (recording.executed_actions, (count, spec.action_size)),
        **{name: (getattr(recording, name), (count,)) for name in PER_TICK},
        **{v.name: (recording.vectors.get(v.name), (count, v.size)) for v in spec.proprioception},
    }
    for name, (values, shape) in shapes.items():
        if values is not None and values.shape != shape:
            raise UserError(
                f"{recording.name}: {name} has shape {values.shape}, but the spec needs {shape}; leave it out"
            )
    names = ("actions", "executed_actions", "timestamps", "loss_weights", "language_embedding")
    arrays = {name: getattr(recording, name) for name in names} | dict(recording.vectors)
    for name, values in arrays.items():
        if values is not None and not np.isfinite(values).all():
            at = np.argwhere(~np.isfinite(values))[0].tolist()
            raise UserError(
                f"{recording.name}: {name}{at} is NaN, infinite or too large for float32; leave it out"
            )
    wanted = {camera.name for camera in spec.cameras}
    if set(recording.cameras) != wanted:
        found, wants = (", ".join(sorted(each)) or "none" for each in (recording.cameras, wanted))
        raise UserError(f"{recording.name} has the cameras {found}, but its spec says {wants}")
    cameras = {}
    for camera in spec.cameras:
        stream, checked = recording.cameras[camera.name], partial(_sized, recording.name, camera)
        jpegs = None if stream.jpegs is None else partial(checked, stream.jpegs)
        cameras[camera.name] = FrameStream(partial(checked, stream.frames), jpegs)
    return replace(recording, cameras=cameras)


def _sized(name: str, camera: CameraSpec, read: Callable[[], Iterator[Frames]]) -> Iterator[Frames]:
    """Yield the frames or JPEGs of a camera, which must have the size of the spec."""
    for frame in read():
        try:
            size = frame.shape[:2] if frame.ndim == 3 else image_size(frame)
        except OSError as error:
            raise UserError(
                f"{name}: camera '{camera.name}' has a damaged JPEG ({error}); leave it out"
            ) from error
        if size != (camera.height, camera.width):
            what = f"a frame of {size[1]}x{size[0]} pixels, not {camera.width}x{camera.height}"
            raise UserError(
                f"{name}: camera '{camera.name}' has {what}; bring all to one size first"
            )
        yield frame


SPEC, EPISODES = "ttm_spec.json", "ttm_episodes.jsonl"
"""Files beside the data of other formats, of which other programs take no notice, for what these have no
place for: the PolicySpec, and facts about the episodes, one JSON object a line."""
Facts = dict[int, dict[str, Any]]  # number of the episode -> its facts


def facts_line(number: int, recording: Recording) -> str:
    """Return the line of one episode."""
    driven = recording.interventions
    facts = {
        "episode_index": number,
        "length": len(recording.actions),
        "instruction": recording.instruction,
        "task": recording.task,
        "success": recording.success,
        "seed": recording.seed,
        "variation": recording.variation,
        "masks": sorted(recording.masks),
        "interventions": None if driven is None else driven.tolist(),
    }
    return json.dumps(facts, ensure_ascii=False) + "\n"


def read_facts(folder: Path, lengths: Mapping[int, int]) -> tuple[Facts, str]:
    """Return the facts in a folder, and a note if they are of another state of the data.

    lengths: number of each episode -> its ticks.
    """
    path = folder / EPISODES
    if not path.is_file():
        return {}, ""
    try:
        facts = {line["episode_index"]: line for line in read_lines(path)}
        for line in facts.values():
            for key in ("instruction", "task", "variation"):
                line[key] = plain_text(line.get(key, ""), key)
        known = {number: line["length"] for number, line in facts.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); move it away to do without it") from error
    if known != lengths:
        return {}, f"{EPISODES} is of another state of the data set and is not used"
    return facts, ""


def fields_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Recording` that the facts of an episode give."""
    driven = facts.get("interventions")
    return {
        "task": facts.get("task", ""),
        "seed": facts.get("seed"),
        "variation": facts.get("variation", ""),
        "masks": frozenset(facts.get("masks", ())),
        "interventions": None if driven is None else np.asarray(driven, np.uint8),
    }


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def read_spec(folder: Path) -> PolicySpec | None:
    """Return the spec in a folder, or None if there is none."""
    path = folder / SPEC
    return PolicySpec.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_spec(folder: Path, spec: PolicySpec) -> None:
    """Write the spec into a folder."""
    (folder / SPEC).write_text(spec.to_json() + "\n", encoding="utf-8")


def index_labels(name: str, size: int) -> tuple[str, ...]:
    """Return the labels of a vector whose values have no names: name[0], name[1], …"""
    return tuple(f"{name}[{i}]" for i in range(size))


def survey_actions(
    episodes: Iterable[npt.NDArray[Any]], where: str
) -> tuple[tuple[ActionPart, ...], list[str]]:
    """Return the action parts of all episodes, and a note if float32 does not hold the values.

    Raises `UserError` if there is no episode, or if their actions are not all (T, A) with one A.
    """
    found: list[npt.NDArray[np.float32]] = []
    lost = 0.0
    for number, actions in enumerate(episodes):
        size = found[0].shape[1] if found else "A"
        if actions.ndim != 2 or (found and actions.shape[1] != size):
            what = f"the actions of episode {number} have shape {actions.shape}, others (T, {size})"
            raise UserError(f"{where}: {what}; keep robots in data sets of their own")
        found.append(actions.astype(np.float32))
        difference = np.abs(actions.astype(np.float64) - found[-1].astype(np.float64))
        lost = max(lost, float(np.nan_to_num(difference, posinf=0.0).max(initial=0.0)))
    if not found:
        raise UserError(f"{where} has no episode; check the path")
    note = f"actions are rounded from {actions.dtype} to float32; they change by up to {lost:.2g}"
    return infer_action_parts(np.concatenate(found)), [note] if lost else []
