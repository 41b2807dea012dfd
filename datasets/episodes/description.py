"""What a policy sees and commands in a data set: stored in the files, inferred, or chosen by the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import h5py
import numpy as np
import yaml

from ttm.datasets.episode_file import demo_group, open_file
from ttm.datasets.frames import DEFAULT_RANGE, Colours, Orientation, StoredCamera, file_orientation
from ttm.datasets.hdf5 import find_member, one_line
from ttm.datasets.spec_inference import (
    Demo,
    Member,
    Survey,
    float_range,
    infer_action_parts,
    inferred_rate_hz,
    members_of,
    survey,
)
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

HEADER = (
    "# What a policy sees and commands in these episodes. Edit it, and give it with --spec.\n"
    "# Cameras: orientation is upright, upside-down or rotated, as they are stored; colours are rgb\n"
    "# or bgr; values are black and white of float frames. Binary parts of the action have two\n"
    "# commands, low and high. What is left out is inferred.\n"
)


@dataclass(frozen=True)
class SpecFile:
    """What a spec file says, a YAML file for the episodes of others. None stands for what it leaves out.

    robot: franka
    rate_hz: 20
    cameras:                      # their names in obs; without this entry: all that can be used
      agentview_rgb: {orientation: upside-down, colours: rgb, values: [0, 1]}
    proprioception:               # name in obs: labels of its values with their units
      ee_pos: [x (m), y (m), z (m)]
    actions:                      # in their order
      - {name: arm, size: 6, unit: m}
      - {name: gripper, size: 1, kind: binary, low: -1, high: 1}
    """

    robot: str | None = None
    rate_hz: float | None = None
    cameras: Mapping[str, StoredCamera] | None = None
    proprioception: Mapping[str, tuple[str, ...] | None] | None = None
    """Name -> labels, None for those of the data."""
    actions: tuple[ActionPart, ...] | None = None
    path: Path = field(default=Path("spec"))


def write_spec_file(path: Path, spec: PolicySpec, cameras: Mapping[str, StoredCamera]) -> None:
    """Write what is known of a data set.

    cameras: how the frames of each camera are stored, where that is not the usual way.
    """
    stored = {camera.name: cameras.get(camera.name, StoredCamera()) for camera in spec.cameras}
    parts = map(asdict, spec.actions)
    data: dict[str, Any] = {
        "robot": spec.robot,
        "rate_hz": spec.rate_hz,
        "cameras": {
            name: {
                "orientation": each.orientation or "upright",
                "colours": each.colours,
                "values": list(each.values),
            }
            for name, each in stored.items()
        },
        "proprioception": {vector.name: list(vector.labels) for vector in spec.proprioception},
        "actions": [
            {key: value for key, value in part.items() if value not in (math.inf, -math.inf)}
            for part in parts
        ],
    }
    text = HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --spec") from error


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"rate_hz is {value}; give ticks per second")
    return float(value)


def _cameras(entries: Mapping[Any, Any]) -> dict[str, StoredCamera]:
    return {str(name): _camera(str(name), options or {}) for name, options in entries.items()}


def _camera(name: str, options: Mapping[str, Any]) -> StoredCamera:
    choices = {"orientation": get_args(Orientation), "colours": get_args(Colours)}
    for key, value in options.items():
        if key in choices and value not in choices[key]:
            allowed = ", ".join(choices[key])
            raise UserError(f"camera {name}: {key} is {value}; take one of {allowed}")
    stored = StoredCamera(**options)
    low, high = map(float, stored.values)
    if not -math.inf < low < high < math.inf:
        raise UserError(f"camera {name}: values are {low:g} and {high:g}; give black, then white")
    return replace(stored, values=(low, high))


def _vectors(entries: Mapping[Any, Any]) -> dict[str, tuple[str, ...] | None]:
    for name, labels in entries.items():
        if labels is not None and not isinstance(labels, list):
            raise UserError(f"proprioception {name} is {labels}; give a list of labels")
    return {str(n): tuple(map(str, labels)) if labels else None for n, labels in entries.items()}


def _part(entry: dict[str, Any]) -> ActionPart:
    size = entry.get("size")
    if type(size) is not int or size < 1:
        raise UserError(f"action {entry.get('name')}: size is {size}; give a whole number above 0")
    limits = {key: float(entry[key]) for key in ("low", "high") if key in entry}
    texts = {"name": str(entry["name"]), "unit": str(entry.get("unit", "unknown"))}
    given: dict[str, Any] = entry | texts | limits
    return ActionPart(**given)


READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "robot": str,
        "rate_hz": _rate,
        "cameras": _cameras,
        "proprioception": _vectors,
        "actions": lambda entries: tuple(_part(dict(entry)) for entry in entries),
    }
)
"""Entry of a spec file -> what reads its value."""


def read_spec_file(path: Path) -> SpecFile:
    """Read a spec file. Raises `UserError` that names the entry if it cannot be understood."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # 2026-99-99 is no date
        raise UserError(
            f"{path}: no spec can be read from it ({one_line(error)}); write one with `ttm data show DATA "
            f"--spec {path.name}`"
        ) from error
    data = {} if data is None else data  # an empty file, or one of comments
    if not isinstance(data, dict) or not set(data) <= set(READERS):
        keys = map(str, data) if isinstance(data, dict) else [str(data)]
        unknown = one_line(", ".join(key for key in keys if key not in READERS))
        raise UserError(f"{path}: unknown {unknown}; it may have: {', '.join(READERS)}")
    given = {key: value for key, value in data.items() if value is not None}
    try:
        return SpecFile(path=path, **{key: READERS[key](value) for key, value in given.items()})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: an entry has another form than expected ({error})") from error


