"""Which measured values a part of the action is relative to, and how rotations are written.

Nothing here imports PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec

ROTATION_SIZES: Mapping[str, int] = {
    "xyzw": 4, "wxyz": 4, "rotvec": 3, "rpy": 3, "6d-columns": 6, "6d-rows": 6,
}  # fmt: skip
"""Name -> number of values.

xyzw, wxyz: a unit quaternion with its real part last or first. rotvec: the axis of rotation, with the
angle in rad as its length (axis-angle). rpy: roll, pitch and yaw in rad about the fixed axes x, y and z,
in this order, as in ROS. 6d-columns: the first two columns of the rotation matrix, one after the other
(Zhou et al. 2019); 6d-rows: its first two rows (PyTorch3D, diffusion_policy, UMI).
"""
QUATERNIONS = ("xyzw", "wxyz")
POSE = "pose-"
"""Stands before the name of a rotation that follows a position."""
POSITION_SIZE = 3
ROTATION_WORDS = {
    "rot", "rotation", "rotvec", "quat", "quaternion", "euler", "rpy", "axis", "pose", "ori",
    "orientation", "yaw", "heading",
}  # fmt: skip
"""Words in names of parts and vectors that stand for rotations. Their difference is no rotation."""
ROTATION_LABELS = {
    "rx", "ry", "rz", "wx", "wy", "wz", "qx", "qy", "qz", "qw", "roll", "pitch", "yaw",
}  # fmt: skip
"""Labels of single values that are of a rotation."""
RELATIVE, ABSOLUTE = "--relative", "absolute"
"""The options of `ttm train` that take references."""
LENGTHS = ("m", "cm", "mm")
"""Units by which a part is a position, whatever its name."""
NO_UNITS = ("", "1", "unknown")
TOGETHER = "+"
"""Stands between the names of vectors whose values are taken one after the other."""


@dataclass(frozen=True)
class Form:
    """How an orientation, or a position and then an orientation, is written."""

    rotation: str  # a name of `ROTATION_SIZES`
    pose: bool = False  # whether a position, (x, y, z) in m, stands before the orientation

    @classmethod
    def parsed(cls, text: str) -> Form:
        """Read the result of `str`. Raises `UserError` for other texts."""
        rotation = text.removeprefix(POSE)
        if rotation not in ROTATION_SIZES:
            known = f"{', '.join(ROTATION_SIZES)}, or with a position such as {POSE}xyzw"
            raise UserError(f"'{text}' is no way to write a rotation; give {known}")
        return cls(rotation, text.startswith(POSE))

    @property
    def num_positions(self) -> int:
        """The number of values that stand before those of the orientation."""
        return POSITION_SIZE if self.pose else 0

    @property
    def size(self) -> int:
        return self.num_positions + ROTATION_SIZES[self.rotation]

    def __str__(self) -> str:
        return (POSE if self.pose else "") + self.rotation


class Source(NamedTuple):
    """Where the values are that measure a part, and how rotations are written."""

    vectors: tuple[str, ...]  # names of proprioception vectors, whose values follow each other
    values: slice  # those of their values that measure the part
    form: Form | None = None  # how the part writes a rotation; None if values are subtracted
    measured_form: Form | None = None  # how what measures it does


@dataclass(frozen=True)
class Reference:
    """A part of the action and the values that measure the same."""

    part: str
    vector: str
    """The name of a proprioception vector; for rotations also several, with `TOGETHER` between them."""
    values: tuple[int, int] | None = None
    """The first of its values and that after the last; None for all."""
    option: str = RELATIVE
    """The option that it was given to."""
    form: Form | None = None
    measured_form: Form | None = None
    """See `Source`."""

    @classmethod
    def parsed(cls, text: str, option: str = RELATIVE) -> Reference:
        """Read PART=VECTOR or PART=VECTOR[FIRST:STOP], for rotations PART:FORM=VECTOR[FIRST:STOP]:FORM.

        Raises `UserError` for other texts.
        """
        form = r"(?::([^=:\[\]]+))?"
        found = re.fullmatch(rf"([^=:]+){form}=([^=:\[\]]+)(?:\[(\d+):(\d+)\])?{form}", text)
        if found is None:
            raise UserError(
                f"{option} has '{text}'; give PART=VECTOR or PART=VECTOR[FIRST:STOP], such as "
                "arm=joints[0:6], or for rotations such as tip:rotvec=tip_quat:xyzw"
            )
        part, of_part, vector, first, stop, of_vector = found.groups()
        values = None if first is None else (int(first), int(stop))
        try:
            forms = [None if each is None else Form.parsed(each) for each in (of_part, of_vector)]
        except UserError as error:
            raise UserError(f"{option} {text}: {error}") from error
        return cls(part, vector, values, option, *forms)

    def __str__(self) -> str:
        some = "" if self.values is None else f"[{self.values[0]}:{self.values[1]}]"
        forms = ["" if each is None else f":{each}" for each in (self.form, self.measured_form)]
        return f"{self.part}{forms[0]}={self.vector}{some}{forms[1]}"

    def of(self, spec: PolicySpec) -> Source:
        """Return where the values are that measure the part.

        Raises `UserError` if the spec has no such part or vector, or if a difference of the two makes no
        sense: for binary parts, for rotations whose forms are not given, and for values in another unit.
        """
        names = (self.vector,) if self.form is None else tuple(self.vector.split(TOGETHER))
        parts = {part.name: part for part in spec.actions}
        vectors = {vector.name: vector.labels for vector in spec.proprioception}
        self._require_known("part of the action", (self.part,), parts)
        self._require_known("proprioception", names, vectors)
        part, labels = parts[self.part], [label for name in names for label in vectors[name]]
        if part.kind == "binary":
            self._refuse(f"{part.name} is binary and has two commands; leave it out")
        if self.form is not None or self.measured_form is not None:
            return self._of_rotation(part, labels, names)
        where = self._values(labels, part.size, f"{part.name} has {part.size} values")
        self._require_difference(part, labels[where])
        return Source(names, where)

    def _of_rotation(
        self, part: ActionPart, labels: Sequence[str], names: tuple[str, ...]
    ) -> Source:
        form, measured = self.form, self.measured_form
        if form is None or measured is None or form.pose != measured.pose:
            self._refuse(
                "say for both how they are written, as rotations or poses, such as "
                f"{part.name}:rotvec={self.vector}:xyzw"
            )
        if self.option == ABSOLUTE:
            self._refuse(f"{ABSOLUTE} takes displacements of positions; leave the rotation out")
        if part.size != form.size:
            self._refuse(
                f"{part.name} has {part.size} values, and {form} {form.size}; "
                f"give another form ({', '.join(ROTATION_SIZES)}), or split the action by --spec"
            )
        where = self._values(labels, measured.size, f"{measured} has {measured.size}")
        units = [_unit(label) for label in labels[where]]
        lengths, turns = units[: measured.num_positions], units[measured.num_positions :]
        (lengths if form.pose else turns).append(part.unit)
        wrong = [unit for unit in turns if unit not in (*NO_UNITS, "rad")]
        wrong += [unit for unit in lengths if unit not in (*NO_UNITS, "m")]
        if wrong:
            self._refuse(
                f"values are in {wrong[0]}, not in rad (orientations) or m (positions); name other "
                "values, or correct the unit by --spec"
            )
        return Source(names, where, form, measured)

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(f"{self.option} {self}: {why}")

    def _require_known(self, kind: str, names: Sequence[str], known: Collection[str]) -> None:
        for name in names:
            if name not in known:
                self._refuse(f"'{name}' is no {kind} here; there is: {', '.join(known) or 'none'}")

    def _values(self, labels: Sequence[str], size: int, wanted: str) -> slice:
        """Return the values that measure the part. Raises `UserError` unless there are `size`."""
        first, stop = self.values or (0, len(labels))
        if stop - first != size or stop > len(labels):
            self._refuse(
                f"{wanted}, and {self.vector} has {len(labels)}; name those that measure it, such as "
                f"{replace(self, values=(0, size))}"
            )
        return slice(first, stop)

    def _require_difference(self, part: ActionPart, labels: Sequence[str]) -> None:
        for label in labels:
            unit = _unit(label)
            if unit and part.unit.removesuffix("/tick") not in ("", "unknown", unit):
                self._refuse(
                    f"{part.name} is in {part.unit}, but '{label}' in {unit}; give one unit"
                )
        if looks_turning(part, self.vector, labels):
            self._refuse(
                "this looks like a rotation; say how both are written, such as "
                f"{part.name}:rotvec={self.vector}:xyzw (forms: {', '.join(ROTATION_SIZES)}), leave "
                f"{part.name} out, or say by --spec that it is in m"
            )


def looks_turning(part: ActionPart, vector: str, labels: Sequence[str]) -> bool:
    """Return whether a part, and what measures it, seem to be rotations by their names and unit."""
    words = {word for name in (part.name, vector) for word in re.split(r"[^a-z]+", name.lower())}
    # What a label calls its value, without its unit and what stands before a dot.
    named = {re.sub(r" \([^()]*\)$", "", label).rpartition(".")[2].lower() for label in labels}
    turning = bool(ROTATION_WORDS & words or ROTATION_LABELS & named)
    return turning and part.unit.removesuffix("/tick") not in LENGTHS


def parsed_once(relative: Sequence[str], absolute: Sequence[str]) -> list[Reference]:
    """Return the references that the two options say. Raises `UserError` if two are of one part."""
    references = [Reference.parsed(text) for text in relative]
    references += [Reference.parsed(text, ABSOLUTE) for text in absolute]
    parts = [reference.part for reference in references]
    for part in parts:
        if parts.count(part) > 1:
            raise UserError(f"{RELATIVE} and {ABSOLUTE} name {part} more than once; give it once")
    return references


def _unit(label: str) -> str:
    found = re.search(r"\(([^()]*)\)$", label)
    return "" if found is None else found[1]
