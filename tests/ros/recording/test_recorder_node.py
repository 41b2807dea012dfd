"""The recorder over DDS, in a process of its own, beside the simulator in lockstep.

With LOCKSTEP_EPISODES, whole episodes of so many initial states are compared with those of `ttm collect`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.time import Time
from sensor_msgs.msg import JointState
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets import EpisodeReader, check_dataset, open_dataset
from ttm.policy import UserError
from ttm.policy.spec import SHIPPED
from ttm.sim import make_env
from ttm.sim.collect import Recorder, RecordingJob
from ttm.sim.environment import expert_of, reset_options
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.table import instructions_of
from ttm_policy.contract import default_contract, load_contract
from ttm_policy.messages import CommandCodec, ResetReply, ns_to_stamp
from ttm_policy.parameters import RecorderParameters
from ttm_policy.qos import LATCHED
from ttm_policy.recording.episodes import read_given_spec
from ttm_policy.recording.recorder import Recorder as RosRecorder

WAIT_S = 180.0
KEPT = QoSProfile(
    depth=50, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""What a simulator in lockstep takes commands with, and no command is ever lost."""
TASK, SEED, TICKS = "pick", 7, 8
EPISODES = int(os.environ.get("LOCKSTEP_EPISODES", "0"))


class Teleoperator(Node):
    """Drives the simulator with the expert's actions, and the recorder with its services.

    It is the policy for the simulator. It has a simulation of its own, from which the actions come.
    """

    def __init__(self) -> None:
        super().__init__("policy_node")
        self._codec = CommandCodec(load_contract(), SPEC)
        self._commands = {
            topic: self.create_publisher(kind, topic, KEPT)
            for topic, kind in self._codec.types().items()
        }
        self.create_service(Trigger, "~/reset_memory", self._reset)
        self.create_subscription(String, "instruction", self._on_instruction, LATCHED)
        self.create_subscription(String, "recorder_node/status", self._on_status, LATCHED)
        self.instruction = ""
        self.status: dict[str, Any] = {}
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def _reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = True, ResetReply(self.instruction).to_json()
        return response

    def _on_instruction(self, message: String) -> None:
        self.instruction = message.data

    def _on_status(self, message: String) -> None:
        self.status = json.loads(message.data)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}: {self.status}"
            self._executor.spin_once(timeout_sec=0.02)

    def call(self, name: str, kind: Any = Trigger, **values: Any) -> tuple[bool, str]:
        client = self.create_client(kind, f"recorder_node/{name}")
        self.wait(client.service_is_ready, name)
        future = client.call_async(kind.Request(**values))
        self.wait(future.done, name)
        self.destroy_client(client)
        answer = future.result()
        return answer.success, getattr(answer, "message", "")

    def wait_for_state(self, state: str) -> None:
        self.wait(lambda: self.status.get("state") == state, state)

    def see(self, after_ns: int) -> int:
        """Wait until the recorder has a newer observation whole, and return its stamp."""
        self.wait(lambda: self.status.get("newest_ns", 0) > after_ns, "an observation")
        return int(self.status["newest_ns"])

    def command(self, action: np.ndarray, stamp_ns: int) -> None:
        for topic, message in self._codec.encode(action, ns_to_stamp(stamp_ns)).items():
            self._commands[topic].publish(message)


@pytest.fixture
def teleoperator() -> Iterator[Teleoperator]:
    rclpy.init()
    node = Teleoperator()
    yield node
    node.destroy_node()
    rclpy.shutdown()


@pytest.fixture
def collected(tmp_path: Path) -> list[EpisodeReader]:
    """What `ttm collect` records of the initial states, without disturbance."""
    made_up = {text: np.zeros(384, np.float32) for text in instructions_of(TASK)}
    recorder, folder = Recorder("ttm/Kitchen-v0", 0.0, None, made_up), tmp_path / "collected"
    for seed in range(SEED, SEED + max(EPISODES, 1)):
        assert recorder.run(RecordingJob(TASK, seed, folder))
    recorder.close()
    return sorted(open_dataset(folder), key=lambda episode: episode.seed or 0)


def ticks_of(episode: EpisodeReader) -> int:
    """The ticks until success, at which the simulator ends; `ttm collect` goes on for some more."""
    with h5py.File(episode.path) as file:
        rewards = file[f"data/{episode.name}/rewards"][()]
    return int(np.argmax(rewards > 0)) if EPISODES else TICKS