NONE = "none"  # the name that stands for no camera, or no proprioception


@dataclass(frozen=True)
class Choices:
    """Options of all commands that read episodes."""

    cameras: tuple[str, ...] = ()
    """Use only these cameras; `none` for none. Default: all (with --init: the checkpoint's)."""
    proprioception: tuple[str, ...] = ()
    """Use only these vectors of `obs`, which may be such that are left out by default; `none` for
    none. Default: all measurements of the robot (with --init: the checkpoint's)."""
    spec: Path | None = None
    """A YAML file that adds to or replaces what the data say: rate, units, parts of the action,
    orientation of cameras. `ttm data show DATA --spec FILE` writes one to start from."""
    allow_external: bool = False
    """Read also what lies outside of the named files and folders: external links, external storage,
    virtual datasets, symbolic links that lead out of the folder."""

    @property
    def changes_spec(self) -> bool:
        """Whether anything is chosen that changes the spec of the files."""
        return bool(self.cameras or self.proprioception or self.spec)

    def open(self, path: Path) -> AbstractContextManager[Any]:
        """Open a file of episodes for a `with` block, trusted if that is chosen; see `open_file`."""
        return open_file(path, allow_external=self.allow_external)


INFERRED = "no ttm_spec in the files: cameras, vectors, action parts and rate are inferred"
NOT_IN_ALL = "not in every demo"  # why a vector is not used that the first demo lacks


@dataclass(frozen=True)
class Description:
    """The spec of a data set, and how its files hold what the spec names."""

    spec: PolicySpec
    members: tuple[Member, ...] = ()
    """Every member of `obs`, used or not."""
    cameras: Mapping[str, StoredCamera] = field(default_factory=dict)
    """How the frames of each camera are stored; of cameras that are not named, the usual way."""
    note: str = ""
    """What was assumed; empty if nothing was."""


def infer_spec(demos: Sequence[Demo]) -> PolicySpec:
    """Return the spec of a policy that could have recorded all of `demos`, which carry none.

    Cameras are the members of any demo's `obs` that can become RGB frames, and proprioception the first
    demo's vectors of floats, without those that only a simulator knows. See `infer_action_parts` and
    `inferred_rate_hz` for actions and rate.
    """
    return describe_bare(demos, Choices()).spec


