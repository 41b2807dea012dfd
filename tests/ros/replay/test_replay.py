"""A recorded episode as ROS messages, before a policy node in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from failing_robot import Spinning
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image
from stepped_loop import SteppedLoop

from ttm.datasets import EpisodeWriter
from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.inference import Instructions, load_policy
from ttm_policy.inputs import StampedObservation
from ttm_policy.messages import stamp_to_ns
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import StopSignals
from ttm_policy.qos import LATCHED
from ttm_policy.replay import LEAD_S, ReplayOptions, replay_episode

CAN = "pick up the red can"
TICK_NS = 200_000_000
WAIT_S = 180.0


class Signals(StopSignals):
    """No signal ever comes. The test's own handlers stay."""

    def __init__(self) -> None:
        self.requested = False


@pytest.fixture(autouse=True)
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.shutdown()


def _policy(checkpoint: Path) -> dict[str, Any]:
    """Return parameters whose limit cuts the commands."""
    return {"checkpoint": str(checkpoint), "engine": "torch", "max_translation_m": 0.001}


def _record(
    path: Path, checkpoint: Path, observations: list[dict[str, np.ndarray]], *, wrong: int = -1
) -> None:
    """Write the episode of a policy with the node's limits, and change the action of one tick."""
    parameters = PolicyParameters(**_policy(checkpoint), instruction=CAN)
    loaded = load_policy(parameters, Instructions())
    loop = SteppedLoop(loaded.runner, loaded.limits, parameters)
    with EpisodeWriter(path, SPEC) as writer:
        for tick, values in enumerate(observations):
            now_ns = 10_000_000_000 + tick * TICK_NS
            decided = loop.step(StampedObservation(values, now_ns, now_ns), now_ns * 1e-9)
            assert decided is not None
            _, command = decided
            action = command.copy()
            action[-2] += 0.125 * (tick == wrong)
            writer.append(values, action, timestamp_s=now_ns * 1e-9, executed_action=command)
        writer.finish(instruction=CAN, success=True)


def test_the_policy_gives_the_recorded_actions_again_bit_by_bit(
    start_node: Any,
    checkpoint: Path,
    observations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twice by one process, so that the second episode begins with an empty memory."""
    start_node("policy_node", **_policy(checkpoint), lockstep=True)
    for wrong, expected in (-1, "6 of 6 actions are"), (4, "bit by bit; tick 4 is the first"):
        path = tmp_path / f"{wrong}.hdf5"
        _record(path, checkpoint, observations[:6], wrong=wrong)
        replay_episode(ReplayOptions(str(path), lockstep=True), Signals())
        assert expected in capsys.readouterr().out


class Listener(Node):
    """Keeps what is played, in a thread of its own."""

    def __init__(self) -> None:
        super().__init__("listener")
        self.frames: dict[int, bytes] = {}
        """Stamp in ns -> image of the camera `head`."""
        self.clocks_ns: list[int] = []
        self.create_subscription(Image, "head/image_raw", self._on_image, LATCHED)
        self.create_subscription(Clock, "/clock", self._on_clock, 100)
        self._spinning = Spinning(self)

    def _on_image(self, message: Image) -> None:
        self.frames[stamp_to_ns(message.header.stamp)] = bytes(message.data)

    def _on_clock(self, message: Clock) -> None:
        self.clocks_ns.append(stamp_to_ns(message.clock))

    def wait(self, stamp_ns: int) -> None:
        """Wait until what is played at a time has come."""
        deadline_s = time.monotonic() + WAIT_S
        while not (stamp_ns in self.frames and stamp_ns in self.clocks_ns):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def close(self) -> None:
        self._spinning.end()
        self.destroy_node()


def test_without_lockstep_ticks_come_at_their_own_stamps(
    observations: list[Any], tmp_path: Path
) -> None:
    path, stamps = tmp_path / "episode.hdf5", [30_000_000_000 + n * TICK_NS for n in range(3)]
    action = np.zeros(SPEC.action_size, np.float32)
    with EpisodeWriter(path, SPEC) as writer:
        for values, stamp_ns in zip(observations[:3], stamps, strict=True):
            writer.append(values, action, timestamp_s=stamp_ns * 1e-9)
        writer.finish(instruction=CAN)
    listener = Listener()
    begun_s = time.monotonic()
    replay_episode(ReplayOptions(str(path)), Signals())
    assert time.monotonic() - begun_s >= LEAD_S + 2 * TICK_NS * 1e-9
    listener.wait(stamps[-1])
    listener.close()
    assert listener.frames[stamps[-1]] == observations[2]["head"].tobytes()
    assert set(listener.frames) <= set(stamps)
    assert listener.clocks_ns == sorted(listener.clocks_ns)


def test_a_contract_of_another_robot_is_one_line(observations: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "episode.hdf5"
    with EpisodeWriter(path, replace(SPEC, robot="another")) as writer:
        writer.append(observations[0], np.zeros(SPEC.action_size), timestamp_s=3.0)
        writer.finish(instruction=CAN)
    with pytest.raises(UserError, match="but the episode is for 'another'"):
        replay_episode(ReplayOptions(str(path)), Signals())
