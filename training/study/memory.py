"""Runs `ttm study memory` and prints its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from minigrid.core.constants import OBJECT_TO_IDX
from rich.table import Table
from torch import Tensor, nn

from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError, options, require_at_least
from ttm.sim.results import wilson_interval
from ttm.training.console import compact_table
from ttm.training.study.common import print_results
from ttm.training.study.minigrid import (
    ActingResult,
    CoreResult,
    MinigridEnvironment,
    MinigridPolicy,
    MinigridView,
    StudySettings,
    Vocabulary,
)
from ttm.training.study.minigrid_study import (
    NO_LOSS,
    Comparison,
    Effort,
    Method,
    MinigridOptions,
    RecallHead,
    action_loss,
    common_values,
    compare,
    p_value_against_no_memory,
    panels_of,
    write_plot,
)

# What a policy chose at the end of the corridor, told by how its episodes ended.


@dataclass(frozen=True)
class Choices:
    """How many episodes ended at an object, and at how many of them it was the matching one."""

    made: int
    right: int

    @classmethod
    def of(cls, acting: ActingResult, max_steps: int) -> Choices:
        """Return the choices in episodes of at most `max_steps` ticks.

        A Memory level ends when the agent steps to an object or when its time is up. An episode
        that failed earlier than that has therefore ended at the wrong object.
        """
        made = sum(
            success or length < max_steps
            for success, length in zip(acting.success, acting.lengths, strict=True)
        )
        return cls(made, sum(acting.success))


# An expert for MiniGrid's Memory levels, which knows where everything is.
#
# A Memory level is a room, a corridor to its right, and a crossing with an object above and one below.
# The room holds an object of one of these two kinds, the cue. The mission is to go to the object that
# matches it. The agent starts in the room or in the corridor, and faces the crossing.

LEFT, RIGHT, FORWARD = range(3)
"""Numbers of the actions that the expert takes."""
EAST, SOUTH, WEST, NORTH = range(4)
"""Directions as in `MinigridView.direction`."""
OBJECTS = tuple(OBJECT_TO_IDX[kind] for kind in ("key", "ball"))


class MemoryExpert:
    """Looks at the cue first, then goes to the matching object, by the shortest way.

    It knows the positions of agent, cue and matching object, but it does not go to the crossing
    before the cue has been in the agent's view, so that the agent can learn what it does.
    """

    def __init__(self, environment: MinigridEnvironment) -> None:
        """environment: a Memory level that has been reset."""
        self._world: Any = environment.unwrapped
        self._cue = cue_position(environment)
        self._seen = False

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """Return the action at a tick; see `Expert`."""
        self._seen = self._seen or sees(self._world, view, self._cue)
        wanted = self._way_to_the_match() if self._seen else WEST
        return turn_or_go(view.direction, wanted)

    def _way_to_the_match(self) -> int:
        """Return the direction of the next tile on the way to the matching object."""
        (x, _), (goal_x, goal_y) = self._world.agent_pos, self._world.success_pos
        if x < goal_x:
            return EAST
        return NORTH if goal_y < self._world.height // 2 else SOUTH


def cue_position(environment: MinigridEnvironment) -> tuple[int, int]:
    """Return the position of the cue, (x, y): in the room's corner, above the corridor's row."""
    return 1, environment.unwrapped.height // 2 - 1


def sees(world: Any, view: MinigridView, position: tuple[int, int]) -> bool:
    """Return whether the agent's view shows a key or a ball at a position of the map."""
    place = world.relative_coords(*position)
    return place is not None and int(view.image[place][0]) in OBJECTS


def turn_or_go(direction: int, wanted: int) -> int:
    """Return the action that leads to the tile in the direction `wanted`; half turns go left."""
    turns_right = (wanted - direction) % 4
    if turns_right == 0:
        return FORWARD
    return RIGHT if turns_right == 1 else LEFT


# MiniGrid's Memory levels (Chevalier-Boisvert et al. 2023) with their scripted expert.

REGISTERED = "MiniGrid-MemoryS7-v0"
"""Any of MiniGrid's Memory levels: they are the same class with other arguments."""
SMALLEST = 7
"""Side of the smallest map that has a room, a corridor and a crossing."""


