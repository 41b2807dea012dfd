"""What a policy sees and commands in a data set: stored in the files, inferred, or chosen by the user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
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

# The YAML file by which a user says what the episodes of others hold.
#
# robot: franka
# rate_hz: 20
# cameras:                      # their names in obs; without this entry: all that can be used
#   agentview_rgb: {orientation: upside-down, colours: rgb, values: [0, 1]}
# proprioception:               # name in obs: labels of its values with their units
#   ee_pos: [x (m), y (m), z (m)]
# actions:                      # in their order
#   - {name: arm, size: 6, unit: m}
#   - {name: gripper, size: 1, kind: binary, low: -1, high: 1}

HEADER = (
    "# What a policy sees and commands in these episodes. Edit it, and give it with --spec.\n"
    "# Cameras: orientation is upright, upside-down or rotated, as they are stored; colours are rgb\n"
    "# or bgr; values are black and white of float frames. Binary parts of the action have two\n"
    "# commands, low and high. What is left out is inferred.\n"
)


@dataclass(frozen=True)
class SpecFile:
    """What a spec file says. None stands for what it leaves out."""

    robot: str | None = None
    rate_hz: float | None = None
    cameras: Mapping[str, StoredCamera] | None = None
    proprioception: Mapping[str, tuple[str, ...] | None] | None = None
    """Name -> labels, None for those of the data."""
    actions: tuple[ActionPart, ...] | None = None
    path: Path = field(default=Path("spec"))


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
    known = ("robot", "rate_hz", "cameras", "proprioception", "actions")
    if not isinstance(data, dict) or not set(data) <= set(known):
        keys = map(str, data) if isinstance(data, dict) else [str(data)]
        unknown = one_line(", ".join(key for key in keys if key not in known))
        raise UserError(f"{path}: unknown {unknown}; it may have: {', '.join(known)}")
    try:
        return SpecFile(
            robot=None if data.get("robot") is None else str(data["robot"]),
            rate_hz=_rate(data.get("rate_hz")),
            cameras=_cameras(data.get("cameras")),
            proprioception=_vectors(data.get("proprioception")),
            actions=_actions(data.get("actions")),
            path=path,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: an entry has another form than expected ({error})") from error


def write_spec_file(path: Path, spec: PolicySpec, cameras: Mapping[str, StoredCamera]) -> None:
    """Write what is known of a data set.

    cameras: how the frames of each camera are stored, where that is not the usual way.
    """
    data: dict[str, Any] = {
        "robot": spec.robot,
        "rate_hz": spec.rate_hz,
        "cameras": {
            camera.name: _camera_data(cameras.get(camera.name, StoredCamera()))
            for camera in spec.cameras
        },
        "proprioception": {vector.name: list(vector.labels) for vector in spec.proprioception},
        "actions": [_part_data(part) for part in spec.actions],
    }
    text = HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --spec") from error


def _camera_data(stored: StoredCamera) -> dict[str, Any]:
    data = {"orientation": stored.orientation or "upright", "colours": stored.colours}
    return data | {"values": list(stored.values)}


def _part_data(part: ActionPart) -> dict[str, Any]:
    return {key: value for key, value in asdict(part).items() if value not in (math.inf, -math.inf)}


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"rate_hz is {value}; give ticks per second")
    return float(value)


def _cameras(data: Any) -> dict[str, StoredCamera] | None:
    if data is None:
        return None
    return {str(name): _camera(str(name), options or {}) for name, options in data.items()}


def _camera(name: str, options: Mapping[str, Any]) -> StoredCamera:
    choices = {"orientation": get_args(Orientation), "colours": get_args(Colours), "values": None}
    for key, value in options.items():
        if key not in choices:
            raise UserError(f"camera {name}: unknown {key}; it may have: {', '.join(choices)}")
        allowed = choices[key]
        if allowed is not None and value not in allowed:
            raise UserError(f"camera {name}: {key} is {value}; take one of {', '.join(allowed)}")
    low, high = map(float, options.get("values", StoredCamera().values))
    if not -math.inf < low < high < math.inf:
        raise UserError(f"camera {name}: values are {low:g} and {high:g}; give black, then white")
    return StoredCamera(
        options.get("orientation"), options.get("colours", StoredCamera().colours), (low, high)
    )


def _vectors(data: Any) -> dict[str, tuple[str, ...] | None] | None:
    if data is None:
        return None
    for name, labels in data.items():
        if labels is not None and not isinstance(labels, list):
            raise UserError(f"proprioception {name} is {labels}; give a list of labels")
    return {str(name): tuple(map(str, labels)) if labels else None for name, labels in data.items()}


def _actions(data: Any) -> tuple[ActionPart, ...] | None:
    return None if data is None else tuple(_part(dict(entry)) for entry in data)


def _part(entry: dict[str, Any]) -> ActionPart:
    kind, size = entry.get("kind", "continuous"), entry.get("size")
    if type(size) is not int or size < 1:
        raise UserError(f"action {entry.get('name')}: size is {size}; give a whole number above 0")
    limits = {key: float(entry[key]) for key in ("low", "high") if entry.get(key) is not None}
    unit = str(entry.get("unit", "unknown"))
    unknown = set(entry) - {"name", "size", "unit", "kind", "low", "high"}
    if unknown:
        raise UserError(f"action {entry.get('name')}: unknown {', '.join(sorted(unknown))}")
    return ActionPart(str(entry["name"]), size, unit, kind, **limits)


# What the user chooses of a data set, beside what is inferred from it.

NONE = "none"
"""The name that stands for no camera, or no proprioception."""


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


INFERRED = "no ttm_spec in the files: cameras, vectors, action parts and rate are inferred"

NOT_IN_ALL = "not in every demo"
"""Why a vector is not used that the first demo lacks."""


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

    - Cameras are the members of any demo's `obs` that can become RGB frames; a demo that lacks one
      is refused when it is read.
    - Proprioception are the first demo's vectors of floats, without those that only a simulator knows.
    - Action dimensions are binary if their values over all demos lie between 0 and 1, or -1 and 1,
      and are one of these two in nearly all ticks. Neighbouring dimensions of one kind become one
      part; continuous ones have no limits.
    - The control rate is that of the timestamps, or else robosuite's `control_freq`, or else 5 Hz.
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
    given = _completed(_given(choices), found, like)
    members = _chosen(found.members, choices, given, found.other_names)
    used = [member for member in members if member.is_used]
    spec = PolicySpec(
        robot=given.robot or found.robot,
        cameras=tuple(CameraSpec(m.name, *(m.shape or ())) for m in used if m.kind == "camera"),
        proprioception=tuple(_vector(m, given) for m in used if m.kind == "vector"),
        actions=_action_parts(found, given),
        rate_hz=given.rate_hz or inferred_rate_hz(found),
    )
    cameras = {camera.name: _stored(camera.name, found, given) for camera in spec.cameras}
    members = [_with_orientation(member, cameras, demos[0][0]) for member in members]
    note = INFERRED if choices.spec is None else f"{INFERRED}, or taken from {choices.spec}"
    return Description(spec, tuple(members), cameras, note)


def describe_stored(spec: PolicySpec, demo: Demo | None, choices: Choices) -> Description:
    """Return the description of files that carry `spec`. demo: the first one, whose `obs` is listed."""
    given = _given(choices)
    known = _of_spec(spec)
    others = [] if demo is None else _others(demo, known, choices)
    members = _chosen([*known, *others], choices, given, ())
    used = {member.name: member for member in members if member.is_used}
    vectors = {vector.name: vector for vector in spec.proprioception}
    return Description(
        spec=replace(
            spec,
            robot=given.robot or spec.robot,
            cameras=tuple(
                CameraSpec(m.name, *(m.shape or ())) for m in used.values() if m.kind == "camera"
            ),
            proprioception=tuple(
                _vector(m, given, vectors.get(m.name)) for m in used.values() if m.kind == "vector"
            ),
            actions=_fitting(given, spec.action_size) or spec.actions,
            rate_hz=given.rate_hz or spec.rate_hz,
        ),
        members=tuple(members),
        cameras=given.cameras or {},
        note="" if choices.spec is None else f"the files' spec is changed by {choices.spec}",
    )


def _given(choices: Choices) -> SpecFile:
    return SpecFile() if choices.spec is None else read_spec_file(choices.spec)


def _completed(given: SpecFile, found: Survey, like: PolicySpec | None) -> SpecFile:
    """Return what is given, completed by what fits of a checkpoint's spec."""
    if like is None:
        return given
    names = {member.name for member in found.members if member.kind == "vector"}
    vectors = {vector.name: vector.labels for vector in like.proprioception}
    fits = set(vectors) <= names
    unnamed = found.robot == "unknown" or like.robot == found.scene
    same_size = like.action_size == found.actions[0].shape[1]
    return replace(
        given,
        robot=given.robot or (like.robot if unnamed else None),
        rate_hz=given.rate_hz or (None if found.says_rate else like.rate_hz),
        proprioception=vectors if given.proprioception is None and fits else given.proprioception,
        actions=like.actions if given.actions is None and same_size else given.actions,
    )