def drive(teleoperator: Teleoperator, ticks: int, after_ns: int, seed: int = SEED) -> int:
    """Drive with the expert's actions for the first ticks; return the stamp of the last observation."""
    env = make_env("ttm/Kitchen-v0")
    _, info = env.reset(seed=seed, options=reset_options(TASK, None, "hidden"))
    stamp_ns = teleoperator.see(after_ns)
    text = info["instruction"]
    teleoperator.wait(lambda: teleoperator.status["instruction"] == text, "the instruction")
    assert teleoperator.call("start")[0]
    teleoperator.wait_for_state("recording")
    for tick in range(ticks):
        action = expert_of(env).action()
        env.step(action)
        teleoperator.command(action.astype(np.float32), stamp_ns)
        if tick < ticks - 1:
            stamp_ns = teleoperator.see(stamp_ns)
    env.close()
    teleoperator.wait(lambda: teleoperator.status["ticks"] >= ticks, "the last command")
    return stamp_ns


def start_both(start_node: Any, folder: Path, max_ticks: int = TICKS) -> None:
    start_node(
        "recorder_node", folder=str(folder), spec="shipped", use_sim_time=True, countdown_s=0.0,
        preroll_s=0.1,
    )  # fmt: skip
    start_node(
        "sim_node", task=TASK, first_seed=SEED, episodes=EPISODES + 2, max_ticks=max_ticks, lockstep=True,
        command_timeout_s=WAIT_S,
    )  # fmt: skip


def test_recorded_over_ros_is_what_ttm_collect_records_bit_by_bit(
    start_node: Any, teleoperator: Teleoperator, collected: list[EpisodeReader], tmp_path: Path
) -> None:
    folder, stamp_ns = tmp_path / "recorded", 0
    start_both(start_node, folder, 0 if EPISODES else TICKS)
    for number, theirs in enumerate(collected):
        stamp_ns = drive(teleoperator, ticks_of(theirs), stamp_ns, SEED + number)
        assert teleoperator.call("stop", SetBool, data=True)[0]
        teleoperator.wait(lambda n=number: teleoperator.status["episodes"] > n, "the episode")  # type: ignore[misc]
        assert "100% with new messages of all inputs" in teleoperator.status["cadence"]
    for episode, theirs in zip(open_dataset(folder), collected, strict=True):
        require_equal(episode, theirs, ticks_of(theirs))
    assert check_dataset(folder).num_errors == 0


def require_equal(episode: EpisodeReader, collected: EpisodeReader, ticks: int) -> None:
    assert (episode.num_samples, episode.success) == (ticks, True)
    assert (episode.instruction, episode.spec) == (collected.instruction, collected.spec)
    for camera in SPEC.cameras:
        np.testing.assert_array_equal(
            episode.frames(camera.name), collected.frames(camera.name, 0, ticks)
        )
    for vector in SPEC.proprioception:
        np.testing.assert_array_equal(
            episode.proprioception(vector.name), collected.proprioception(vector.name)[:ticks]
        )
    np.testing.assert_array_equal(episode.actions, collected.actions[:ticks])
    np.testing.assert_array_equal(episode.executed_actions, collected.executed_actions[:ticks])


def test_discard_undo_and_the_life_cycle(
    start_node: Any, teleoperator: Teleoperator, tmp_path: Path
) -> None:
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / ".episode_00000.hdf5.partial").write_bytes(b"of a killed recorder")
    start_both(start_node, tmp_path / "recorded")
    stamp_ns = drive(teleoperator, 3, 0)
    assert teleoperator.call("undo") == (
        False,
        "it is recording; stop or discard that episode first",
    )
    assert teleoperator.call("discard") == (True, "discarded")
    stamp_ns = drive(teleoperator, 2, stamp_ns)
    teleoperator.call("stop", SetBool, data=False)
    teleoperator.wait(lambda: teleoperator.status["episodes"] == 1, "the episode")
    (episode,) = open_dataset(tmp_path / "recorded")
    assert (episode.path.name, episode.success) == ("episode_00000.hdf5", False)
    assert teleoperator.call("undo")[0]
    assert not list((tmp_path / "recorded").glob("*.hdf5"))
    drive(teleoperator, 2, stamp_ns)
    request = ChangeState.Request()
    request.transition.id = 4  # deactivate
    assert teleoperator.call("change_state", ChangeState, transition=request.transition)[0]
    teleoperator.wait_for_state("ready")
    assert teleoperator.call("start") == (False, "the recorder is not active; activate it first")
    assert not [path for path in (tmp_path / "recorded").iterdir() if path.suffix == ".partial"]


HAND_CONTRACT = """
robot: hand
base_frame: base_link
rate_hz: 20
observations:
  joints: {topic: joint_states, type: sensor_msgs/JointState, fields: [a, b]}
actions:
  base:
    topic: cmd_vel
    type: geometry_msgs/TwistStamped
    fields: [twist.linear.x, twist.angular.z]
    limit: [max_forward_m_s, max_yaw_rad_s]
"""


