"""Commands that come into force later than they were decided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ttm.policy import ActionPart, PolicyRunner, PolicySpec, ProprioceptionSpec, UserError
from ttm.sim import evaluate, load_evaluation
from ttm.sim.condition import Condition, conditions_of
from ttm.sim.rollout import DelayedActor

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"

SPEC = PolicySpec(
    "point",
    (),
    (ProprioceptionSpec("position", ("x (m)",)),),
    (ActionPart("step", 1, "m"), ActionPart("gripper", 1, "", kind="binary")),
    rate_hz=5.0,
)


def robot(rest: float | None = None) -> Any:
    """An environment as far as delays need one, in which `rest` is the position of the robot."""
    own: dict[str, Any] = {"policy_spec": SPEC}
    if rest is not None:
        own["resting_action"] = lambda: np.array([rest, 1.0])
    return SimpleNamespace(has_wrapper_attr=own.__contains__, get_wrapper_attr=own.__getitem__)


class Counter:
    """Commands 10, 20, 30, … and a gripper that closes with the third command."""

    def __init__(self) -> None:
        self.done: list[float] = []

    def reset(self, instruction: str) -> None:
        self.ticks = 0

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        self.ticks += 1
        return np.array([10 * self.ticks, self.ticks >= 3], np.float32)

    def executed(self, action: np.ndarray) -> None:
        self.done.append(float(action[0]))


@pytest.mark.parametrize(
    ("delay_s", "steps", "gripper"),
    [
        (0.05, [7.5, 17.5, 27.5, 37.5], [0, 0, 1, 1]),
        (0.15, [2.5, 12.5, 22.5, 32.5], [0, 0, 0, 1]),
        (0.2, [0, 10, 20, 30], [0, 0, 0, 1]),
        (0.25, [0, 7.5, 17.5, 27.5], [0, 0, 0, 1]),
        (0.4, [0, 0, 10, 20], [0, 0, 0, 0]),
    ],
)
def test_commands_are_carried_out_later_and_known_as_such(
    delay_s: float, steps: list[float], gripper: list[float]
) -> None:
    counter = Counter()
    delayed = DelayedActor(counter, robot(), delay_s)
    for _ in range(2):  # the second episode knows nothing of the first one
        delayed.reset("go")
        made = np.array([delayed.act({}) for _ in steps])
        assert np.allclose(made, np.array([steps, gripper]).T, atol=1e-4)
        assert np.allclose(counter.done[-len(steps) :], steps, atol=1e-4)


def test_a_robot_that_takes_positions_stays_where_it_is_before_its_first_command() -> None:
    counter = Counter()
    delayed = DelayedActor(counter, robot(rest=3.0), 0.3)
    delayed.reset("go")
    made = np.array([delayed.act({}) for _ in range(4)])
    assert np.allclose(made[:, 0], [3.0, 6.5, 15.0, 25.0], atol=1e-4)
    assert made[0, 1] == 0, "two states are those of the first command"
    assert np.allclose(counter.done, made[:, 0])


@pytest.mark.parametrize("rest", [None, 3.0])
def test_commands_under_way_can_be_forgotten_and_the_robot_stays_as_it_is(
    rest: float | None,
) -> None:
    counter = Counter()
    late = DelayedActor(counter, robot(rest=rest), 0.3)  # one and a half ticks
    late.reset("go")
    for _ in range(3):
        late.act({})
    late.executed(
        np.array([0.5, 1.0], np.float32)
    )  # the robot was held, with something in its gripper
    late.forget()
    made = np.array([late.act({}) for _ in range(3)])
    stays = rest or 0.0
    assert made[:, 0] == pytest.approx([stays, (40 + stays) / 2, 45])
    assert made[0, 1] == 1
    assert counter.ticks == 6


def test_the_delay_is_a_part_of_the_condition() -> None:
    (late,) = conditions_of((), ("live",), "hidden", 0.5, delay_s=0.2)
    assert late.to_dict() == {"delay_s": 0.2}
    assert "0.2 s late" in late.series
    assert "delay_s" not in Condition().to_dict()
    for wrong in (-0.1, 11.0, float("nan")):
        with pytest.raises(UserError, match="--delay"):
            conditions_of((), ("live",), "hidden", 0.5, delay_s=wrong)


def test_an_evaluation_delays_commands_and_tells_the_policy(
    points: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Condition(delay_s=0.4)
    prompt = evaluate("expert", "touch", episodes=1, env=MEMORY_POINT)
    delayed = evaluate("expert", "touch", episodes=1, env=MEMORY_POINT, condition=late)
    assert delayed.tasks["touch"].outcomes[0].ticks > prompt.tasks["touch"].outcomes[0].ticks
    assert json.loads(delayed.to_json())["delay_s"] == 0.4
    assert load_evaluation(delayed.save(tmp_path)) == delayed

    told: set[float] = set()
    step = PolicyRunner.step

    def noted(self: PolicyRunner, *args: Any, **options: Any) -> Any:
        told.add(options["delay_s"])
        return step(self, *args, **options)

    monkeypatch.setattr(PolicyRunner, "step", noted)
    evaluate("none", "touch", episodes=1, max_ticks=2, env=MEMORY_POINT, condition=late)
    assert told == {0.4}
