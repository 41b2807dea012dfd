"""Actions that the network predicts in another form than the robot takes them.

Of relative parts the robot takes positions or orientations to go to, and the network predicts how far to
go from what is measured at the chunk's first tick (Chi et al. 2024, "relative trajectory"). Of absolute
parts the robot takes displacements, and the network predicts the position to be at afterwards.

What is predicted becomes a plan by what is measured at the tick of the prediction. The plan, or a mean of
plans, becomes a command by what is measured at the tick that carries it out. Episodes, previous actions
and commands stay in the robot's own form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.references import (
    QUATERNIONS,
    RELATIVE,
    ROTATION_SIZES,
    Form,
    Reference,
    Source,
    parsed_once,
)
from ttm.policy.spec import ActionPart, PolicySpec

# Rotations. All functions take any leading dimensions, and let NaN through. Matrices are multiplied by
# elementwise operations, which autocast leaves in their precision.

SMALLEST = 1e-12
"""Lengths below this count as 0."""
LARGEST_FAULT = 0.05
"""What values may differ from being a rotation; see `deviation`."""
FAULTS: Mapping[int, str] = {
    3: "since it is beyond two turns, as degrees would be",
    4: "since its length is not 1",
    6: "since its halves are not orthogonal, of length 1",
}
"""Number of values -> why some are no rotation."""


def matrices(values: Tensor, form: str) -> Tensor:
    """Return the rotations that `values`, (..., n), stand for, (..., 3, 3). form: of `ROTATION_SIZES`.

    Quaternions need not have the length 1.
    """
    if form.startswith("6d"):
        columns = orthonormal(values)
        return columns if form == "6d-columns" else columns.mT
    if form == "rpy":
        axes = torch.diag_embed(values).unbind(-2)
        about_x, about_y, about_z = (matrices(axis, "rotvec") for axis in axes)
        return product(about_z, product(about_y, about_x))
    if form == "wxyz":
        values = values.roll(-1, dims=-1)
    if form == "rotvec":
        half = _length(values) / 2
        values = torch.cat([values / 2 * torch.sinc(half / math.pi), half.cos()], dim=-1)
    x, y, z, w = F.normalize(values, dim=-1, eps=SMALLEST).unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def written(rotations: Tensor, form: str) -> Tensor:
    """Return rotations (..., 3, 3) as values (..., n).

    Of a quaternion's two signs that with a real part from 0 on is taken; angles are from -pi to pi, and
    rotation vectors have a length up to pi.
    """
    if form.startswith("6d"):
        return two_columns(rotations if form == "6d-columns" else rotations.mT)
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in rotations.unbind(-2))
    if form == "rpy":
        # Yaw is found with the roll that was taken, so that they make the rotation also where the
        # pitch is a right angle, and only their sum or difference is defined.
        roll = torch.atan2(h, i)
        sine, cosine = roll.sin(), roll.cos()
        pitch = torch.atan2(-g, sine * h + cosine * i)
        yaw = torch.atan2(sine * c - cosine * b, cosine * e - sine * f)
        return torch.stack([roll, pitch, yaw], dim=-1)
    rows = (  # of 4 q q^T, in which the row with the greatest diagonal is the most exact
        (1 + a - e - i, b + d, c + g, h - f),
        (b + d, 1 - a + e - i, f + h, c - g),
        (c + g, f + h, 1 - a - e + i, d - b),
        (h - f, c - g, d - b, 1 + a + e + i),
    )
    outer = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    most = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    chosen = outer.gather(-2, most.expand(*most.shape[:-1], 4)).squeeze(-2)
    q = F.normalize(chosen, dim=-1, eps=SMALLEST)
    q = torch.where(q[..., 3:] < 0, -q, q)
    if form == "rotvec":
        sine = _length(q[..., :3])
        angle = 2 * torch.atan2(sine, q[..., 3:])
        return q[..., :3] * torch.where(sine > SMALLEST, angle / sine.clamp_min(SMALLEST), 2.0)
    return q.roll(1, dims=-1) if form == "wxyz" else q


def nearest(values: Tensor, near: Tensor, form: str) -> Tensor:
    """Return what stands for the same rotations as `values` and is nearest to `near`, (..., n) each."""
    if form in QUATERNIONS:
        return torch.where((values * near).sum(-1, keepdim=True) < 0, -values, values)
    if form == "rpy":
        return values + 2 * math.pi * ((near - values) / (2 * math.pi)).round()
    if form == "rotvec":
        angle = _length(values)
        axis = values / angle.clamp_min(SMALLEST)
        along = (near * axis).sum(-1, keepdim=True)
        return values + 2 * math.pi * axis * ((along - angle) / (2 * math.pi)).round()
    return values


def product(first: Tensor, second: Tensor) -> Tensor:
    """Return the products of matrices, (..., 3, 3) each."""
    return (first.unsqueeze(-1) * second.unsqueeze(-3)).sum(-2)


def turned(vectors: Tensor, rotations: Tensor) -> Tensor:
    """Return the products of matrices, (..., 3, 3), and vectors, (..., 3)."""
    return (rotations * vectors.unsqueeze(-2)).sum(-1)


def orthonormal(columns: Tensor) -> Tensor:
    """Return rotations, (..., 3, 3), of their first two columns, (..., 6), by Gram-Schmidt (Zhou 2019)."""
    first, second = F.normalize(columns[..., :3], dim=-1, eps=SMALLEST), columns[..., 3:]
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = F.normalize(second, dim=-1, eps=SMALLEST)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


def two_columns(rotations: Tensor) -> Tensor:
    """Return the first two columns of matrices (..., 3, 3), one after the other, (..., 6)."""
    return rotations[..., :2].transpose(-1, -2).flatten(-2)


def deviation(values: Tensor, form: str) -> Tensor:
    """Return how far lengths are from 1, or by how much angles exceed two turns: (..., n) to (...)."""
    if form in ("rotvec", "rpy"):
        return (values.abs().amax(-1) - 4 * math.pi).clamp_min(0)
    if form in QUATERNIONS:
        return (_length(values) - 1).abs().squeeze(-1)
    first, second = values[..., :3], values[..., 3:]
    lengths = torch.cat([_length(first), _length(second)], dim=-1)
    return torch.maximum((lengths - 1).abs().amax(-1), (first * second).sum(-1).abs())


def _length(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=-1, keepdim=True)


class AsIs:
    """A part that is predicted as the robot takes it. For the methods see `RelativeActions`.

    Arguments are (..., n) each. `measured` is what the reference of the part measures: for `plan` and
    `command` at the tick that carries the plan out, for `predicted` and `planned` at that of the
    prediction.
    """

    commands_differ = False
    """Whether commands differ from plans."""

    def __init__(self, part: ActionPart) -> None:
        self.predicted_part = part
        """The part in the form that is predicted, which is also that of plans."""

    def averageable(self, commands: Tensor) -> Tensor:
        return commands

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        return averaged

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        return plan

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        return plan

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        return predicted

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        return commands


class RelativePart(AsIs):
    """A position to go to, which is predicted as how far to go."""

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        return plan - measured

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        return predicted + measured


class AbsolutePart(AsIs):
    """A displacement, which is predicted as the position to be at afterwards."""

    commands_differ = True

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        return averaged + measured

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        return plan - measured


class RelativeRotation(AsIs):
    """An orientation or a pose to go to, T, which is predicted as inv(T_measured) T.

    A position is thus predicted in the measured frame, as by Chi et al. 2024. Rotations are planned and
    predicted as two columns of their matrices, since these six numbers are continuous (Zhou et al. 2019).
    """

    commands_differ = True

    def __init__(self, part: ActionPart, form: Form, measured_form: Form) -> None:
        self.form, self.measured_form, self._split = form, measured_form, form.num_positions
        size = self._split + ROTATION_SIZES["6d-columns"]
        super().__init__(ActionPart(part.name, size, part.unit))

    def averageable(self, commands: Tensor) -> Tensor:
        return self._with_position(commands, two_columns(self._rotations(commands, self.form)))

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        return self._with_position(averaged, two_columns(orthonormal(averaged[..., self._split :])))

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        """Take the sign of a quaternion that is nearest to the previous one, or else to the measured one."""
        form = self.form.rotation
        rotations = written(orthonormal(plan[..., self._split :]), form)
        if form in QUATERNIONS:
            near = self._measured_near(measured) if previous is None else previous
            rotations = nearest(rotations, near[..., self._split :], form)
        return self._with_position(plan, rotations)

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        inverse = self._rotations(measured, self.measured_form).mT
        rotations = two_columns(product(inverse, orthonormal(plan[..., self._split :])))
        if not self._split:
            return rotations
        return torch.cat([turned(plan[..., :3] - measured[..., :3], inverse), rotations], dim=-1)

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        start = self._rotations(measured, self.measured_form)
        rotations = two_columns(product(start, orthonormal(predicted[..., self._split :])))
        if not self._split:
            return rotations
        position = measured[..., :3] + turned(predicted[..., :3], start)
        return torch.cat([position, rotations], dim=-1)

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        given, wanted = commands[..., self._split :], near[..., self._split :]
        return self._with_position(commands, nearest(given, wanted, self.form.rotation))

    def _rotations(self, values: Tensor, form: Form) -> Tensor:
        return matrices(values[..., form.num_positions :], form.rotation)

    def _with_position(self, values: Tensor, rotations: Tensor) -> Tensor:
        return torch.cat([values[..., : self._split], rotations], dim=-1)

    def _measured_near(self, measured: Tensor) -> Tensor:
        """Return what is measured as the part writes it, with the sign of a measured quaternion."""
        theirs = self.measured_form.rotation
        turns = measured[..., self.measured_form.num_positions :]
        if theirs in QUATERNIONS and theirs != self.form.rotation:
            turns = turns.roll(1 if theirs == QUATERNIONS[0] else -1, dims=-1)
        elif theirs != self.form.rotation:
            turns = written(self._rotations(measured, self.measured_form), self.form.rotation)
        return self._with_position(measured, turns)


Measured = Mapping[str, Tensor]
"""Proprioception: name -> (..., K), in the units of the spec."""


class RelativeActions:
    """What turns actions from the robot's form, (..., A), into that of the network, (..., P), and back.

    Plans are what is kept from tick to tick, (..., P). A and P differ where there are rotations. Leading
    dimensions of all arguments must fit each other. `measured` is the proprioception, name -> (..., K), at
    the ticks that `AsIs` says.
    """

    def __init__(
        self, spec: PolicySpec, relative: Sequence[str], absolute: Sequence[str] = ()
    ) -> None:
        """relative, absolute: what `Reference.parsed` reads, for each such part.

        Raises `UserError` if one does not fit the spec.
        """
        references = {each.part: each for each in parsed_once(relative, absolute)}
        self._spec = spec
        self._sources = {name: (each.option, each.of(spec)) for name, each in references.items()}
        self.references: Mapping[str, Reference] = references
        """Part -> what was said of it, for the parts that are predicted in another form."""
        self._parts = [_part_form(part, *self._sources.get(part.name, ())) for part in spec.actions]
        predicted = tuple(part.predicted_part for part in self._parts)
        self.predicted_spec = replace(spec, actions=predicted)
        """The spec with the parts of the action in the form that is predicted: P values."""
        self._sizes = [part.size for part in spec.actions]
        self._predicted_sizes = [part.size for part in self.predicted_spec.actions]
        self.mask = self._repeated([type(part) is not AsIs for part in self._parts])
        """(P,) bool: True where the dimension is predicted in another form."""
        self.commands_differ = self._repeated([part.commands_differ for part in self._parts])
        """(P,) bool: True in the parts whose commands differ from their plans."""

    def __bool__(self) -> bool:
        """Return whether any part is predicted in another form."""
        return bool(self._sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelativeActions) and self._sources == other._sources

    __hash__ = None  # type: ignore[assignment]

    def averageable(self, commands: Tensor) -> Tensor:
        """Return commands (..., A) in the form of plans, (..., P), of which means can be taken."""
        pieces = zip(self._parts, torch.split(commands, self._sizes, dim=-1), strict=True)
        return torch.cat([part.averageable(x) for part, x in pieces], dim=-1)

    def plan(self, averaged: Tensor, measured: Measured) -> Tensor:
        """Return the plans of means of what `averageable` returns, (..., P) each."""
        return self._each(averaged, measured, lambda part, x, now: part.plan(x, now))

    def predicted(self, plans: Tensor, measured: Measured) -> Tensor:
        """Return what is to be predicted for plans, (..., P) each."""
        return self._each(plans, measured, lambda part, x, now: part.predicted(x, now))

    def planned(self, predicted: Tensor, measured: Measured) -> Tensor:
        """Return the plans of what is predicted, (..., P) each."""
        return self._each(predicted, measured, lambda part, x, now: part.planned(x, now))

    def command(self, plans: Tensor, measured: Measured, previous: Tensor | None = None) -> Tensor:
        """Return the commands of plans, (..., A). previous: the commands before, (..., A)."""
        slices = self._spec.action_slices

        def command(part: AsIs, plan: Tensor, now: Tensor) -> Tensor:
            before = None if previous is None else previous[..., slices[part.predicted_part.name]]
            return part.command(plan, now, before)

        return self._each(plans, measured, command)

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        """Return what commands the same as `commands` and is nearest to `near`, (..., A) each."""
        split = (torch.split(values, self._sizes, dim=-1) for values in (commands, near))
        pieces = zip(self._parts, *split, strict=True)
        return torch.cat([part.nearest(x, to) for part, x, to in pieces], dim=-1)

    def require_rotations(self, commands: Tensor, measured: Measured, where: str) -> None:
        """Raise `UserError`, which begins with `where`, for values that no rotation is written with.

        commands: (ticks, A); measured: name -> (ticks, K).
        """
        for part in self._parts:
            if not isinstance(part, RelativeRotation):
                continue
            name = part.predicted_part.name
            for who, form, values in (
                (name, part.form, commands[:, self._spec.action_slices[name]]),
                (f"what measures {name}", part.measured_form, self._measured(part, measured)),
            ):
                fault = deviation(values[..., form.num_positions :], form.rotation)
                tick = int(fault.argmax())
                if not fault[tick] <= LARGEST_FAULT:
                    why = FAULTS[ROTATION_SIZES[form.rotation]]
                    raise UserError(
                        f"{where}: {who} is not written as {form} at tick {tick}, {why}; correct "
                        f"{RELATIVE} {self.references[name]}, or leave the episode out by a mask"
                    )

    def even(self, spread: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return standard deviations (P,) in which all values of a rotation have the greatest of theirs.

        A turn about one axis then counts as much as about another.
        """
        spread, where = spread.copy(), self.predicted_spec.action_slices
        for part in self._parts:
            if isinstance(part, RelativeRotation):
                rotation = spread[where[part.predicted_part.name]][part.form.num_positions :]
                rotation[:] = rotation.max()
        return spread

    def _repeated(self, of_parts: Sequence[bool]) -> npt.NDArray[np.bool_]:
        return np.repeat(np.array(of_parts, bool), self._predicted_sizes)

    def _each(
        self, values: Tensor, measured: Measured, change: Callable[[AsIs, Tensor, Tensor], Tensor]
    ) -> Tensor:
        pieces = zip(self._parts, torch.split(values, self._predicted_sizes, dim=-1), strict=True)
        changed = [
            x if type(part) is AsIs else change(part, x, self._measured(part, measured))
            for part, x in pieces
        ]
        return torch.cat(changed, dim=-1)

    def _measured(self, part: AsIs, measured: Measured) -> Tensor:
        source = self._sources[part.predicted_part.name][1]
        return torch.cat([measured[name] for name in source.vectors], dim=-1)[..., source.values]


def _part_form(part: ActionPart, option: str | None = None, source: Source | None = None) -> AsIs:
    if source is None:
        return AsIs(part)
    if source.form is not None and source.measured_form is not None:
        return RelativeRotation(part, source.form, source.measured_form)
    return RelativePart(part) if option == RELATIVE else AbsolutePart(part)
