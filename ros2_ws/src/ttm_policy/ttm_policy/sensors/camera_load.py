"""Cameras at full rate for a recorder, whose episode is then compared with what they sent.

`ttm bench record` starts it beside `recorder_node`; nothing moves. Frames are numbered, and their stamps
are as even as those of a camera with a clock of its own. A frame waits until those before have arrived:
on a machine that is too slow, the cameras run slower than their stamps say, and nothing is lost on the way.

    python -m ttm_policy.sensors.camera_load --ros-args -p contract:=robot.yaml -p out:=figures.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import TwistStamped
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets.reader import EpisodeReader
from ttm.policy.errors import UserError
from ttm_policy.contract import MOTION_TYPES, load_contract
from ttm_policy.inputs import read_json
from ttm_policy.messages import input_types, ns_to_stamp, observation_messages
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import NodeParameters, Parameter
from ttm_policy.programs import StopSignals, run_with_ros
from ttm_policy.qos import LATCHED

# Frames that carry a number, which survives their compression as JPEGs.

Frame = npt.NDArray[np.uint8]

BITS = 20
"""A camera of 30 Hz counts so far in 9 hours."""
BLOCK = 16
"""Each bit is a block of so many pixels squared, in the upper left corner: white is 1."""
LEAST_WIDTH, LEAST_HEIGHT = BITS * BLOCK, BLOCK
"""Smaller frames have no room for their number."""


def picture(height: int, width: int, seed: int) -> Frame:
    """Return a frame (H, W, 3) that compresses about as a camera's: coarse patches with some noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // BLOCK + 1, width // BLOCK + 1, 3))
    patches = coarse.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)[:height, :width]
    noisy = patches + random.normal(0, 4, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def write_number(frame: Frame, number: int) -> None:
    """Write a number below 2**`BITS` into a frame (H, W, 3) with room for it."""
    bits = (number >> np.arange(BITS)) & 1
    frame[:BLOCK, :LEAST_WIDTH] = (255 * bits).astype(np.uint8).repeat(BLOCK)[None, :, None]


def read_numbers(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the number of each frame. frames: (n, H, W, 3) -> (n,)."""
    middles = BLOCK // 2 + BLOCK * np.arange(BITS)
    bits = frames[:, BLOCK // 2, middles, 0] > 127  # (n, BITS)
    return (bits.astype(np.int64) << np.arange(BITS)).sum(axis=1)


STATUS = {
    "state": str,
    "problem": str,
    "last": str,
    "cadence": str,
    "ticks": int,
    "episodes": int,
    "newest_ns": int,
    "missing": list,
    "lost": dict,
}
"""What is read of the recorder's status; see `read_json`."""
CAMERA = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
WAIT_S = 300.0
"""The longest wait for the recorder to answer, and to save."""
MOST_UNSEEN = 6
"""So many frames may be on their way. Each publisher keeps more, should some have to be sent again."""
SLOWEST = 20
"""The run is given up if the cameras need so many times as long as they would on a quick machine."""


@dataclass(frozen=True)
class CameraLoadParameters(NodeParameters):
    """The parameters of `camera_load`."""

    contract: Annotated[str, Parameter("YAML file of the topics.")] = ""
    width: Annotated[int, Parameter("Width of the frames.", unit="pixels", minimum=LEAST_WIDTH)] = (
        640
    )
    height: Annotated[
        int, Parameter("Height of the frames.", unit="pixels", minimum=LEAST_HEIGHT)
    ] = 480
    rate_hz: Annotated[
        float, Parameter("Frames of each camera per second.", unit="Hz", positive=True)
    ] = 30.0
    seconds: Annotated[float, Parameter("How long to record.", unit="s", positive=True)] = 20.0
    out: Annotated[str, Parameter("File for the figures, as JSON.", is_path=True)] = ""


class CameraLoad(Node):
    """Publishes numbered frames, joints and commands that change, and tells the recorder what to do."""

    def __init__(
        self, signals: StopSignals, kind: type[CameraLoadParameters] = CameraLoadParameters
    ) -> None:
        super().__init__("camera_load")
        declare_parameters(self, kind)
        self.parameters = given = read_parameters(self, kind)
        if not given.out:
            raise UserError("parameter out is empty; give the file to write, as in -p out:=FILE")
        self._signals, self._contract = signals, load_contract(given.contract)
        names = [source.name for source in self._contract.images]
        self._frames = {n: picture(given.height, given.width, k) for k, n in enumerate(names)}
        vectors = {s.name: np.zeros(len(s.fields), np.float32) for s in self._contract.vectors}
        self._values: dict[str, npt.NDArray[Any]] = {**self._frames, **vectors}
        self._sensors = {
            topic: self.create_publisher(kind, topic, CAMERA)
            for topic, kind in input_types(self._contract).items()
        }
        moving = {sink.topic for sink in self._contract.actions if sink.type in MOTION_TYPES}
        self._commands = [self.create_publisher(TwistStamped, t, CAMERA) for t in moving]
        self.create_subscription(String, "recorder_node/status", self._on_status, LATCHED)
        self.status: dict[str, Any] = {}
        self.number, self._begin_ns = 0, self.get_clock().now().nanoseconds
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(0.5 / given.rate_hz, self._publish, clock=steady)

    def _on_status(self, message: String) -> None:
        self.status = read_json(self, "recorder_node/status", message, STATUS) or self.status

    def _publish(self) -> None:
        """Publish the next frames if their time has come."""
        # The period in whole ns is never longer than a tick, so that each tick has its own frame.
        stamp_ns = self._begin_ns + self.number * int(1e9 / self.parameters.rate_hz)
        seen_ns = self.status.get("newest_ns", 0)
        unseen = (stamp_ns - seen_ns) * 1e-9 * self.parameters.rate_hz
        if (seen_ns and unseen > MOST_UNSEEN) or stamp_ns > self.get_clock().now().nanoseconds:
            return
        for frame in self._frames.values():
            write_number(frame, self.number)
        stamp = ns_to_stamp(stamp_ns)
        for topic, message in observation_messages(self._contract, self._values, stamp).items():
            self._sensors[topic].publish(message)
        command = TwistStamped()
        command.header.stamp = stamp
        command.twist.linear.x = 0.01 * (self.number % 2)
        for publisher in self._commands:
            publisher.publish(command)
        self.number += 1

    def record(self) -> dict[str, Any]:
        """Let the recorder record an episode, and return the figures. Raises `UserError` if it fails."""
        self._wait(lambda: self.status.get("newest_ns", 0) > 0, "does not see the cameras")
        self._call(Trigger, "start", Trigger.Request())
        self._wait(lambda: self._state == "recording", "does not record")
        begin_s = time.monotonic()
        last = self.number + round(self.parameters.seconds * self.parameters.rate_hz)
        self._wait(lambda: self.number > last or self._failed, "is too slow")
        streamed_s = time.monotonic() - begin_s
        self._require_success()
        self._call(SetBool, "stop", SetBool.Request(data=True))
        self._wait(lambda: self.status["episodes"] == 1 or self._failed, "does not save")
        self._require_success()
        return {
            "begin_s": begin_s,
            "end_s": time.monotonic(),
            "streamed_s": streamed_s,
            "cadence": self.status["cadence"],
            "cameras": self._compared(EpisodeReader.open(self.status["last"])),
        }

    @property
    def _state(self) -> str:
        return str(self.status.get("state"))

    @property
    def _failed(self) -> bool:
        return bool(self.status.get("problem"))

    def _require_success(self) -> None:
        if self._failed:
            raise UserError(f"the recorder gave up: {self.status['problem']}")

    def _compared(self, episode: EpisodeReader) -> dict[str, dict[str, int]]:
        """Return, for each camera, how many frames were sent, were lost on their way, and are in the file."""
        found = {}
        for source in self._contract.images:
            numbers = numbers_in(episode, source.name)
            found[source.name] = {
                "sent": int(numbers[-1] - numbers[0] + 1),
                "gaps": int(self.status["lost"].get(source.topic, 0)),
                "in_file": len(numbers),
            }
        return found

    def _call(self, kind: Any, name: str, request: Any) -> None:
        client = self.create_client(kind, f"recorder_node/{name}")
        self._wait(client.service_is_ready, f"has no service {name}")
        future = client.call_async(request)
        self._wait(future.done, f"does not answer {name}")
        if not future.result().success:
            raise UserError(f"the recorder refused to {name}: {future.result().message}")

    def _wait(self, done: Callable[[], bool], problem: str) -> None:
        deadline_s = time.monotonic() + WAIT_S + SLOWEST * self.parameters.seconds
        while not done():
            if self._signals.requested:
                raise UserError("interrupted by a signal")
            if time.monotonic() > deadline_s:
                raise UserError(f"the recorder {problem}; see its messages above")
            self._executor.spin_once(timeout_sec=0.05)


def numbers_in(episode: EpisodeReader, camera: str) -> npt.NDArray[np.int64]:
    """Return the numbers of all frames of `camera`, sorted, each once.

    Few frames are in memory at a time: those of ten minutes would be 17 GB.
    """
    starts, end = range(0, episode.num_samples, BLOCK), episode.num_samples
    blocks = (episode.frames(camera, start, min(start + BLOCK, end)) for start in starts)
    return np.unique(np.concatenate([read_numbers(block) for block in blocks]))


def _run() -> int:
    node = CameraLoad(StopSignals())
    figures = node.record()
    Path(node.parameters.out).write_text(json.dumps(figures))
    return 0


def main() -> int:
    """Let one episode be recorded, and write the figures. Return the exit code."""
    return run_with_ros("camera_load", _run)


if __name__ == "__main__":
    sys.exit(main())
