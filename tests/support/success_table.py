"""The table and the plot of a page from files of success rates, of BabyAI or of the peers: a page generator.

python -m success_table FILE.json … [PLOT.svg]      # with this folder on the path
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from ttm.sim.results import Rate
from ttm.training.console import write_given
from ttm.training.study.common import percent
from ttm.training.study.minigrid_study import draw_panels
from ttm.training.study.peers import NAMES


def _panels(path: Path) -> dict[str, dict[str, Rate]]:
    """Return the rates of a file: title of a panel -> core or policy -> rate."""
    found = json.loads(path.read_text())
    if isinstance(found, list):
        return {
            each["title"]: {
                core: Rate(n, each["episodes"]) for core, n in each["successes"].items()
            }
            for each in found
        }
    outcomes: dict[str, dict[str, str]] = {}
    for policy, each in product(NAMES, found["choices"]):
        if each["variant"] == policy:  # of all seeds
            of = outcomes.setdefault(each["task"], {})
            of[policy] = of.get(policy, "") + each["each"]
    return {
        task: {policy: Rate(each.count("1"), len(each)) for policy, each in of.items()}
        for task, of in sorted(outcomes.items())
        if f"{task}, choice" not in outcomes
    }


def main(arguments: Sequence[str]) -> None:
    """Print panels as a Markdown table, and draw them if the last argument is no JSON file.

    arguments: JSON files, each [{"title": str, "episodes": int, "successes": {core: int}}] or the
    figures.json of `ttm study peers`, then perhaps an SVG for the plot.
    """
    files = [Path(argument) for argument in arguments if argument.endswith(".json")]
    panels = {title: rates for path in files for title, rates in _panels(path).items()}
    print(f"| {' | '.join(['in %', *panels])} |\n|{' --- |' * (len(panels) + 1)}")
    for core in dict.fromkeys(core for rates in panels.values() for core in rates):
        cells = (percent(of[core], 0) if core in of else "" for of in panels.values())
        print(f"| {' | '.join([f'`{core}`', *cells])} |".replace(" to ", "\N{EN DASH}"))
    if len(files) < len(arguments):
        write_given(Path(arguments[-1]), draw_panels(panels), "--plot")


if __name__ == "__main__":
    main(sys.argv[1:])
