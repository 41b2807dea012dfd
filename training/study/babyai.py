"""`ttm study babyai`: which memory learns a level of BabyAI from its bot?

BabyAI (Chevalier-Boisvert et al. 2019) is a set of grid worlds with an instruction in English.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot
from rich.table import Table

from ttm.policy.errors import UserError
from ttm.sim.results import wilson_interval
from ttm.training.console import compact_table
from ttm.training.study.minigrid import VIEW, GaveUp, MinigridEnvironment, MinigridView
from ttm.training.study.minigrid_study import Comparison, CoreResult, Effort, MinigridStudy

LONGEST_PLANNING = 100
"""How often the bot may read its plan within one tick. On levels from GoToLocal to BossLevel it
needs up to 9 reads; on some seeds (Unlock 63, GoToImpUnlock 6 and 14) it adds sub-goals and removes
them again without end."""


class PlanningTooLong(Exception):
    """Raised when the bot has read its plan too often for one action."""


class BoundedPlan(list[Any]):
    """The bot's stack of sub-goals, which counts how often its items are read.

    A limit on the reads stops the bot at the same place in every run; a limit on the time would
    not.
    """

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        """Count the read. Raises `PlanningTooLong` if `reads` exceeds `LONGEST_PLANNING`."""
        self.reads += 1
        if self.reads > LONGEST_PLANNING:
            raise PlanningTooLong
        return super().__getitem__(index)


class BoundedBot(BabyAIBot):
    """minigrid's bot, which gives up instead of planning without end.

    Its actions are those of the original; two of its methods are faster.
    """

    def __init__(self, environment: MinigridEnvironment) -> None:
        """environment: must have been reset."""
        super().__init__(environment.unwrapped)
        self.stack: BoundedPlan = BoundedPlan(self.stack)
        self._image = np.zeros((VIEW, VIEW, 3), np.uint8)

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """See `Expert`. Raises `GaveUp` if the bot does not stop planning, or raises an error."""
        self.stack.reads = 0
        self._image = view.image
        try:
            return int(self.replan(previous_action))
        except Exception as error:  # the bot gives up by assertions and by errors of many kinds
            raise GaveUp from error

    def _process_obs(self) -> None:
        """Mark the visible tiles of the map from the view, which the original renders again."""
        world = self.mission.unwrapped
        across, ahead = np.nonzero(self._image[..., 0])  # object 0: not visible
        forward, right = (
            np.asarray(vector)[:, None] for vector in (world.dir_vec, world.right_vec)
        )
        corner = np.asarray(world.agent_pos)[:, None] + forward * (VIEW - 1) - right * (VIEW // 2)
        x, y = corner - forward * ahead + right * across
        inside = (x >= 0) & (x < world.width) & (y >= 0) & (y < world.height)
        self.vis_mask[x[inside], y[inside]] = True

    def _breadth_first_search(
        self, initial_states: Sequence[Any], accept_fn: Callable[..., bool], ignore_blockers: bool
    ) -> tuple[Any, Any, dict[Any, Any]]:
        """Search as the original does, without its copy of the whole queue at every step."""
        queue: deque[tuple[Any, Any]] = deque((state, None) for state in initial_states)
        grid = self.mission.unwrapped.grid
        came_from: dict[Any, Any] = {}
        while queue:
            (i, j, di, dj), before = queue.popleft()
            if (i, j) in came_from:
                continue
            came_from[i, j] = before
            cell = grid.get(i, j)
            if accept_fn((i, j), cell):
                return _path((i, j), came_from), (i, j), came_from
            if not self.vis_mask[i, j] or not _passable(cell, ignore_blockers):
                continue
            # The tile that is reached without a turn comes first.
            for k, m in ((di, dj), (dj, di), (-dj, -di), (-di, -dj)):
                queue.append(((i + k, j + m, k, m), (i, j)))
        return None, None, came_from


def _passable(cell: Any, ignore_blockers: bool) -> bool:
    """Return whether the search goes on from this tile; None is an empty one."""
    if cell is None:
        return True
    if cell.type == "wall":
        return False
    if cell.type == "door":
        return bool(cell.is_open)
    return ignore_blockers


def _path(end: Any, came_from: dict[Any, Any]) -> list[Any]:
    """Return the places from `end` back to where the search began."""
    path = []
    place = end
    while place:
        path.append(place)
        place = came_from[place]
    return path


PREFIX = "BabyAI-"


def environment_id(level: str) -> str:
    """Return gymnasium's id of a level, the newest version: `GoToLocal` -> `BabyAI-GoToLocal-v0`.

    Raises `UserError` with the most similar names if there is no such level.
    """
    ids = sorted(name for name in gymnasium.registry if name.startswith(PREFIX))
    levels = {name.removeprefix(PREFIX).rpartition("-v")[0]: name for name in ids}
    if level not in levels:
        near = difflib.get_close_matches(level, levels, n=3, cutoff=0.3)
        some = f"the nearest are {', '.join(near)}" if near else f"there are {', '.join(levels)}"
        raise UserError(f"--level is '{level}', which BabyAI does not have; {some}")
    return levels[level]


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "GoToLocal": Effort(50_000, 1_500, 1_024),
        "GoToSeq": Effort(20_000, 1_600, 2_048),
        "GoToSeqS5R2": Effort(40_000, 2_000, 2_048),
    }
)
"""Level -> effort by default."""
OTHER_LEVELS = Effort(10_000, 2_000, 2_048)
"""The default effort for levels that are not in `EFFORTS`."""

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "best": "Acting by the highest score",
        "drawn": "Acting by drawn actions, which helps a policy out of going round in circles",
    }
)
"""How a policy acts -> title of its table."""
COLUMNS = ("core", "parameters", "success\n%", "95 % interval", "p", "ticks", "s")


@dataclass(frozen=True)
class StudyBabyaiCommand(MinigridStudy):
    """Clone the bot of a BabyAI level with every core, and count successes in new episodes.

    Needs minigrid: pip install 'ttm-policy-stack[babyai]'. All cores have the same number of parameters
    within one per cent, learn from the same demonstrations in the same batches, and train for the
    same number of steps. Demonstrations and results are kept under --cache and are not made again.
    Several of these commands may run at the same time, each for other cores.
    """

    level: str = "GoToLocal"
    """BabyAI's name without BabyAI- and -v0. GoToSeq needs a memory, GoToLocal does not."""
    demonstrations: int | None = None
    """Episodes to learn from.
    Default: 50,000 for GoToLocal, 20,000 for GoToSeq, 40,000 for GoToSeqS5R2, else 10,000."""
    steps: int | None = None
    """Training steps of every core. Default: 1,500 for GoToLocal, 1,600 for GoToSeq, else 2,000."""
    cache: Path = Path("runs/babyai")
    """Folder in which demonstrations and results are kept."""

    notes = """\
The intervals are Wilson's at 95 %, over the episodes; they do not say how much another training of
the same core would differ. p: McNemar's exact test against the core without memory, on the same
episodes. ticks: mean length of an episode, failed ones included. s: seconds of training."""

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return EFFORTS.get(self.level, OTHER_LEVELS)

    def environment(self) -> MinigridEnvironment:
        """Return a new environment of the level. Raises `UserError` if there is no such level."""
        return MinigridEnvironment(environment_id(self.level))

    def expert(self, environment: MinigridEnvironment) -> BoundedBot:
        """Return a bot for the episode that has just begun in `environment`."""
        return BoundedBot(environment)

    def heading(self, found: Comparison) -> str:
        """Return the text above the tables: demonstrations, training, and evaluation."""
        settings, shown = found.settings, found.demonstrations
        count = len(shown)
        return (
            f"BabyAI {settings.level} (minigrid {settings.minigrid}): cloning of its bot, "
            f"{settings.episodes} episodes\n"
            f"{count:,} demonstrations, mean length {shown.lengths.mean():.1f}; "
            f"the bot solves {count:,} of {count + len(shown.skipped):,} seeds; "
            f"one core records {shown.per_second:.0f} a second\n"
            f"{settings.steps:,} steps of {settings.batch_ticks:,} ticks, width {settings.width}, "
            f"seed {settings.seed}"
        )

    def table(self, results: Sequence[CoreResult], way: str) -> Table:
        """Return a table with one row for each core, the best first."""
        table = compact_table(TITLES[way], COLUMNS)
        for result in sorted(results, key=lambda result: -result.acting[way].rate):
            acting = result.acting[way]
            low, high = wilson_interval(sum(acting.success), len(acting.success))
            table.add_row(
                result.core,
                f"{result.parameters:,}",
                f"{100 * acting.rate:.1f}",
                f"{100 * low:.1f} to {100 * high:.1f}",
                result.p_value(results, way),
                f"{fmean(acting.lengths):.1f}",
                f"{result.training_s:.0f}",
            )
        return table

    def figures(self, found: Comparison) -> dict[str, Any]:
        """Return all figures as plain data, with the results of every episode."""
        shown = found.demonstrations
        return {
            "settings": asdict(found.settings),
            "bot": {
                "demonstrations": len(shown),
                "mean_length": float(shown.lengths.mean()),
                "per_second_and_core": shown.per_second,
                "seeds_not_solved": shown.skipped.tolist(),
            },
            "results": [asdict(result) for result in found.results],
        }
