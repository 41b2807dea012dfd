"""A new task is one new file (here `lift_ball.py`) and one line of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ttm.sim import KitchenEnv, evaluate
from ttm.sim.tasks.table import TASKS, TaskEntry


@pytest.fixture
def lift_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(TASKS, "lift_ball", TaskEntry("lift_ball:LiftBall", "lift a ball"))


@pytest.mark.usefixtures("lift_ball")
def test_the_new_task_can_be_evaluated() -> None:
    """As `ttm evaluate --checkpoint expert --task lift_ball` does."""
    result = evaluate("expert", "lift_ball", episodes=3).tasks["lift_ball"]
    assert [outcome.instruction for outcome in result.outcomes] == ["lift the orange ball"] * 3
    assert result.successes == 3


@pytest.mark.usefixtures("lift_ball")
def test_other_tasks_do_not_see_what_it_adds() -> None:
    plain = KitchenEnv()
    before, _ = plain.reset(seed=0)
    plain.close()
    env = KitchenEnv()
    with_ball, _ = env.reset(seed=0, options={"task": "lift_ball"})
    after, _ = env.reset(seed=0)
    names = [env.model.body(i).name for i in range(env.model.nbody)]
    env.close()
    assert "orange ball" not in names
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert not np.array_equal(with_ball["head"], after["head"])


@pytest.mark.usefixtures("lift_ball")
def test_it_changes_the_scene_as_time_goes_on() -> None:
    """The lamp is red at first, in every episode, and green after some ticks."""
    env = KitchenEnv("lift_ball")
    for _ in range(2):
        env.reset(seed=1)
        colours = []
        for _ in range(4):
            colours.append(env.model.geom("lamp").rgba[1] > 0.5)
            env.step(env.expert().action())
        assert colours == [False, False, False, True]
    env.close()