def _of_spec(spec: PolicySpec) -> list[Member]:
    cameras = [
        Member(c.name, "camera", (c.height, c.width), f"{c.width}x{c.height}") for c in spec.cameras
    ]
    return cameras + [
        Member(v.name, "vector", (v.size,), f"of {v.size} values") for v in spec.proprioception
    ]


def _others(demo: Demo, known: Sequence[Member], choices: Choices) -> list[Member]:
    """Return the members of a demo's `obs` that the files' spec does not name."""
    names = {member.name for member in known}
    path, name = demo
    with open_file(path) as file:
        group = demo_group(file, name, allow_external=choices.allow_external)
        observations = find_member(group, "obs", allow_external=choices.allow_external)
        if not isinstance(observations, h5py.Group):
            return []
        found = members_of(observations, allow_external=choices.allow_external)
    reason = "not in the files' ttm_spec"
    return [
        replace(member, reason=member.reason or reason)
        for member in found
        if member.name not in names
    ]


def _chosen(
    members: Sequence[Member],
    choices: Choices,
    given: SpecFile,
    other_names: Sequence[str] | set[str],
) -> list[Member]:
    """Return the members with what the user chose: in the user's order, then those left out.

    other_names: members of other demos, which are told where the first demo lacks them.
    """
    by_name = {member.name: member for member in members}
    cameras = choices.cameras or (tuple(given.cameras) if given.cameras is not None else None)
    vectors = choices.proprioception or (
        tuple(given.proprioception) if given.proprioception is not None else None
    )
    wanted = {
        "camera": None if cameras is None else _named(cameras),
        "vector": None if vectors is None else _named(vectors),
    }
    _require_known(wanted, by_name)
    chosen = [
        replace(by_name[name], reason="") for names in wanted.values() for name in names or ()
    ]
    left = [member for member in members if member.name not in {one.name for one in chosen}]
    kept = [
        replace(member, reason=member.reason or "not chosen")
        if wanted.get(member.kind) is not None
        else member
        for member in left
    ]
    missing = sorted(set(other_names) - set(by_name))
    return [*chosen, *kept] + [Member(name, "other", reason=NOT_IN_ALL) for name in missing]


