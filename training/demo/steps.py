"""The steps of the demo: what is printed about each, and what the report says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ttm.sim.evaluation.pages.report import Fact


class Steps:
    """Numbers the steps, and times them. `facts` are their rows in the report."""

    def __init__(self, count: int) -> None:
        """count: the number of steps that will be taken."""
        self.facts: list[Fact] = []
        self._count = count
        self._taken = 0
        self._finding = ""

    @contextmanager
    def step(self, name: str, finding: str = "") -> Iterator[None]:
        """Print a heading and the time of a step, and add it to the report.

        finding: what the step does or found; `found` replaces it.
        """
        self._finding = finding
        self._taken += 1
        heading = f"\n[{self._taken}/{self._count}] {name}" + (f": {finding}" if finding else "")
        print(heading, flush=True)
        begun_s = time.monotonic()
        yield
        seconds = time.monotonic() - begun_s
        self.facts.append(Fact(name, self._finding, seconds))
        print(f"  {seconds:.0f} s", flush=True)

    def found(self, finding: str) -> None:
        """Set what the report says about the current step."""
        self._finding = finding

    def note(self, name: str, finding: str, seconds: float | None = None) -> None:
        """Print a line that belongs to no step, and add it to the report."""
        print(f"\n{name}: {finding}", flush=True)
        self.facts.append(Fact(name, finding, seconds))