def describe_bare(
    demos: Sequence[Demo], choices: Choices, like: PolicySpec | None = None
) -> Description:
    """Return the description of demos in files that carry no spec.

    like: the spec of a checkpoint that is to be trained or run on them. Where its proprioception
    and action parts fit, they are taken in place of what is inferred, unless the user chose others.
    Raises `UserError` if there is no demo, one is damaged, or a choice does not fit.
    """
    found = survey(demos, allow_external=choices.allow_external)
    given = _given(choices)
    if like is not None:
        given = _completed(given, found, like)
    members = _chosen(found.members, choices, given, found.other_names)
    actions = infer_action_parts(np.concatenate(found.actions))
    rate_hz = given.rate_hz or inferred_rate_hz(found)
    spec = _spec(PolicySpec(found.robot, (), (), actions, rate_hz), members, given)
    cameras = {}
    for camera in spec.cameras:
        stored = (given.cameras or {}).get(camera.name, StoredCamera())
        if stored.values == DEFAULT_RANGE:
            stored = replace(stored, values=float_range(camera.name, found))
        cameras[camera.name] = stored
    members = [_with_orientation(member, cameras, demos[0][0]) for member in members]
    note = INFERRED if choices.spec is None else f"{INFERRED}, or taken from {choices.spec}"
    return Description(spec, tuple(members), cameras, note)


def describe_stored(
    spec: PolicySpec, demo: Demo | None, choices: Choices, like: PolicySpec | None = None
) -> Description:
    """Return the description of files of `spec`. demo: the first. like: see `describe_bare`."""
    given = _given(choices)
    if like is not None and given.proprioception is None:
        vectors = spec.seen_by(like).proprioception
        given = replace(given, proprioception=dict.fromkeys(v.name for v in vectors))
    members = [
        *(
            Member(c.name, "camera", (c.height, c.width), f"{c.width}x{c.height}")
            for c in spec.cameras
        ),
        *(Member(v.name, "vector", (v.size,), f"of {v.size} values") for v in spec.proprioception),
    ]
    if demo is not None:
        known = {member.name for member in members}
        members += [
            replace(member, reason=member.reason or "not in the files' ttm_spec")
            for member in _members(demo, choices)
            if member.name not in known
        ]
    members = _chosen(members, choices, given, ())
    described = _spec(spec, members, given)
    note = "" if choices.spec is None else f"the files' spec is changed by {choices.spec}"
    return Description(described, tuple(members), given.cameras or {}, note)


def _spec(base: PolicySpec, members: Iterable[Member], given: SpecFile) -> PolicySpec:
    """Return a spec with the cameras and vectors that are used, and what the spec file gives."""
    used = [member for member in members if member.is_used]
    known = {vector.name: vector for vector in base.proprioception}
    actions = base.actions if given.actions is None else given.actions
    total, size = sum(part.size for part in actions), base.action_size
    if total != size:
        raise UserError(
            f"{given.path}: the parts of the action have {total} dimensions, but the data {size}"
        )
    return PolicySpec(
        robot=given.robot or base.robot,
        cameras=tuple(CameraSpec(m.name, *(m.shape or ())) for m in used if m.kind == "camera"),
        proprioception=tuple(
            _vector(m, given, known.get(m.name)) for m in used if m.kind == "vector"
        ),
        actions=actions,
        rate_hz=given.rate_hz or base.rate_hz,
    )


def _given(choices: Choices) -> SpecFile:
    return SpecFile() if choices.spec is None else read_spec_file(choices.spec)


def _members(demo: Demo, choices: Choices) -> list[Member]:
    path, name = demo
    with choices.open(path) as file:
        observations = find_member(demo_group(file, name), "obs")
        return members_of(observations) if isinstance(observations, h5py.Group) else []