def _named(names: Sequence[str]) -> list[str]:
    """Return the names that were chosen, of which `none` stands for no name."""
    if NONE in names and len(names) > 1:
        others = ", ".join(name for name in names if name != NONE) or NONE
        raise UserError(f"'{NONE}' cannot stand beside {others}; give one or the other")
    return [name for name in names if name != NONE]


def _require_known(wanted: Mapping[str, list[str] | None], members: Mapping[str, Member]) -> None:
    words = {"camera": "camera", "vector": "proprioception"}
    for kind, names in wanted.items():
        have = [member.name for member in members.values() if member.kind == kind]
        for name in names or ():
            if name not in members:
                raise UserError(
                    f"{words[kind]} '{name}' is not in this data; it has: {', '.join(have) or NONE}"
                )
            if members[name].kind != kind:
                raise UserError(
                    f"obs/{name} cannot be {words[kind]}: it is {members[name].text}; "
                    f"this data has: {', '.join(have) or NONE}"
                )


def _vector(
    member: Member, given: SpecFile, stored: ProprioceptionSpec | None = None
) -> ProprioceptionSpec:
    """Return the spec of a vector, with the labels of the spec file, the files, or its indices."""
    assert member.shape is not None, "a vector has a size"
    size = member.shape[0]
    labels = (given.proprioception or {}).get(member.name)
    if labels is not None and len(labels) != size:
        raise UserError(
            f"{given.path}: proprioception {member.name} has {len(labels)} labels for {size} values; "
            "give one for each"
        )
    if labels is None and stored is not None:
        return stored
    return ProprioceptionSpec(
        member.name, labels or tuple(f"{member.name}[{i}]" for i in range(size))
    )


def _action_parts(found: Survey, given: SpecFile) -> tuple[ActionPart, ...]:
    size = found.actions[0].shape[1]
    return _fitting(given, size) or infer_action_parts(np.concatenate(found.actions))


def _fitting(given: SpecFile, size: int) -> tuple[ActionPart, ...] | None:
    """Return the action parts of the spec file, which must have `size` dimensions; None without."""
    if given.actions is None:
        return None
    total = sum(part.size for part in given.actions)
    if total != size:
        raise UserError(
            f"{given.path}: the parts of the action have {total} dimensions, but the data {size}"
        )
    return given.actions


def _stored(camera: str, found: Survey, given: SpecFile) -> StoredCamera:
    stored = (given.cameras or {}).get(camera)
    if stored is not None and stored.values != DEFAULT_RANGE:
        return stored
    return replace(stored or StoredCamera(), values=float_range(camera, found))


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
