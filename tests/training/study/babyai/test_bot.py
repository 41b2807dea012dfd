"""The bot of `ttm study babyai`."""

from __future__ import annotations

import pytest

pytest.importorskip("minigrid")

from ttm.training.study.babyai import BoundedPlan, StudyBabyaiCommand
from ttm.training.study.minigrid import GaveUp, record


@pytest.mark.parametrize(
    ("level", "seed"), [("Unlock", 63), ("GoToImpUnlock", 6), ("GoToImpUnlock", 14)]
)
def test_a_bot_that_plans_for_ever_is_stopped(level: str, seed: int) -> None:
    shown = record(StudyBabyaiCommand(level), [seed])
    assert (len(shown), shown.skipped.tolist()) == (0, [seed])


def test_a_plan_counts_looks_since_it_was_told_to() -> None:
    plan = BoundedPlan([1, 2])
    for _ in range(2):
        plan.reads = 0
        assert [plan[-1] for _ in range(100)] == [2] * 100
    with pytest.raises(GaveUp):
        plan[-1]


@pytest.mark.parametrize(
    ("level", "seeds"), [("GoToLocal", range(10)), ("GoToSeqS5R2", range(4)), ("Unlock", range(2))]
)
def test_the_bounded_bot_does_what_minigrids_does(level: str, seeds: range) -> None:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    asked = StudyBabyaiCommand(level)
    environment = asked.environment()
    for seed in seeds:
        ours = record(asked, [seed])
        environment.reset(seed)
        bot, theirs, over = BabyAIBot(environment.unwrapped), [], False
        while not over:
            theirs.append(int(bot.replan(theirs[-1] if theirs else None)))
            _, _, over = environment.step(theirs[-1])
        assert len(ours) == 1
        assert ours.actions.tolist() == theirs