def _completed(given: SpecFile, found: Survey, like: PolicySpec) -> SpecFile:
    """Return what is given, completed by what fits of a checkpoint's spec."""
    names = {member.name for member in found.members if member.kind == "vector"}
    vectors = {vector.name: vector.labels for vector in like.proprioception}
    unnamed = found.robot == "unknown" or like.robot == found.scene
    same_size = like.action_size == found.actions[0].shape[1]
    fitting: dict[str, Any] = {
        "robot": like.robot if unnamed else None,
        "rate_hz": None if found.says_rate else like.rate_hz,
        "proprioception": vectors if set(vectors) <= names else None,
        "actions": like.actions if same_size else None,
    }
    left_out = {key: value for key, value in fitting.items() if getattr(given, key) is None}
    return replace(given, **left_out)


def _chosen(
    members: Sequence[Member], choices: Choices, given: SpecFile, other_names: Collection[str]
) -> list[Member]:
    """Return the members with what the user chose: in the user's order, then those left out.

    other_names: members of other demos, which are listed where the first demo lacks them.
    """
    by_name = {member.name: member for member in members}
    wanted = {
        "camera": _named(choices.cameras or given.cameras),
        "vector": _named(choices.proprioception or given.proprioception),
    }
    chosen = []
    for kind, names in wanted.items():
        have = ", ".join(member.name for member in members if member.kind == kind) or NONE
        word = "camera" if kind == "camera" else "proprioception"
        for name in names or ():
            if name not in by_name:
                raise UserError(f"{word} '{name}' is not in this data; it has: {have}")
            if by_name[name].kind != kind:
                raise UserError(
                    f"obs/{name} cannot be {word}: it is {by_name[name].text}; it has: {have}"
                )
            chosen.append(replace(by_name[name], reason=""))
    taken = {member.name for member in chosen}
    for member in members:
        if member.name not in taken:
            reason = "" if wanted.get(member.kind) is None else "not chosen"
            chosen.append(replace(member, reason=member.reason or reason))
    missing = sorted(set(other_names) - set(by_name))
    return chosen + [Member(name, "other", reason=NOT_IN_ALL) for name in missing]


def _named(names: Collection[str] | None) -> list[str] | None:
    """Return the names that were chosen, of which `none` stands for no name; None if none was."""
    if names is None:
        return None
    kept = [name for name in names if name != NONE]
    if NONE in names and len(names) > 1:
        others = ", ".join(kept) or NONE
        raise UserError(f"'{NONE}' cannot stand beside {others}; give one or the other")
    return kept


def _vector(
    member: Member, given: SpecFile, stored: ProprioceptionSpec | None
) -> ProprioceptionSpec:
    """Return the spec of a vector, with the labels of the spec file, the files, or its indices."""
    assert member.shape is not None, "a vector has a size"
    size = member.shape[0]
    labels = (given.proprioception or {}).get(member.name)
    if labels is not None and len(labels) != size:
        raise UserError(
            f"{given.path}: proprioception {member.name} has {len(labels)} labels for {size} values"
        )
    if labels is None and stored is not None:
        return stored
    return ProprioceptionSpec(
        member.name, labels or tuple(f"{member.name}[{i}]" for i in range(size))
    )


def _with_orientation(member: Member, cameras: Mapping[str, StoredCamera], path: Path) -> Member:
    """Return a camera's member with a word on how its frames are turned, by the first file."""
    if not (member.is_used and member.kind == "camera"):
        return member
    orientation = cameras[member.name].orientation
    if orientation is None:
        with open_file(path) as file:
            orientation = file_orientation(file)
    words = [] if orientation == "upright" else [f"stored {orientation}, turned upright"]
    words += ["channels BGR, made RGB"] if cameras[member.name].colours == "bgr" else []
    return replace(member, about="; ".join([member.about, *words]))
