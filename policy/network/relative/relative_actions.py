"""Actions that the network predicts in another form than the robot takes them.

Relative parts: the robot takes positions or orientations to go to, and the network predicts how far to
go from where it is. The differences are small, and alike wherever the robot stands. All actions of a chunk
are relative to the values that are measured at the chunk's first tick, as in the Universal Manipulation
Interface (Chi et al. 2024, "relative trajectory"), so that no error adds up along a chunk.

Absolute parts, the other way round: the robot takes displacements, and the network predicts the position
to be at afterwards. The command is how far that is from what is measured at the tick that carries it
out, which may come after that of the prediction.

Episodes, previous actions and commands stay in the robot's own form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.errors import UserError
from ttm.policy.network.relative.forms import WANTED
from ttm.policy.network.relative.part_forms import (
    NUM_COLUMN_VALUES,
    AbsolutePart,
    AsIs,
    RelativePart,
    RelativeRotation,
)
from ttm.policy.network.relative.reference import RELATIVE, Reference, Source, parsed_once
from ttm.policy.spec import ActionPart, PolicySpec

LARGEST_FAULT = 0.05
"""What values may differ from being a rotation; see `deviation`."""
Measured = Mapping[str, Tensor]
"""Proprioception: name -> (..., K), in the units of the spec."""


class RelativeActions:
    """What turns actions from the robot's form, (..., A), into that of the network, (..., P), and back.

    Plans are what is kept from tick to tick, (..., P); see `AsIs` for the three forms. A and P differ
    where there are rotations. Leading dimensions of all arguments must fit each other.

    Parameters
    ----------
    spec
        What is measured and commanded.
    relative, absolute
        For each such part, what `Reference.parsed` reads. Raises `UserError` if one does not fit the
        spec.
    """

    def __init__(
        self, spec: PolicySpec, relative: Sequence[str], absolute: Sequence[str] = ()
    ) -> None:
        references = {each.part: each for each in parsed_once(relative, absolute)}
        self._spec = spec
        self._sources = {name: (each.option, each.of(spec)) for name, each in references.items()}
        self.references: Mapping[str, Reference] = references
        """Part -> what was said of it, for the parts that are predicted in another form."""
        self._parts = [_part_form(part, *self._sources.get(part.name, ())) for part in spec.actions]
        self.predicted_spec = replace(
            spec, actions=tuple(part.predicted_part for part in self._parts)
        )
        """The spec with the parts of the action in the form that is predicted: P values."""
        self._sizes = [part.size for part in spec.actions]
        self._predicted_sizes = [part.size for part in self.predicted_spec.actions]

    def __bool__(self) -> bool:
        """Return whether any part is predicted in another form."""
        return bool(self._sources)

    def __eq__(self, other: object) -> bool:
        """Return whether the same parts are predicted in the same form."""
        if not isinstance(other, RelativeActions):
            return NotImplemented
        return self._sources == other._sources

    __hash__ = None  # type: ignore[assignment]

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(P,) bool: True where the dimension is predicted in another form."""
        return self._repeated([type(part) is not AsIs for part in self._parts])

    @property
    def commands_differ(self) -> npt.NDArray[np.bool_]:
        """(P,) bool: True in the parts whose commands differ from their plans."""
        return self._repeated([part.commands_differ for part in self._parts])

    def averageable(self, commands: Tensor) -> Tensor:
        """Return commands (..., A) in the form of plans, (..., P), of which means can be taken."""
        pieces = torch.split(commands, self._sizes, dim=-1)
        found = [part.averageable(x) for part, x in zip(self._parts, pieces, strict=True)]
        return torch.cat(found, dim=-1)

    def plan(self, averaged: Tensor, measured: Measured) -> Tensor:
        """Return the plans of means of what `averageable` returns, (..., P) each.

        measured: at the ticks that carry them out.
        """
        return self._each(averaged, measured, lambda part, x, now: part.plan(x, now))

    def predicted(self, plans: Tensor, measured: Measured) -> Tensor:
        """Return what is to be predicted, (..., P). measured: at the ticks of the prediction."""
        return self._each(plans, measured, lambda part, x, now: part.predicted(x, now))

    def planned(self, predicted: Tensor, measured: Measured) -> Tensor:
        """Return the plans of what is predicted, (..., P). measured: at the ticks of the prediction."""
        return self._each(predicted, measured, lambda part, x, now: part.planned(x, now))

    def command(self, plans: Tensor, measured: Measured, previous: Tensor | None = None) -> Tensor:
        """Return the commands of plans, (..., A).

        measured: at the ticks that carry them out. previous: the commands before, (..., A).
        """
        slices = self._spec.action_slices

        def command(part: AsIs, plan: Tensor, now: Tensor) -> Tensor:
            before = None if previous is None else previous[..., slices[part.predicted_part.name]]
            return part.command(plan, now, before)

        return self._each(plans, measured, command)

    def nearest(self, commands: Tensor, near: Tensor) -> Tensor:
        """Return what commands the same as `commands` and is nearest to `near`, (..., A) each."""
        pieces = zip(
            self._parts,
            torch.split(commands, self._sizes, dim=-1),
            torch.split(near, self._sizes, dim=-1),
            strict=True,
        )
        return torch.cat([part.nearest(x, to) for part, x, to in pieces], dim=-1)

    def require_rotations(self, commands: Tensor, measured: Measured, where: str) -> None:
        """Raise `UserError`, which begins with `where`, for values that no rotation is written with.

        commands: (ticks, A); measured: name -> (ticks, K).
        """
        for part in self._parts:
            if not isinstance(part, RelativeRotation):
                continue
            name = part.predicted_part.name
            told = commands[:, self._spec.action_slices[name]]
            for who, form, fault in part.faults(told, self._measured(name, measured)):
                tick = int(fault.argmax())
                if not fault[tick] <= LARGEST_FAULT:
                    raise UserError(
                        f"{where}: {who} is not written as {form} at tick {tick}, {WANTED[form.rotation]}; "
                        f"correct {RELATIVE} {self.references[name]}, or leave the episode out by a mask"
                    )

    def even(self, spread: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return standard deviations (P,) in which all values of a rotation have the greatest of theirs.

        A turn about one axis then counts as much as about another, and the values that hardly change with
        small turns, such as the first of the first column, do not count for more.
        """
        spread, end = spread.copy(), 0
        for part in self._parts:
            end += part.predicted_part.size
            if isinstance(part, RelativeRotation):
                spread[end - NUM_COLUMN_VALUES : end] = spread[end - NUM_COLUMN_VALUES : end].max()
        return spread

    def _repeated(self, of_parts: Sequence[bool]) -> npt.NDArray[np.bool_]:
        return np.repeat(np.array(of_parts, bool), self._predicted_sizes)

    def _each(
        self, values: Tensor, measured: Measured, change: Callable[[AsIs, Tensor, Tensor], Tensor]
    ) -> Tensor:
        pieces = []
        for part, x in zip(
            self._parts, torch.split(values, self._predicted_sizes, dim=-1), strict=True
        ):
            name = part.predicted_part.name
            changed = name in self._sources
            pieces.append(change(part, x, self._measured(name, measured)) if changed else x)
        return torch.cat(pieces, dim=-1)

    def _measured(self, part: str, measured: Measured) -> Tensor:
        """Return the values that measure a part that is predicted in another form, (..., K)."""
        source = self._sources[part][1]
        return torch.cat([measured[name] for name in source.vectors], dim=-1)[..., source.values]


def _part_form(part: ActionPart, option: str | None = None, source: Source | None = None) -> AsIs:
    if source is None:
        return AsIs(part)
    if source.form is not None:
        return RelativeRotation(part, source)
    return RelativePart(part) if option == RELATIVE else AbsolutePart(part)
