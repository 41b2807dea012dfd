"""What a policy sees and commands in a data set: stored in the files, inferred, or chosen by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np

from ttm.datasets.access.links import find_member
from ttm.datasets.episode_file import demo_group, open_file
from ttm.datasets.observations.choices import NONE, Choices
from ttm.datasets.observations.members import Member, members_of
from ttm.datasets.observations.spec_file import SpecFile, read_spec_file
from ttm.datasets.observations.stored_camera import DEFAULT_RANGE, StoredCamera, file_orientation
from ttm.datasets.spec_inference import (
    Demo,
    Survey,
    float_range,
    infer_action_parts,
    inferred_rate_hz,
    survey,
)
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

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
