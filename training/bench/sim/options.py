"""The options of `ttm bench sim`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ttm.policy.checks import options, require_at_least, require_some
from ttm.sim.tasks.table import TASK_METAVAR

TASKS = arg(
    metavar=f"{TASK_METAVAR} ...",
    help="Tasks that are timed, or words for several: all for the skills, memory for that suite.",
)


@dataclass(frozen=True)
class SimOptions:
    """Which episodes are timed."""

    tasks: Annotated[tuple[str, ...], TASKS] = ("pick", "open_drawer", "side_shown")
    gap: int = 15
    """Ticks for which memory tasks hide their cue."""
    episodes: int = 10
    """Episodes of each task; figures are medians over them. Each runs twice, drawn in two ways."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "tasks"))
        require_at_least(1, options(self, "episodes", "gap"))
