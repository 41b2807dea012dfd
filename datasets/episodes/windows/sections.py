"""An order of windows in which those that overlap are drawn near each other, but not together."""

from __future__ import annotations

import numpy as np

from ttm.datasets.windows.shares import Integers

SECTION = 16
"""Windows of a section, at most: consecutive ones of an episode, which have most frames in common.

With windows of 8 ticks, a section of 16 has 23 frames, so that a frame is read 1.4 times for a window of
8. Longer sections would need more memory for little."""


class Sections:
    """Arranges the windows of a pass, so that a frame is needed again soon after it was read.

    Each episode is cut into sections, at other places in each pass. The sections come in random order,
    and the windows of each in random order, all one after another. This list is cut into lanes of
    equal length, `apart` × B of them with batches of B windows. Batch n takes the next window of the
    lanes of turn n modulo `apart`, of which there are B. So B × `apart` sections are open at a time, a
    batch has windows of B of them, and a section gives a window to every `apart`-th batch until it is used
    up.
    """

    def __init__(self, episodes: Integers, first_ticks: Integers, apart: int) -> None:
        """episodes, first_ticks: those of each window, (n,), of which the windows are sorted by."""
        self._episodes = np.asarray(episodes)
        self._first_ticks = np.asarray(first_ticks)
        self.apart = apart

    def arranged(self, drawn: Integers, seed: int, number: int) -> Integers:
        """Return the windows `drawn` (batches, B), in random order, in that of the sections.

        They are a function of the arguments alone. number: that of the pass.
        """
        rng = np.random.default_rng([seed, number, 0, 1])
        section = self._sections(rng)
        place = rng.permutation(section[-1] + 1)[section[drawn.ravel()]]
        in_sections = drawn.ravel()[np.argsort(place, kind="stable")]
        return in_sections[_lanes(len(drawn), drawn.shape[1], self.apart)]

    def _sections(self, rng: np.random.Generator) -> Integers:
        """Cut all episodes into sections; return the number of that of each window, (n,)."""
        shift = rng.integers(SECTION, size=self._episodes[-1] + 1)
        within = (self._first_ticks + shift[self._episodes]) // SECTION
        numbered = self._episodes * (within.max() + 1) + within
        found: Integers = np.cumsum(np.diff(numbered, prepend=numbered[:1]) != 0)
        return found


def _lanes(batches: int, size: int, apart: int) -> Integers:
    """Return the place of each window of the batches, (batches, size), in the list that is cut up."""
    batch = np.arange(batches)
    lengths = np.bincount(batch % apart, minlength=apart).repeat(size)  # of the lanes, turn by turn
    begins = (np.cumsum(lengths) - lengths).reshape(apart, size)
    places: Integers = begins[batch % apart] + (batch // apart)[:, None]
    return places
