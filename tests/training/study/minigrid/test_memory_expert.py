"""MiniGrid's Memory levels and their expert: what it does, what it has seen, what it knows alone."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ttm.policy import UserError

pytest.importorskip("minigrid")

from minigrid.core.world_object import Ball, Key

from ttm.training.study.memory import (
    FORWARD,
    LEFT,
    OBJECTS,
    RIGHT,
    cue_position,
)
from ttm.training.study.minigrid import Demonstrations, MinigridEnvironment, record
from ttm.training.study.minigrid_study import StudyMinigridCommand

NAMES = ("MemoryS7", "MemoryS9", "MemoryS11", "MemoryS13", "MemoryS17", "MemoryS17Random")
SEEDS = range(24)


def shown(name: str, seed: int) -> Demonstrations:
    episode = record(StudyMinigridCommand(name), [seed])
    assert len(episode), f"the expert failed in {name}, seed {seed}"
    return episode


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_succeeds_and_sees_the_cue_before_both_objects(name: str) -> None:
    choices = set()
    environment = StudyMinigridCommand(name).environment()
    for seed in SEEDS:
        *walk, choice, last = shown(name, seed).actions.tolist()
        environment.reset(seed)
        seen = []
        for action in walk:
            seen.append(environment.unwrapped.agent_sees(*cue_position(environment)))
            view, _, _ = environment.step(action)
        assert any(seen)
        assert np.isin(view.image[..., 0], OBJECTS).sum() == 2  # there is something to choose from
        assert choice != last == FORWARD
        choices.add(choice)
    assert choices == {LEFT, RIGHT}


def with_other_cue(environment: MinigridEnvironment) -> None:
    """Exchange key and ball in the room, and nothing else."""
    world, place = environment.unwrapped, cue_position(environment)
    other = Ball if world.grid.get(*place).type == "key" else Key
    world.grid.set(*place, other("green"))
    world.success_pos, world.failure_pos = world.failure_pos, world.success_pos


@pytest.mark.parametrize("name", ["MemoryS7", "MemoryS13"])
def test_the_choice_needs_memory(name: str) -> None:
    """With the other cue, all that is seen at the choice is equal, and the other choice is right."""
    for seed in SEEDS:
        episode = shown(name, seed)
        environment = StudyMinigridCommand(name).environment()
        environment.reset(seed)
        with_other_cue(environment)
        *walk, choice, last = episode.actions.tolist()
        views = [environment.unwrapped.gen_obs()["image"]]
        views += [environment.step(action)[0].image for action in walk]
        differs = [
            (view != image).any() for view, image in zip(views, episode.images, strict=False)
        ]
        assert any(differs)  # the cue has been seen
        assert not differs[-1]
        environment.step(choice)
        _, success, over = environment.step(last)
        assert (success, over) == (False, True)


def test_the_levels_are_those_that_minigrid_registers() -> None:
    for name in ("MemoryS7", "MemoryS13", "MemoryS17Random"):
        ours = StudyMinigridCommand(name).environment()
        theirs = gymnasium.make(f"MiniGrid-{name}-v0", disable_env_checker=True).unwrapped
        assert ours.max_steps == theirs.max_steps
        for seed in SEEDS:
            assert (ours.reset(seed).image == theirs.reset(seed=seed)[0]["image"]).all()
            assert ours.unwrapped.success_pos == theirs.success_pos


@pytest.mark.parametrize("name", ["MemoryS12", "MemoryS5", "MemoryS"])
def test_a_level_that_cannot_be_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=rf"--level is '{name}'; give MemoryS and an odd size"):
        StudyMinigridCommand(name).environment()
