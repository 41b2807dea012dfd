"""MiniGrid's Memory levels, their expert, and the loss without which no core learns to remember there.

A Memory level (Chevalier-Boisvert et al. 2023) is a room, a corridor to its right, and a crossing with
an object above and one below. The room holds an object of one of these two kinds, the cue. The mission
is to go to the object that matches it. The agent starts in the room or in the corridor, and faces the
crossing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from minigrid.core.constants import OBJECT_TO_IDX
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError
from ttm.sim.results import Rate
from ttm.training.study.minigrid import (
    NO_LOSS,
    EpisodeTensors,
    MinigridEnvironment,
    MinigridPolicy,
    MinigridView,
    Vocabulary,
    action_loss,
)

LEFT, RIGHT, FORWARD = range(3)  # actions that the expert takes
EAST, SOUTH, WEST, NORTH = range(4)  # as in `MinigridView.direction`
OBJECTS = tuple(OBJECT_TO_IDX[kind] for kind in ("key", "ball"))


class MemoryExpert:
    """Looks at the cue first, then goes to the matching object, by the shortest way.

    It knows the positions of agent, cue and matching object, but it does not go to the crossing
    before the cue has been in the agent's view, so that the agent can learn what it does.
    """

    def __init__(self, environment: MinigridEnvironment) -> None:
        self._world: Any = environment.unwrapped
        self._cue = cue_position(environment)
        self._seen = False

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """See `Expert`. Half turns go left."""
        place = self._world.relative_coords(*self._cue)
        self._seen |= place is not None and int(view.image[place][0]) in OBJECTS
        wanted = self._way_to_the_match() if self._seen else WEST
        return (FORWARD, RIGHT, LEFT, LEFT)[(wanted - view.direction) % 4]

    def _way_to_the_match(self) -> int:
        """Return the direction of the next tile on the way to the matching object."""
        (x, _), (goal_x, goal_y) = self._world.agent_pos, self._world.success_pos
        if x < goal_x:
            return EAST
        return NORTH if goal_y < self._world.height // 2 else SOUTH


def cue_position(environment: MinigridEnvironment) -> tuple[int, int]:
    """Return the position of the cue, (x, y): in the room's corner, above the corridor's row."""
    return 1, environment.unwrapped.height // 2 - 1


class RecallHead(nn.Module):
    """Says from the core's output which kinds of tiles have been in view so far.

    Its targets are the agent's own views. The loss of the actions asks for the memory at one tick of an
    episode; this one rewards a memory that is kept for a tick, then for two and so on.
    """

    def __init__(self, width: int, num_kinds: int) -> None:
        super().__init__()
        self.num_kinds = num_kinds
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_kinds))

    def loss(self, outputs: Tensor, tiles: Tensor, real: Tensor) -> Tensor:
        """Return the mean logistic loss over the kinds that are not in view, a scalar.

        outputs: (B, T, D). tiles: (B, T, 49) int64. real: (B, T) bool, False after the end.
        """
        now = seen_now(tiles, self.num_kinds)
        asked = ~now & real.unsqueeze(-1)
        before = now.cumsum(dim=1) > 0
        logits = self.layers(outputs)
        return F.binary_cross_entropy_with_logits(logits[asked], before[asked].to(logits.dtype))


def seen_now(tiles: Tensor, num_kinds: int) -> Tensor:
    """Return which kinds of tiles are in view: (B, T, 49) int64 -> (B, T, kinds) bool."""
    now = torch.zeros(*tiles.shape[:2], num_kinds, dtype=torch.bool, device=tiles.device)
    return now.scatter(2, tiles, True)


class RecallingPolicy(MinigridPolicy):
    """A `MinigridPolicy` with a recall head, whose weights outside the core depend on the seed alone.

    What comes before the core does so anyway. The heads, which come after it, are drawn again.
    """

    def __init__(
        self, config: CoreConfig, vocabulary: Vocabulary, width: int, recall: float
    ) -> None:
        """recall: weight of the recall loss. Call `torch.manual_seed` before."""
        super().__init__(config, vocabulary, width)
        self.recall_weight = recall
        with torch.random.fork_rng():
            torch.manual_seed(torch.initial_seed())
            self.head = nn.Linear(self.head.in_features, self.head.out_features)
            self.recall = RecallHead(width, len(vocabulary.codes) + 1)

    def loss(self, batch: EpisodeTensors) -> Tensor:
        """Return the loss of the actions plus that of the recall head, a scalar."""
        instructions = self.instruct(batch.sentences)
        scores, outputs, _ = self(instructions, batch.which, batch.tiles, batch.directions)
        recall = self.recall.loss(outputs, batch.tiles, batch.actions != NO_LOSS)
        return action_loss(scores, batch.actions) + self.recall_weight * recall


def choices(success: Sequence[bool], lengths: Sequence[int], max_steps: int) -> Rate:
    """Return how many episodes ended at an object, and at how many of them it was the matching one.

    A Memory level ends when the agent steps to an object or when its time, `max_steps` ticks, is up.
    An episode that failed earlier than that has therefore ended at the wrong object.
    """
    ends = zip(success, lengths, strict=True)
    return Rate(sum(success), sum(right or length < max_steps for right, length in ends))


SMALLEST = 7  # side of the smallest map that has a room, a corridor and a crossing


def memory_environment(level: str) -> MinigridEnvironment:
    """Return the environment of a level. Raises `UserError` if there is none of that name."""
    found = re.fullmatch(r"MemoryS(\d+)(Random)?", level)
    size = int(found[1]) if found else 0
    if found is None or size < SMALLEST or size % 2 == 0:
        raise UserError(
            f"--level is '{level}'; give MemoryS and an odd size of {SMALLEST} or more, and perhaps "
            "Random, such as MemoryS13 or MemoryS17Random"
        )
    # MiniGrid's Memory levels are one class with other arguments.
    random_length = found[2] is not None
    return MinigridEnvironment("MiniGrid-MemoryS7-v0", size=size, random_length=random_length)