@dataclass(frozen=True)
class MemoryLevel:
    """A Memory level of any size; see `Level`."""

    name: str
    """"MemoryS" and the side of the map; "Random" at the end draws the corridor's length."""

    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""
        found = re.fullmatch(r"MemoryS(\d+)(Random)?", self.name)
        size = int(found[1]) if found else 0
        if found is None or size < SMALLEST or size % 2 == 0:
            raise UserError(
                f"--level is '{self.name}'; give MemoryS and an odd size of {SMALLEST} or more, "
                f"with or without Random after it, such as MemoryS13 or MemoryS17Random"
            )
        return MinigridEnvironment(REGISTERED, size=size, random_length=found[2] is not None)

    def expert(self, environment: MinigridEnvironment) -> MemoryExpert:
        """Return an expert for the episode that has just begun in `environment`."""
        return MemoryExpert(environment)


# The options of `ttm study memory`.

EFFORT = Effort(4_000, 600, 1_024)
"""The effort by default, the same for all levels."""


@dataclass(frozen=True)
class MemoryOptions(MinigridOptions):
    """What `ttm study memory` asks."""

    level: str = "MemoryS13"
    """MiniGrid's name: MemoryS and the side of the map, an odd number such as 7, 9, 11, 13 or 17. With
    Random after it (MemoryS13Random) every episode has a corridor of another length."""

    demonstrations: int | None = None
    """Episodes to learn from. Default: 4,000."""

    steps: int | None = None
    """Training steps of every core. Default: 600."""

    batch_ticks: int | None = None
    """Most ticks in a batch of whole episodes. Default: 1,024."""

    recall: float = 1.0
    """Weight of a second loss without labels, for every core: its outputs must tell which kinds of
    tiles the agent has seen in the episode and does not see now. 0: the actions alone."""

    cache: Path = Path("runs/memory")
    """Folder in which demonstrations and results are kept."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range, or if minigrid is not installed."""
        super().check()
        require_at_least(0, options(self, "recall"))

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return EFFORT


# `ttm study memory`: which memory remembers an object down a corridor, in MiniGrid's Memory levels?


@dataclass(frozen=True)
class StudyMemoryCommand(MemoryOptions):
    """Clone an expert of MiniGrid's Memory levels with every core, and count right choices.

    The agent sees a key or a ball in a room, walks down a corridor, and has to go to the object of
    the same kind at its end, where the first one cannot be seen any more.

    Needs minigrid: pip install 'minigrid>=3,<4'. All cores have the same number of parameters
    within one per cent and the same first weights around them, learn from the same demonstrations in
    the same batches, and train for the same number of steps. Demonstrations and results are kept
    under --cache and are not made again. Several of these commands may run at the same time, each
    for other cores or other --core-options; the tables hold the results of all of them.
    """

    def run(self) -> int:
        """Train and evaluate the cores, print the tables, and return the exit code."""
        self.check()

        return run(self)


# The policy of `ttm study memory`, its first weights, and its loss.


