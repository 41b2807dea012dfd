"""What a Token Turing Machine read and wrote at one tick, down to the cells of the camera image.

The summarisers of the machine (Ryoo et al. 2022, eq. 1 and 3) are weighted sums, so their weights
say where every token that was read, and every token that was written, came from. Weights count tokens
and not their values: a memory token that is still zero contributes nothing, whatever its weight.
`ttm.policy.run.attention_recorder` records these weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError

Floats = npt.NDArray[np.float32]
Which = Literal["read", "write"]

MEMORY, OUTPUTS = "memory", "outputs"
"""The names of the two sources of tokens that are not inputs.

They are the memory of the last tick and the processed tokens.
"""


@dataclass(frozen=True, eq=False)
class MemoryAttention:
    """Where the r tokens read at a tick, and the m memory tokens written after it, came from."""

    memory_size: int
    """m."""
    read: Floats
    """(r, m + N): the weights of each token that was read on [memory ‖ inputs]; rows sum to one.

    With read=attend they are those of the attention, without what the memory gives by its queries.
    """
    write: Floats | None
    """(m, m + N + r): the weights of each new memory token on [memory ‖ inputs ‖ outputs].

    Rows sum to one. Concatenation moves whole tokens, so its weights are 0 or 1. Gates count by
    their mean over the channels. A write that does not see the outputs has no columns for them.
    Erase-and-add is no weighted sum, and has None.
    """
    slots: Floats | None
    """(T, m), for erase-and-add alone: the slots to which each of its T vectors went; rows sum to one."""
    sources: Mapping[str, slice]
    """The sources of the N inputs; see `Policy.token_sources`."""
    camera_weights: Mapping[str, Floats]
    """Camera -> (h, w, K): the weights of its K tokens on the cells of the feature map.

    The weights of each token sum to one.
    """

    def read_shares(self) -> dict[str, float]:
        """Return source -> its share of what was read, as the mean over the r tokens.

        The sources are "memory" and those of `sources`. The shares sum to one.
        """
        return self._shares(self.read)

    def write_shares(self) -> dict[str, float]:
        """Return source -> its share of the new memory.

        The sources are "memory", those of `sources`, and "outputs". The shares sum to one.
        """
        return self._shares(self._written)

    @property
    def kept(self) -> Floats:
        """The portion of old memory in each new memory token, (m,)."""
        kept: Floats = self._written[:, : self.memory_size].sum(axis=1)
        return kept

    def image_map(self, camera: str, which: Which = "read") -> Floats:
        """Return how much of each cell of a camera's feature map was read or written, (h, w).

        The weights are followed through the tokens of the camera and sum to the camera's share. What
        the outputs took from the image, or the memory from earlier images, is not included. For the
        place of a cell in the image see `cell_centres`.
        """
        if camera not in self.camera_weights:
            known = ", ".join(self.camera_weights)
            raise UserError(f"there is no map of '{camera}'; this policy has the cameras: {known}")
        weights = self.read if which == "read" else self._written
        tokens = self._inputs(weights)[:, self.sources[camera]].mean(axis=0)  # (K,)
        cells: Floats = self.camera_weights[camera] @ tokens
        return cells

    @property
    def _written(self) -> Floats:
        if self.write is None:
            raise UserError(
                "this policy writes its memory by erase-and-add, which is no weighted sum of tokens "
                "and has no write attention; `slots` says where it wrote, and reading can be shown"
            )
        return self.write

    def _inputs(self, weights: Floats) -> Floats:
        return weights[:, self.memory_size :]

    def _shares(self, weights: Floats) -> dict[str, float]:
        mean = weights.mean(axis=0)
        inputs = mean[self.memory_size :]
        shares = {MEMORY: float(mean[: self.memory_size].sum())}
        shares |= {name: float(inputs[where].sum()) for name, where in self.sources.items()}
        after = max(where.stop for where in self.sources.values())
        return shares | ({OUTPUTS: float(inputs[after:].sum())} if len(inputs) > after else {})


def cell_centres(pixels: int, cells: int) -> npt.NDArray[np.float64]:
    """Return the centres of the receptive fields of the cells along one axis of `pixels`, (cells,).

    The unit is pixels from the edge. Receptive fields are several cells wide. EfficientNet pads as
    TensorFlow does: a stride of two on an even size pads at the end alone, which moves all later
    layers by half a step. So the cells of a map of even size look at the far corners of the squares
    into which they divide the image.
    """
    size, stride, shift = pixels, 1, 0
    while size > cells:
        shift += stride * (size % 2 == 0)
        size, stride = -(-size // 2), 2 * stride
    centres: npt.NDArray[np.float64] = np.arange(cells, dtype=np.float64) * stride + shift + 0.5
    return centres
