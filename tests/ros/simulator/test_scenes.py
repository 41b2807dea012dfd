"""A simulated robot that a person drives: scenes change when they are asked to, and stamps are even."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import gymnasium
import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy import UserError
from ttm.sim import make_env
from ttm_policy.messages import ResetReply, stamp_to_ns
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.recording.recorder import SCENE, promise
from ttm_policy.simulator.episodes import Interrupted, Scenes
from ttm_policy.simulator.robot import SimNode

WAIT_S = 120.0


class Signals:
    """Stands for `StopSignals`, whose handlers only the main thread may set."""

    requested = False


class Person(Node):
    """Drives, and keeps what the simulated robot tells."""

    def __init__(self) -> None:
        super().__init__("person")
        self.episode: dict[str, Any] = {}
        self.stamps_ns: list[int] = []
        self.base = self.create_publisher(TwistStamped, "cmd_vel", COMMAND)
        self.scene = self.create_publisher(String, "sim_node/scene", COMMAND)
        kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.recorder = self.create_publisher(String, "recorder_node/status", kept)
        self.instruction, self.resets = "", 0
        self.create_subscription(String, "instruction", self._instruct, LATCHED)
        self.create_service(Trigger, "policy_node/reset_memory", self._reset)
        self.next_scene = self.create_client(Trigger, "sim_node/next_scene")
        self.create_subscription(String, "sim_node/episode", self._tell, LATCHED)
        every = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(Image, "head/image_raw", self._see, every)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def _instruct(self, message: String) -> None:
        self.instruction = message.data

    def _reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.resets += 1
        response.success, response.message = True, ResetReply(self.instruction).to_json()
        return response

    def _tell(self, message: String) -> None:
        self.episode = json.loads(message.data)

    def _see(self, message: Image) -> None:
        self.stamps_ns.append(stamp_to_ns(message.header.stamp))

    def wait(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}: {self.episode}"
            self._executor.spin_once(timeout_sec=0.02)

    def record(self, state: str, episodes: int) -> None:
        """Say what a recorder says."""
        self.recorder.publish(String(data=json.dumps({"state": state, "episodes": episodes})))

    def drive(self) -> bool:
        """Send a command, and return whether the robot has carried one out."""
        command = TwistStamped()
        command.twist.linear.x = 0.25
        self.base.publish(command)
        return 0.25 in self.episode.get("executed_action", ())


class Varied(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what varies in each scene."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.varied: list[Any] = []

    def reset(self, **given: Any) -> Any:
        self.varied.append(given["options"].get("vary"))
        return self.env.reset(**given)


def run_scenes(signals: Signals) -> None:
    """Run scenes until a signal. All of it belongs to the thread that draws."""
    env, node = Varied(make_env()), SimNode()
    node.parameters = SimParameters(driver="person", rate=4.0, task="pick", vary="light=2")
    node.connect(env)
    try:
        with pytest.raises(Interrupted):
            Scenes(node, env, signals).run()  # type: ignore[arg-type]
        assert env.varied == [{"light": 2}] * max(1, len(env.varied))
    finally:
        env.close()
        node.destroy_node()


@pytest.fixture
def person() -> Iterator[Person]:
    rclpy.init()
    signals = Signals()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run_scenes, signals)
        someone = Person()
        yield someone
        signals.requested = True
        running.result(WAIT_S)
        someone.destroy_node()
    rclpy.shutdown()


def test_a_parameter_of_the_simulator_can_be_set_while_it_runs() -> None:
    """The publisher of `/clock` had the name of the node's own clock, by which rclpy stamps the change."""
    rclpy.init()
    env, node = make_env(), SimNode()
    try:
        node.connect(env)
        (result,) = node.set_parameters([Parameter("use_sim_time", value=False)])
        assert result.successful
        assert node.get_clock().now().nanoseconds > 0
    finally:
        env.close()
        node.destroy_node()
        rclpy.shutdown()


def test_scenes_follow_commands_services_and_instructions(person: Person) -> None:
    person.wait(person.drive, "a command that is carried out")
    assert person.episode["seed"] == 0
    first = person.episode["instruction"]
    person.wait(lambda: len(person.stamps_ns) >= 3, "three observations")
    assert {b - a for a, b in pairwise(person.stamps_ns)} == {200_000_000}
    person.wait(person.next_scene.service_is_ready, "the service")
    answer = person.next_scene.call_async(Trigger.Request())
    person.wait(lambda: person.episode["seed"] == 1, "the next scene")
    person.wait(answer.done, "the answer")
    assert answer.result().message == promise(person.episode[SCENE], 1)
    assert person.resets, "a policy that is there begins the scene with an empty memory"
    person.scene.publish(String(data="dance"))  # no scene asks for it
    person.scene.publish(String(data="open the top drawer"))
    person.wait(lambda: person.episode["instruction"] == "open the top drawer", "another task")
    assert (person.episode["task"], person.episode["seed"]) == ("open_drawer", 1)
    assert first != "open the top drawer"


def test_after_an_episode_comes_the_next_scene_or_the_same_one_again(person: Person) -> None:
    def goes_on(state: str, episodes: int, ticks: int) -> Callable[[], bool]:
        def told() -> bool:
            person.record(state, episodes)
            return bool(person.episode.get("tick", 0) >= ticks)

        return told

    person.wait(goes_on("recording", 4, 4), "the first scene")
    person.record("ready", 5)
    person.wait(lambda: person.episode["seed"] == 1, "the next scene after one that was kept")
    person.wait(goes_on("recording", 5, 4), "the second scene")
    person.record("ready", 5)
    person.wait(lambda: person.episode["tick"] < 4, "the same scene after one that was dropped")
    assert person.episode["seed"] == 1
    person.wait(goes_on("ready", 4, 4), "nothing: the last episode was taken back")


def test_a_person_cannot_drive_in_lockstep() -> None:
    with pytest.raises(UserError, match="lockstep is true"):
        SimParameters(driver="person", lockstep=True)
