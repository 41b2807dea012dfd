"""The forms in which the network may predict a part of the action.

Three forms of an action follow each other. What is predicted becomes a plan by what is measured at the
tick of the prediction, and the plan becomes a command by what is measured at the tick that carries it
out. A plan may be averaged with other plans in between.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ttm.policy.network.relative.forms import QUATERNIONS, Form
from ttm.policy.network.relative.reference import Source
from ttm.policy.network.relative.rotations import (
    deviation,
    matrices,
    nearest,
    orthonormal,
    product,
    turned,
    two_columns,
    written,
)
from ttm.policy.spec import ActionPart

NUM_COLUMN_VALUES = 6
"""The values of a predicted or planned rotation."""


class AsIs:
    """A part that is predicted as the robot takes it.

    Arguments are (..., n) each. `measured` is what the reference of the part measures.
    """

    commands_differ = False
    """Whether commands differ from plans."""

    def __init__(self, part: ActionPart) -> None:
        self.predicted_part = part
        """The part in the form that is predicted, which is also that of plans."""

    def averageable(self, commands: Tensor) -> Tensor:
        """Return commands in the form of plans, of which means can be taken."""
        return commands

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        """Return the plan of a mean of what `averageable` returns; see `command` for `measured`."""
        return averaged

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        """Return the command of a plan, which may be a mean of several.

        measured: at the tick that carries it out. previous: the command before it; None for none.
        """
        return plan

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        """Return what is to be predicted for `plan`. measured: at the tick of the prediction."""
        return plan

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        """Return the plan of what is predicted. measured: at the tick of the prediction."""
        return predicted

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        """Return what commands the same as `commands` and is nearest to `near`."""
        return commands


class RelativePart(AsIs):
    """A position to go to, which is predicted as how far to go."""

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.predicted`."""
        return plan - measured

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.planned`."""
        return predicted + measured


class AbsolutePart(AsIs):
    """A displacement, which is predicted as the position to be at afterwards."""

    commands_differ = True

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.plan`."""
        return averaged + measured

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        """See `AsIs.command`."""
        return plan - measured


class RelativeRotation(AsIs):
    """An orientation or a pose to go to, T, which is predicted as inv(T_measured) T.

    A position is thus predicted in the measured frame. This is the relative pose of the Universal
    Manipulation Interface (Chi et al. 2024). Rotations are planned and predicted as two columns of
    their matrices, since these six numbers are continuous (Zhou et al. 2019).
    """

    commands_differ = True

    def __init__(self, part: ActionPart, source: Source) -> None:
        assert source.form is not None, "a rotation has a form"
        assert source.measured_form is not None, "a rotation has a form"
        self.form: Form = source.form
        self._measured_form: Form = source.measured_form
        self._split = self.form.num_positions
        super().__init__(ActionPart(part.name, self._split + NUM_COLUMN_VALUES, part.unit))

    def averageable(self, commands: Tensor) -> Tensor:
        """See `AsIs.averageable`."""
        return self._with_position(commands, two_columns(self._rotations(commands, self.form)))

    def plan(self, averaged: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.plan`."""
        return self._with_position(averaged, two_columns(orthonormal(averaged[..., self._split :])))

    def command(self, plan: Tensor, measured: Tensor, previous: Tensor | None) -> Tensor:
        """See `AsIs.command`. Of a quaternion's signs that nearest to the previous one is taken.

        Without a previous one it is that nearest to what is measured.
        """
        form = self.form.rotation
        rotations = written(orthonormal(plan[..., self._split :]), form)
        if form in QUATERNIONS:
            near = self._measured_near(measured) if previous is None else previous
            rotations = nearest(rotations, near[..., self._split :], form)
        return self._with_position(plan, rotations)

    def predicted(self, plan: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.predicted`."""
        inverse = self._rotations(measured, self._measured_form).mT
        rotations = product(inverse, orthonormal(plan[..., self._split :]))
        if not self._split:
            return two_columns(rotations)
        moved = turned(plan[..., : self._split] - measured[..., : self._split], inverse)
        return torch.cat([moved, two_columns(rotations)], dim=-1)

    def planned(self, predicted: Tensor, measured: Tensor) -> Tensor:
        """See `AsIs.planned`."""
        start = self._rotations(measured, self._measured_form)
        rotations = product(start, orthonormal(predicted[..., self._split :]))
        if not self._split:
            return two_columns(rotations)
        position = measured[..., : self._split] + turned(predicted[..., : self._split], start)
        return torch.cat([position, two_columns(rotations)], dim=-1)

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        """See `AsIs.nearest`."""
        here = slice(self._split, None)
        turns = nearest(commands[..., here], near[..., here], self.form.rotation)
        return self._with_position(commands, turns)

    def faults(self, commands: Tensor, measured: Tensor) -> Iterator[tuple[str, Form, Tensor]]:
        """Yield what is written, its form, and how far the values are from being rotations, (...)."""
        name = self.predicted_part.name
        for who, form, values in (
            (name, self.form, commands),
            (f"what measures {name}", self._measured_form, measured),
        ):
            yield who, form, deviation(values[..., form.num_positions :], form.rotation)

    def _rotations(self, values: Tensor, form: Form) -> Tensor:
        return matrices(values[..., form.num_positions :], form.rotation)

    def _with_position(self, values: Tensor, rotations: Tensor) -> Tensor:
        return torch.cat([values[..., : self._split], rotations], dim=-1)

    def _measured_near(self, measured: Tensor) -> Tensor:
        """Return what is measured as the part writes it, with the sign of a measured quaternion."""
        theirs = self._measured_form.rotation
        turns = measured[..., self._measured_form.num_positions :]
        if theirs in QUATERNIONS and theirs != self.form.rotation:
            turns = turns.roll(1 if theirs == QUATERNIONS[0] else -1, dims=-1)
        elif theirs != self.form.rotation:
            turns = written(self._rotations(measured, self._measured_form), self.form.rotation)
        return self._with_position(measured, turns)