def test_a_clock_set_back_by_a_day_ends_the_episode_and_the_next_one_records(
    teleoperator: Teleoperator, start_node: Any, tmp_path: Path
) -> None:
    """What stamps the messages was set back. The computer of the recorder was not."""
    contract, folder = tmp_path / "hand.yaml", tmp_path / "data"
    contract.write_text(HAND_CONTRACT)
    start_node(
        "recorder_node", contract=str(contract), folder=str(folder), instruction="wave", countdown_s=0.0
    )  # fmt: skip
    joints = teleoperator.create_publisher(JointState, "joint_states", 10)
    base = teleoperator.create_publisher(TwistStamped, "cmd_vel", 10)
    time_ns = time.time_ns()

    def move() -> None:
        nonlocal time_ns
        time_ns += 50_000_000
        stamp = ns_to_stamp(time_ns)
        joints.publish(JointState(header=Header(stamp=stamp), name=["a", "b"], position=[0.1, 0.2]))
        base.publish(TwistStamped(header=Header(stamp=stamp)))

    timer = teleoperator.create_timer(0.05, move)
    for problem in ("", "set back by 86", ""):
        teleoperator.wait(lambda: teleoperator.status.get("missing") == [], "the joints")
        assert teleoperator.call("start")[0]
        teleoperator.wait(lambda: teleoperator.status["ticks"] >= 10, "ten ticks")
        if problem:
            time_ns -= 86_400_000_000_000
        else:
            assert teleoperator.call("stop", SetBool, data=True)[0]
        teleoperator.wait_for_state("ready")
        assert problem in teleoperator.status["problem"]
        assert bool(problem) == bool(teleoperator.status["problem"])
    teleoperator.destroy_timer(timer)
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["episode_00000.hdf5", "episode_00001.hdf5"]
    assert not [fault for fault in check_dataset(folder).faults if fault.demo]


@pytest.mark.parametrize("by_s", [-86400, 2])
def test_a_computer_whose_clock_is_set_ends_the_episode(
    teleoperator: Teleoperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: int
) -> None:
    contract = tmp_path / "hand.yaml"
    contract.write_text(HAND_CONTRACT)
    node = Node("recorder_node")
    parameters = RecorderParameters(
        contract=str(contract), folder=str(tmp_path / "data"), instruction="wave", countdown_s=0.0
    )
    recorder = RosRecorder(node, parameters)
    recorder.active = True
    recorder.session.message("joint_states", time.time_ns(), JointState())
    recorder.update()
    assert recorder.start().startswith("recording")
    recorder.update()
    assert recorder.status()["state"] == "recording"

    def set_clock() -> SimpleNamespace:
        return SimpleNamespace(now=lambda: Time(nanoseconds=time.time_ns() + by_s * 10**9))

    monkeypatch.setattr(node, "get_clock", set_clock)
    recorder.update()
    problem = recorder.status()["problem"]
    way = "back by 86400.0 s" if by_s < 0 else "ahead by 2.0 s"
    assert problem.startswith(f"the clock was set {way} during the episode")
    assert recorder.diagnosis("").message == problem
    recorder.update()
    assert recorder.status()["state"] == "ready"
    monkeypatch.undo()
    recorder.close()
    node.destroy_node()


def test_wrong_parameters_are_one_line(start_node: Any, tmp_path: Path) -> None:
    for parameters, message in (
        ({"contract": str(default_contract())}, "no control rate is known; set rate_hz"),
        ({"contract": str(default_contract()), "rate_hz": 5.0}, "its values are 11"),
        ({"rate_hz": 10.0, "spec": "shipped"}, "shipped says 5 Hz, but the rate is 10"),
        ({"rate_hz": 5.0, "contract": str(tmp_path / "none.yaml")}, "no contract at"),
        ({"rate_hz": 5.0, "min_fresh": 2.0}, "min_fresh out of range Min: 0.0, Max: 1.0"),
    ):
        process = start_node("recorder_node", folder=str(tmp_path), **parameters)
        assert process.wait() == 2, process.output
        assert message in process.output
        assert "Traceback" not in process.output


SIZES = {camera.name: (camera.height, camera.width) for camera in SPEC.cameras}


def test_a_value_that_moves_two_fingers_takes_a_spec() -> None:
    """The simulated robot reports 10 values, and its contract sends one of them to two joints."""
    contract = load_contract()
    assert read_given_spec(SHIPPED, contract, 0.0).complete(SIZES) == SPEC
    with pytest.raises(UserError, match=r"has 10 fields; its values are 11.* give a spec"):
        read_given_spec("", contract, 5.0).complete(SIZES)
