"""The table and the plot of a page from files of success rates, such as those of BabyAI: a page generator.

python -m success_table FILE.json … [PLOT.svg]      # with this folder on the path
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ttm.sim.results import Rate
from ttm.training.console import write_given
from ttm.training.study.common import percent
from ttm.training.study.minigrid_study import draw_panels


def main(arguments: Sequence[str]) -> None:
    """Print panels as a Markdown table, and draw them if the last argument is no JSON file.

    arguments: JSON files, each [{"title": str, "episodes": int, "successes": {core: int}}], then
    perhaps an SVG for the plot.
    """
    files = [Path(argument) for argument in arguments if argument.endswith(".json")]
    panels = {
        panel["title"]: {core: Rate(n, panel["episodes"]) for core, n in panel["successes"].items()}
        for path in files
        for panel in json.loads(path.read_text())
    }
    print(f"| {' | '.join(['core', *panels])} |\n|{' --- |' * (len(panels) + 1)}")
    for core in dict.fromkeys(core for rates in panels.values() for core in rates):
        cells = (percent(of[core], unit=" %") if core in of else "" for of in panels.values())
        print(f"| {' | '.join([f'`{core}`', *cells])} |")
    if len(files) < len(arguments):
        write_given(Path(arguments[-1]), draw_panels(panels), "--plot")


if __name__ == "__main__":
    main(sys.argv[1:])
