"""Which measured values a part of the action is relative to. Nothing here imports PyTorch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec, ProprioceptionSpec

ROTATIONS = frozenset(
    (
        *("rot", "rotation", "rotvec", "quat", "quaternion", "euler", "rpy", "axis", "pose"),
        *("ori", "orientation", "yaw", "heading"),
    )
)
"""Words in names of parts and vectors that stand for rotations. Their difference is no rotation."""
ROTATION_LABELS = frozenset(
    ("rx", "ry", "rz", "wx", "wy", "wz", "qx", "qy", "qz", "qw", "roll", "pitch", "yaw")
)
"""Labels of single values that are of a rotation."""
RELATIVE, ABSOLUTE = "--relative", "--absolute"
"""The options of `ttm train` that take references."""
LENGTHS = ("m", "cm", "mm")
"""Units by which a part is a position, whatever its name."""


@dataclass(frozen=True)
class Reference:
    """A part of the action and the values that measure the same."""

    part: str
    vector: str
    """The name of a proprioception vector."""
    values: tuple[int, int] | None = None
    """The first of its values and that after the last; None for all."""
    option: str = RELATIVE
    """The option that it was given to."""

    @classmethod
    def parsed(cls, text: str, option: str = RELATIVE) -> Reference:
        """Read PART=VECTOR or PART=VECTOR[FIRST:STOP]. Raises `UserError` for other texts."""
        found = re.fullmatch(r"([^=]+)=([^=\[\]]+)(?:\[(\d+):(\d+)\])?", text)
        if found is None:
            raise UserError(
                f"{option} has '{text}'; give PART=VECTOR, or some of the vector's values as "
                "PART=VECTOR[FIRST:STOP], such as arm=joints[0:6]"
            )
        part, vector, first, stop = found.groups()
        values = None if first is None else (int(first), int(stop))
        return cls(part, vector, values, option)

    def __str__(self) -> str:
        some = "" if self.values is None else f"[{self.values[0]}:{self.values[1]}]"
        return f"{self.part}={self.vector}{some}"

    def of(self, spec: PolicySpec) -> tuple[str, slice]:
        """Return the vector's name and its values, of which there is one for each of the part's.

        Raises `UserError` if the spec has no such part or vector, or if a difference of the two makes
        no sense: for binary parts, for rotations, and for values in another unit.
        """
        parts = {part.name: part for part in spec.actions}
        vectors = {vector.name: vector for vector in spec.proprioception}
        for kind, name, known in (
            ("part of the action", self.part, parts),
            ("proprioception", self.vector, vectors),
        ):
            if name not in known:
                have = ", ".join(known) or "none"
                raise UserError(
                    f"{self.option} {self}: '{name}' is no {kind} here; there is: {have}"
                )
        part, vector = parts[self.part], vectors[self.vector]
        first, stop = self.values or (0, vector.size)
        if stop - first != part.size or stop > vector.size:
            raise UserError(
                f"{self.option} {self}: {part.name} has {part.size} values, and {vector.name} has "
                f"{vector.size}; name those that measure it, such as "
                f"{part.name}={vector.name}[0:{part.size}]"
            )
        self._require_difference(part, vector.labels[first:stop], vector)
        return vector.name, slice(first, stop)

    def _require_difference(
        self, part: ActionPart, labels: Sequence[str], vector: ProprioceptionSpec
    ) -> None:
        if part.kind == "binary":
            raise UserError(
                f"{self.option} {self}: {part.name} is binary and has two commands; leave it out"
            )
        for label in labels:
            unit = _unit(label)
            if unit and part.unit.removesuffix("/tick") not in ("", "unknown", unit):
                raise UserError(
                    f"{self.option} {self}: {part.name} is in {part.unit}, but '{label}' in {unit}; "
                    "give values of one unit"
                )
        named = bool(ROTATIONS & _words(part.name) or ROTATIONS & _words(vector.name))
        labelled = any(_base(label) in ROTATION_LABELS for label in labels)
        if (named or labelled) and part.unit.removesuffix("/tick") not in LENGTHS:
            raise UserError(
                f"{self.option} {self}: this looks like a rotation, and a difference of rotations is none; "
                f"leave {part.name} out, or say by --spec that it is in m"
            )


def parsed_once(relative: Sequence[str], absolute: Sequence[str]) -> list[Reference]:
    """Return the references that the two options say. Raises `UserError` if two are of one part."""
    references = [Reference.parsed(text) for text in relative]
    references += [Reference.parsed(text, ABSOLUTE) for text in absolute]
    parts = [reference.part for reference in references]
    for part in parts:
        if parts.count(part) > 1:
            raise UserError(
                f"{RELATIVE} and {ABSOLUTE} name {part} {parts.count(part)} times; give it once"
            )
    return references


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))


def _unit(label: str) -> str:
    found = re.search(r"\(([^()]*)\)$", label)
    return "" if found is None else found[1]


def _base(label: str) -> str:
    """Return what a label calls its value, without its unit and what stands before a dot."""
    return label.rpartition(" (")[0 if label.endswith(")") else 2].rpartition(".")[2].lower()
