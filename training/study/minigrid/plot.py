"""Draws the success rates of a study with their intervals.

`python -m ttm.training.study.minigrid.plot FIGURES.json PLOT.svg` draws panels from a file that lists
them: [{"title": str, "episodes": int, "successes": {core: int}}].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from ttm.policy.errors import UserError
from ttm.sim.evaluation.intervals import wilson_interval
from ttm.training.study.minigrid.results import CoreResult
from ttm.training.study.minigrid.significance import BASELINE

WAYS = {"best": "best action", "drawn": "drawn actions"}
COLOUR, BASELINE_COLOUR = "#1f5a99", "#b0452c"


@dataclass(frozen=True)
class Panel:
    """One part of the plot: the successes of each core in the same episodes."""

    title: str
    episodes: int
    successes: Mapping[str, int]


def panels_of(level: str, ways: Sequence[str], results: Sequence[CoreResult]) -> list[Panel]:
    """Return a panel for each way of acting, "best" or "drawn"."""
    return [
        Panel(
            f"{level}, {WAYS[way]}",
            len(results[0].acting[way].success),
            {result.core: sum(result.acting[way].success) for result in results},
        )
        for way in ways
    ]


def read_panels(path: Path) -> list[Panel]:
    """Read panels from a JSON file."""
    return [Panel(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def write_plot(path: Path, panels: Sequence[Panel]) -> None:
    """Draw the panels side by side to an SVG or PNG file.

    The cores are sorted by their rates in the first panel.

    Raises `UserError` if the file cannot be written.
    """
    cores = sorted(panels[0].successes, key=lambda core: panels[0].successes[core])
    figure = Figure(figsize=(4.2 * len(panels), 0.8 + 0.34 * len(cores)), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for place, core in enumerate(cores):
            rate = panel.successes[core] / panel.episodes
            low, high = wilson_interval(panel.successes[core], panel.episodes)
            colour = BASELINE_COLOUR if core == BASELINE else COLOUR
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2)
            axes.plot(100 * rate, place, "o", color=colour, markersize=6)
            axes.annotate(
                f"{100 * rate:.1f}",
                (100 * rate, place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colour,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
        if BASELINE in panel.successes:
            rate = 100 * panel.successes[BASELINE] / panel.episodes
            axes.axvline(rate, color=BASELINE_COLOUR, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(cores)), cores if number == 1 else [""] * len(cores))
        axes.set_ylim(-0.5, len(cores) - 0.3)
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.set_xlabel("success in %, with Wilson's 95 % interval", fontsize=9)
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "ttm"}):
            # Without a date, the same figures give the same file.
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=110, metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --plot") from error


if __name__ == "__main__":
    write_plot(Path(sys.argv[2]), read_panels(Path(sys.argv[1])))
