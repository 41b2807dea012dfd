"""Actions relative to what is measured at the tick that predicts them.

A network that is to command positions learns more easily how far to go from where it is: the
differences are small and alike wherever the robot stands. All actions of a chunk are relative to the
values that are measured at the chunk's first tick, as in the Universal Manipulation Interface (Chi et
al. 2024, section IV-C, "relative trajectory"), so that no error adds up along a chunk.

Only the network's predictions are relative. Episodes, previous actions and commands stay in the
robot's own form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.network.relative.reference import references_of
from ttm.policy.spec import PolicySpec


class RelativeActions:
    """Changes actions between the robot's form and that of the network.

    Parameters
    ----------
    spec
        What is measured and commanded.
    texts
        For each relative part, what `Reference.parsed` reads. Raises `UserError` if one does not fit
        the spec.
    """

    def __init__(self, spec: PolicySpec, texts: Sequence[str]) -> None:
        self._spec = spec
        self._of_part = references_of(spec, texts)

    def __bool__(self) -> bool:
        """Return whether any part is relative."""
        return bool(self._of_part)

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: True where the dimension is relative."""
        parts = self._spec.actions
        return np.repeat([part.name in self._of_part for part in parts], [p.size for p in parts])

    def reference(self, proprioception: Mapping[str, Tensor]) -> Tensor:
        """Return what is added to the network's actions, (..., A): 0 where they are not relative.

        proprioception: name -> (..., K), in the units of the spec.
        """
        like = next(iter(proprioception.values()))
        pieces = []
        for part in self._spec.actions:
            if part.name in self._of_part:
                name, values = self._of_part[part.name]
                pieces.append(proprioception[name][..., values])
            else:
                pieces.append(like.new_zeros(*like.shape[:-1], part.size))
        return torch.cat(pieces, dim=-1)
