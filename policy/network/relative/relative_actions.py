"""Actions that the network predicts in another form than the robot takes them.

Relative parts: the robot takes positions to go to, and the network predicts how far to go from where
it is. The differences are small, and alike wherever the robot stands. All actions of a chunk are relative
to the values that are measured at the chunk's first tick, as in the Universal Manipulation Interface (Chi
et al. 2024, "relative trajectory"), so that no error adds up along a chunk.

Absolute parts, the other way round: the robot takes displacements, and the network predicts the position
to be at afterwards. The command is how far that is from what is measured at the tick that carries it
out, which may come after that of the prediction.

Episodes, previous actions and commands stay in the robot's own form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.network.relative.reference import RELATIVE, parsed_once
from ttm.policy.spec import PolicySpec

Measured = Mapping[str, Tensor]
"""Proprioception: name -> (..., K), in the units of the spec."""


class RelativeActions:
    """What turns actions from the robot's form into that of the network, and back.

    Plans are what is kept from tick to tick: predictions with `start` added. Commands are plans
    without `present`.

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
        references = parsed_once(relative, absolute)
        found = {each.part: each.of(spec) for each in references}
        self._spec = spec
        self._relative = {r.part: found[r.part] for r in references if r.option == RELATIVE}
        self._absolute = {r.part: found[r.part] for r in references if r.option != RELATIVE}

    def __bool__(self) -> bool:
        """Return whether any part is predicted in another form."""
        return bool(self._relative or self._absolute)

    def __eq__(self, other: object) -> bool:
        """Return whether the same parts are predicted in the same form."""
        if not isinstance(other, RelativeActions):
            return NotImplemented
        return (self._relative, self._absolute) == (other._relative, other._absolute)

    __hash__ = None  # type: ignore[assignment]

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: True where the dimension is predicted in another form."""
        return self._mask({**self._relative, **self._absolute})

    @property
    def absolute_mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: True where the dimension is predicted as a position."""
        return self._mask(self._absolute)

    def start(self, measured: Measured) -> Tensor:
        """Return what relative parts start from, (..., A); 0 elsewhere."""
        return self._values(self._relative, measured)

    def present(self, measured: Measured) -> Tensor:
        """Return the present position of absolute parts, (..., A); 0 elsewhere."""
        return self._values(self._absolute, measured)

    def _mask(self, of_part: Mapping[str, tuple[str, slice]]) -> npt.NDArray[np.bool_]:
        parts = self._spec.actions
        return np.repeat([part.name in of_part for part in parts], [part.size for part in parts])

    def _values(self, of_part: Mapping[str, tuple[str, slice]], measured: Measured) -> Tensor:
        like = next(iter(measured.values()))
        pieces = []
        for part in self._spec.actions:
            if part.name in of_part:
                name, values = of_part[part.name]
                pieces.append(measured[name][..., values])
            else:
                pieces.append(like.new_zeros(*like.shape[:-1], part.size))
        return torch.cat(pieces, dim=-1)