class RecallingPolicy(MinigridPolicy):
    """A `MinigridPolicy` with a recall head, whose weights outside the core depend on the seed alone.

    What comes before the core is made first and does so anyway. The heads come last, after as many
    random numbers as the core needs, and are therefore drawn anew.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        """See `MinigridPolicy`. Call `torch.manual_seed` before."""
        super().__init__(config, vocabulary, width)
        with torch.random.fork_rng():
            torch.manual_seed(torch.initial_seed())
            self.head = nn.Linear(self.head.in_features, self.head.out_features)
            self.recall = RecallHead(width, len(vocabulary.codes) + 1)


def recall_and_cloning_loss(weight: float) -> Callable[..., Tensor]:
    """Return a loss for `clone`: that of the actions, and `weight` times that of the recall head."""
    return partial(_loss, weight)


def _loss(
    weight: float,
    policy: RecallingPolicy,
    sentences: Tensor,
    which: Tensor,
    tiles: Tensor,
    directions: Tensor,
    actions: Tensor,
) -> Tensor:
    """Return a scalar; see `EpisodeTensors`."""
    instructions = policy.instruct(sentences)
    tokens, outputs, _ = policy.remember(instructions, which, tiles, directions)
    cloning = action_loss(policy.score(tokens, outputs), actions)
    return cloning + weight * policy.recall.loss(outputs, tiles, actions != NO_LOSS)


# The notes, the tables and the figures of `ttm study memory`.

TITLES: Mapping[str, str] = MappingProxyType(
    {"best": "Acting by the highest score", "drawn": "Acting by drawn actions"}
)
"""How a policy acts -> title of its table."""
COLUMNS = ("core", "success in %", "p", "made", "right choices in %", "s")
NOTES = """\
success: the agent stepped to the matching object. made: episodes in which it stepped to one of the
two objects; right choices: portion of these in which it was the matching one, 50 % for a guess. In
parentheses: Wilson's 95 % interval over the episodes, which does not say how much another training
of the same core would differ. p: McNemar's exact test of the successes against the core without
memory, on the same episodes. s: seconds of training."""


def heading(compared: Comparison) -> str:
    """Return the text above the tables: demonstrations, training, and evaluation."""
    settings, shown = compared.settings, compared.demonstrations
    sizes = [result.parameters for result in compared.results]
    return (
        f"MiniGrid {settings.level} (minigrid {settings.minigrid}): cloning of a scripted expert, "
        f"{settings.episodes} episodes\n"
        f"{len(shown):,} demonstrations, mean length {shown.lengths.mean():.1f}; "
        f"the expert fails in {len(shown.skipped):,}\n"
        f"{settings.steps:,} steps of {settings.batch_ticks:,} ticks, width {settings.width}, "
        f"seed {settings.seed}; cores of {min(sizes):,} to {max(sizes):,} parameters"
    )


def result_table(results: Sequence[CoreResult], way: str, max_steps: int) -> Table:
    """Return a table with one row for each core, the best first.

    way: how the policies acted, a key of `TITLES`. max_steps: see `Choices.of`.
    """
    table = compact_table(TITLES[way], COLUMNS)
    table.columns[0].no_wrap = False  # the names of variants are long
    for result in sorted(results, key=lambda result: -result.acting[way].rate):
        acting = result.acting[way]
        choices = Choices.of(acting, max_steps)
        table.add_row(
            result.core,
            _percent(choices.right, len(acting.success)),
            p_value_against_no_memory(result, results, way),
            str(choices.made),
            _percent(choices.right, choices.made),
            f"{result.training_s:.0f}",
        )
    return table


def figures(compared: Comparison, max_steps: int) -> dict[str, Any]:
    """Return all figures as plain data, with the results of every episode."""
    return {
        "settings": asdict(compared.settings),
        "expert": {
            "demonstrations": len(compared.demonstrations),
            "mean_length": float(compared.demonstrations.lengths.mean()),
            "seeds_not_solved": compared.demonstrations.skipped,
        },
        "results": [
            asdict(result)
            | {"rates": {way: _rates(acting, max_steps) for way, acting in result.acting.items()}}
            for result in compared.results
        ],
    }


def _rates(acting: ActingResult, max_steps: int) -> dict[str, Any]:
    choices = Choices.of(acting, max_steps)
    return {
        "successes": _counted(choices.right, len(acting.success)),
        "choices": _counted(choices.right, choices.made),
    }


def _counted(count: int, total: int) -> dict[str, Any]:
    """Return count, total, and rate with its interval; both None if there is nothing to count."""
    rate = count / total if total else None
    return {
        "count": count,
        "of": total,
        "rate": rate,
        "interval": wilson_interval(count, total) if total else None,
    }


def _percent(count: int, total: int) -> str:
    """Return a rate in per cent, with its interval in parentheses."""
    if not total:
        return "—"
    low, high = (100 * bound for bound in wilson_interval(count, total))
    return f"{100 * count / total:.1f} ({low:.1f} to {high:.1f})"


# What results of `ttm study memory` must have in common to be compared.


@dataclass(frozen=True)
class MemorySettings(StudySettings):
    """The settings of every study, and the weight of the recall loss."""

    recall: float


def run(options: MemoryOptions) -> int:
    """Run the study and return the exit code.

    The tables hold all results of the same settings that are kept in the folder, also those of
    earlier commands. Raises `UserError` for an unknown level and for core options that do not fit.
    """
    level = MemoryLevel(options.level)
    max_steps = level.environment().max_steps
    settings = MemorySettings(**common_values(options), recall=options.recall)
    method = Method(RecallingPolicy, recall_and_cloning_loss(options.recall))
    compared = compare(options, settings, level, method)
    print_results(
        heading(compared),
        *(result_table(compared.results, way, max_steps) for way in options.actions),
        NOTES,
        figures=figures(compared, max_steps),
        json_path=options.json,
    )
    if options.plot is not None:
        write_plot(options.plot, panels_of(options.level, options.actions, compared.results))
    return 0
