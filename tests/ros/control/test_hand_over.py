"""A person takes over at random ticks, and the memory goes on: `policy_node` in a process of its own."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from ttm.policy import PolicyRunner
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import default_contract
from ttm_policy.inputs import DRIVER_TOPIC, PERSON_TOPIC, to_message
from ttm_policy.messages import ns_to_stamp
from ttm_policy.qos import COMMAND, LATCHED

CAN = "pick up the red can"
EPISODES = int(os.environ.get("HAND_OVER_EPISODES", "3"))
TICKS = 12
SLOW = pytest.approx(0.1)
MOTION = np.r_[SPEC.action_slices["arm_translation"], SPEC.action_slices["base"]]


class Person:
    """Takes over and gives back."""

    def __init__(self, robot: Any, name: str = "anna") -> None:
        self._robot, self._name, self.driver = robot, name, ""
        self._publisher = robot.create_publisher(JointState, PERSON_TOPIC, COMMAND)
        robot.create_subscription(String, DRIVER_TOPIC, self._on_driver, LATCHED)

    def _on_driver(self, message: String) -> None:
        self.driver = message.data

    def connect(self) -> None:
        self._robot.wait(lambda: self.driver == "policy", "the policy drives")
        self._robot.wait(
            lambda: self._publisher.get_subscription_count() == 1, "the policy listens"
        )

    def want(self, wish: np.ndarray) -> None:
        stamp = ns_to_stamp(self._robot.time_ns)
        self._publisher.publish(to_message(SPEC, wish, stamp, self._name))

    def take(self, wish: np.ndarray) -> None:
        again_s = 0.0

        def drives() -> bool:
            """Want it again now and then, as a person does: at first the emergency stop may be unknown."""
            nonlocal again_s
            if self.driver != "person" and time.monotonic() >= again_s:
                self.want(wish)
                again_s = time.monotonic() + 2.0
            return self.driver == "person"

        self._robot.wait(drives, "the person drives")

    def give_back(self) -> None:
        assert self._robot.call("give_back").success
        self._robot.wait(lambda: self.driver == "policy", "the policy drives again")


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """That of a robot that does not report what it did."""
    data = yaml.safe_load(default_contract().read_text())
    del data["executed_action"]
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def wishes(random: np.random.Generator) -> Iterator[np.ndarray]:
    """What the person wants at each tick: some beyond the limits, some nothing but standing still."""
    low, high = SPEC.action_limits
    while True:
        wish = np.where(SPEC.binary_mask, np.nan, random.uniform(2 * low, 2 * high))
        wish[-1] = 0.0
        yield (wish * random.integers(0, 2)).astype(np.float32)


def _drive(
    robot: Any, person: Person, runner: PolicyRunner, observations: list[Any], seed: int
) -> int:
    """Compare one episode, tick by tick, and return at how many ticks the person drove."""
    taken, random = 0, np.random.default_rng(seed)
    wanted = wishes(random)
    robot.begin_episode(CAN)
    runner.reset(CAN)
    for tick in range(TICKS):
        if person.driver == "person" and random.random() < 0.3:
            person.give_back()
        elif person.driver == "policy" and random.random() < 0.4:
            person.take(next(wanted))
        elif person.driver == "person":
            person.want(next(wanted))
        if tick:
            runner.executed(robot.commanded())
        observation = observations[tick % len(observations)]
        action = robot.step(observation)
        assert np.array_equal(action, runner.step(observation).values), (seed, tick)
        assert np.array_equal(robot.memories[-1][1:], runner.memory_norms), (seed, tick)
        taken += person.driver == "person"
        if person.driver == "person":
            assert not np.array_equal(robot.commanded()[MOTION], action[MOTION])
    return taken


def test_memory_goes_on_through_hand_overs_at_random_ticks(
    robot: Any, start_node: Any, checkpoint: Path, contract: Path, observations: list[Any]
) -> None:
    """It is that of a runner that saw the same observations and executed actions, bit for bit."""
    start_node(
        "policy_node", checkpoint=str(checkpoint), lockstep=True, engine="torch",
        contract=str(contract), instruction=CAN,
    )  # fmt: skip
    robot._sources = tuple(s for s in robot._sources if s.name != "executed action")
    person, runner = Person(robot), PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    person.connect()
    taken = 0
    for seed in range(EPISODES):
        taken += _drive(robot, person, runner, observations, seed)
    assert EPISODES * TICKS * 0.2 < taken < EPISODES * TICKS * 0.9


def test_a_person_is_stopped_by_what_stops_the_policy(
    free_robot: Any, start_node: Any, checkpoint: Path, observations: list[Any]
) -> None:
    robot = free_robot
    start_node(
        "policy_node", checkpoint=str(checkpoint), engine="torch", instruction=CAN, use_sim_time=True,
        max_forward_m_s=0.1, stop_after_s=600.0,
    )  # fmt: skip
    anna, ben = Person(robot), Person(robot, "ben")
    base = SPEC.action_slices["base"].start
    forward, back = np.zeros(SPEC.action_size, np.float32), np.zeros(SPEC.action_size, np.float32)
    forward[SPEC.action_slices["gripper"]] = np.nan
    forward[base], back[base] = 0.3, -0.3

    turns = itertools.count()

    def speed() -> float:
        return robot.commands["cmd_vel"][-1].twist.linear.x if robot.commands["cmd_vel"] else 0.0

    def forth() -> None:
        anna.want(forward)

    def both() -> None:
        """Ben pauses now and then: he may drive if a busy machine let her fall silent."""
        anna.want(forward)
        if next(turns) % 4 == 0:
            ben.want(back)

    def until(done: Any, what: str, want: Any = lambda: None) -> None:
        deadline_s = time.monotonic() + 180
        while time.monotonic() < deadline_s:
            want()
            robot.run_freely(observations[0])
            if done():
                return
        pytest.fail(f"{what}: {speed()}, {robot.diagnosis}")

    def stands(words: str, want: Any = lambda: None) -> None:
        """The robot stops, the node says why, and nothing that is wanted moves it then."""
        until(lambda: words in robot.diagnosis and speed() == 0.0, words, want)
        robot.settle()
        count = len(robot.commands["cmd_vel"])
        for _ in range(2):
            want()
            robot.run_freely(observations[0])
        assert not any(c.twist.linear.x for c in robot.commands["cmd_vel"][count:])

    until(lambda: robot.actions and anna.driver == "policy", "the policy acts")
    until(lambda: speed() == SLOW, "she drives within the limit", forth)
    until(lambda: anna.driver == "person", "it says so", forth)
    ticks = len(robot.memories)
    until(lambda: len(robot.memories) > ticks + 3, "the memory goes on", forth)
    until(lambda: speed() == SLOW, "another person is refused", both)
    stands("anna has been silent")
    assert anna.driver == "person"
    until(lambda: speed() == SLOW, "she drives on", forth)
    robot.press_e_stop(True)
    stands("emergency stop", forth)
    robot.press_e_stop(False)
    stands("rearm", forth)
    assert robot.call("rearm").success
    anna.give_back()
    acted = len(robot.actions)
    until(lambda: len(robot.actions) > acted, "the policy acts again")
