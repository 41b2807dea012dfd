"""The campaign of the recorder: whether it keeps all that reaches it, and what kills and a full disk leave.

Frames of made-up cameras are numbered, and their stamps are as even as those of a camera with a clock of its
own. A frame waits until those before have arrived: on a machine that is too slow, the cameras run slower than
their stamps say, and nothing is lost on the way.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from failing_robot import Spinning, Station
from geometry_msgs.msg import TwistStamped
from node_process import NodeProcess
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets import EpisodeReader, check_dataset
from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.policy import UserError
from ttm.policy.errors import options, require_above_0, require_at_least, require_at_most
from ttm.training.bench.common import Cell, Report, rows_table
from ttm_policy.contract import MOTION_TYPES, RobotContract, load_contract
from ttm_policy.messages import input_types, ns_to_stamp, observation_messages
from ttm_policy.qos import LATCHED

Frame = npt.NDArray[np.uint8]

BITS = 20
"""A camera of 30 Hz counts so far in 9 hours."""
BLOCK = 16
"""Each bit is a block of so many pixels squared, in the upper left corner: white is 1."""
LEAST_WIDTH, LEAST_HEIGHT = BITS * BLOCK, BLOCK
"""Smaller frames have no room for their number."""
CAMERA = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
WAIT_S = 300.0
"""The longest wait for the recorder to answer, and to save."""
SLOWEST = 20
"""The run is given up if the cameras need so many times as long as they would on a quick machine."""
MOST_UNSEEN = 6
"""So many frames may be on their way. Each publisher keeps more, should some have to be sent again."""
ASK_AGAIN_S = 1.0
"""A call that a killed recorder has not answered is made again after so long."""
MAX_DELAY_S = 0.1
"""The recorder's `max_delay_s` while it is killed, or its disk is filled."""
WHOLE_BEFORE_FULL = 2
"""So many episodes are ended before one goes on until the disk is full."""
JOINTS = 7
UTIME, STIME = 11, 12
"""Fields of /proc/PID/stat after the name of the program; see proc(5)."""

NOTES = """\
  sent            from the first to the last frame in the file.
  never arrived   not in the file, and lost on their way by the gaps in the publisher's numbers.
  lost            not in the file, although the recorder received them.
The cameras wait until their frames have arrived. Where they run below their rate, the processor is too
slow or busy, and the recorder's processor time contains that of its waiting.
"""


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


def numbers_in(episode: EpisodeReader, camera: str) -> npt.NDArray[np.int64]:
    """Return the numbers of all frames of `camera`, sorted, each once.

    Few frames are in memory at a time: those of ten minutes would be 17 GB.
    """
    starts, end = range(0, episode.num_samples, BLOCK), episode.num_samples
    blocks = (episode.frames(camera, start, min(start + BLOCK, end)) for start in starts)
    return np.unique(np.concatenate([read_numbers(block) for block in blocks]))


def processor_s(process: int) -> float:
    """Return the seconds for which all threads of a process have run."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[UTIME]) + int(fields[STIME])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CameraFigures:
    """Frames of one camera."""

    name: str
    sent: int
    """From the first to the last one in the file."""
    gaps: int
    """Frames that were lost on their way, by the publisher's numbers, also before the first one."""
    in_file: int

    @property
    def never_arrived(self) -> int:
        """Frames that are not in the file, because they were lost on their way to the recorder."""
        return min(self.gaps, self.sent - self.in_file)

    @property
    def lost(self) -> int:
        """Frames that are not in the file, although the recorder received them."""
        return self.sent - self.in_file - self.never_arrived


@dataclass(frozen=True)
class Recorded:
    """What came of one episode."""

    cameras: list[CameraFigures]
    cadence: str
    """What the recorder tells of it."""
    processor_s: float
    """Processor time of the recorder until the episode was complete."""
    streamed_s: float
    """How long the cameras took. They wait for each other's frames to arrive."""

    @property
    def frames_per_core_second(self) -> float:
        """How many frames a second one core can record."""
        return sum(camera.in_file for camera in self.cameras) / max(self.processor_s, 1e-9)

    def cost(self, seconds: float) -> str:
        """Return what the recording of so many seconds cost, in a sentence."""
        share = self.processor_s / seconds
        return (
            f"the recorder took {share:.2f} s of processor time for each recorded second; one core could "
            f"record {1 / max(share, 1e-9):.1f} times as much, "
            f"{self.frames_per_core_second:.0f} frames a second"
        )


class CameraLoad(Station):
    """Publishes numbered frames, joints and commands that change, beside a recorder."""

    def __init__(self, contract: RobotContract, campaign: RecorderCampaign) -> None:
        super().__init__("camera_load")
        self._contract, self._campaign = contract, campaign
        self.wait_s = WAIT_S + SLOWEST * campaign.episode_s
        size = campaign.height, campaign.width
        self._frames = {s.name: picture(*size, n) for n, s in enumerate(contract.images)}
        vectors = {s.name: np.zeros(len(s.fields), np.float32) for s in contract.vectors}
        self._values: dict[str, npt.NDArray[Any]] = {**self._frames, **vectors}
        self._sensors = {
            topic: self.create_publisher(kind, topic, CAMERA)
            for topic, kind in input_types(contract).items()
        }
        moving = {sink.topic for sink in contract.actions if sink.type in MOTION_TYPES}
        self._commands = [self.create_publisher(TwistStamped, t, CAMERA) for t in moving]
        self.create_subscription(String, "recorder_node/status", self._on_status, LATCHED)
        self.status: dict[str, Any] = {}
        self.number, self._begin_ns = 0, self.get_clock().now().nanoseconds
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(0.5 / campaign.rate_hz, self._publish, clock=steady)
        self._spinning = Spinning(self)

    def _on_status(self, message: String) -> None:
        self.status = json.loads(message.data)
        self.message = self.status["problem"]

    def _publish(self) -> None:
        """Publish the next frames if their time has come."""
        # The period in whole ns is never longer than a tick, so that each tick has its own frame.
        stamp_ns = self._begin_ns + self.number * int(1e9 / self._campaign.rate_hz)
        seen_ns = self.status.get("newest_ns", 0)
        unseen = (stamp_ns - seen_ns) * 1e-9 * self._campaign.rate_hz
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

    def record(self, process: int) -> Recorded:
        """Let the recorder, whose process is named, record an episode. Raises `UserError` if it fails."""
        self.wait(lambda: self.status.get("newest_ns", 0) > 0, "the cameras to be seen")
        self._require(self.ask("recorder_node/start"))
        self.wait(lambda: self.status["state"] == "recording", "the beginning of the episode")
        begin_s, used_s = time.monotonic(), processor_s(process)
        last = self.number + round(self._campaign.episode_s * self._campaign.rate_hz)
        self.wait(lambda: self.number > last or self.message, "the frames")
        streamed_s = time.monotonic() - begin_s
        self._require(self.ask("recorder_node/stop", SetBool, data=True))
        self.wait(lambda: self.status["episodes"] == 1 or self.message, "the episode to be saved")
        used_s = processor_s(process) - used_s
        if self.message:
            raise UserError(f"the recorder gave up: {self.message}")
        episode, cameras = EpisodeReader.open(self.status["last"]), []
        for source in self._contract.images:
            numbers, gaps = numbers_in(episode, source.name), self.status["lost"]
            sent, lost = int(numbers[-1] - numbers[0] + 1), int(gaps.get(source.topic, 0))
            cameras.append(CameraFigures(source.name, sent, lost, len(numbers)))
        return Recorded(cameras, self.status["cadence"], used_s, streamed_s)

    def _require(self, answer: Any) -> None:
        if not answer.success:
            raise UserError(f"the recorder refused: {answer.message}")

    def close(self) -> None:
        """End the thread and the node."""
        self._spinning.end()
        self.destroy_node()


class EpisodesLoad(CameraLoad):
    """Has one short episode recorded after the other, however often the recorder fails or is killed."""

    def __init__(
        self, contract: RobotContract, campaign: RecorderCampaign, endless_after: int
    ) -> None:
        """endless_after: the episode after so many goes on until it fails; 0 for none."""
        self._endless_after = endless_after
        self.told: dict[str, list[str]] = {"saved": [], "problem": [], "refused": []}
        """What the recorder has told: paths of episodes, problems, and why it does not start."""
        self._newest: dict[str, str] = {}
        self._asked: Future[Any] | None = None
        self._asked_s = -ASK_AGAIN_S
        super().__init__(contract, campaign)
        self._starts = self.create_client(Trigger, "recorder_node/start")
        self._stops = self.create_client(SetBool, "recorder_node/stop")
        self.create_timer(0.05, self._go_on, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _go_on(self) -> None:
        """Start or stop an episode by what the recorder's status says."""
        self._note("saved", self.status.get("last", ""))
        self._note("problem", self.message)
        state = self.status.get("state")
        if state == "ready" and not self.status["missing"]:
            if self._ask(self._starts, Trigger.Request()) and self._asked is not None:
                self._asked.add_done_callback(self._on_start)
        elif state == "recording" and self._is_long_enough():
            self._ask(self._stops, SetBool.Request(data=True))

    def _is_long_enough(self) -> bool:
        endless = len(self.told["saved"]) == self._endless_after > 0 and not self.told["problem"]
        ticks = self._campaign.episode_s * self._campaign.rate_hz
        return not endless and bool(self.status["ticks"] >= ticks)

    def _ask(self, client: Any, request: Any) -> bool:
        """Call a service of the recorder, unless a call is still under way; return whether it is called."""
        under_way = self._asked is not None and not self._asked.done()
        waits = under_way and time.monotonic() - self._asked_s < ASK_AGAIN_S
        if waits or not client.service_is_ready():
            return False
        self._asked, self._asked_s = client.call_async(request), time.monotonic()
        return True

    def _on_start(self, future: Future[Any]) -> None:
        """Note a refusal, unless it is that of a call that was made twice."""
        answer = future.result()
        if answer is not None and not answer.message.startswith("it is "):
            self._note("refused", "" if answer.success else answer.message)

    def _note(self, what: str, text: str) -> None:
        if text and text != self._newest.get(what, ""):
            self.told[what].append(text)
        self._newest[what] = text


@dataclass(frozen=True)
class RecorderCampaign:
    """Record made-up cameras over ROS 2, and compare the episode with what they sent.

    Every frame carries a number. The campaign counts the frames that were sent, those that never reached the
    recorder, and those that it received and lost; and the recorder's processor time, from which follows how
    many frames a second one core can record. With --kills or --fill, it says instead what is left after the
    recorder was killed, or the disk was full: damaged files, and episodes that the recorder had said to be
    saved and are gone, are lost.
    """

    seconds: float | None = None
    """How long is recorded; by default 20 s, and with --kills and --fill episodes of 1 s."""
    rate_hz: float = 30.0
    """Frames of each camera, and ticks, per second."""
    cameras: int = 2
    """The number of cameras."""
    width: int = 640
    """The width of their frames, in pixels."""
    height: int = 480
    """The height of their frames, in pixels."""
    jpeg_quality: int = 90
    """As in ttm record: the quality of stored JPEGs; 0 stores frames without loss."""
    kills: int = 0
    """In place of the measurement: kill the recorder so many times, each at a random moment, while it
    records one episode after the other, and look what is left."""
    fill: bool = False
    """In place of the measurement: record until the disk of --out is full, and look what is left."""
    seed: int = 0
    """With --kills: seed of the moments."""
    out: Path | None = None
    """Folder in which to keep the episode; by default it is deleted."""
    json: Path | None = None
    """Also write all figures to this file."""

    @property
    def episode_s(self) -> float:
        """The length of an episode, in seconds."""
        if self.seconds is not None:
            return self.seconds
        return 1.0 if self.kills or self.fill else 20.0

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "rate_hz") | {"--seconds": self.episode_s})
        require_at_least(0, options(self, "kills"))
        if self.fill and (self.out is None or self.kills):
            raise UserError("--fill needs --out with a folder on a small disk, and no --kills")
        require_at_least(1, options(self, "cameras"))
        require_at_least(LEAST_WIDTH, options(self, "width"))
        require_at_least(LEAST_HEIGHT, options(self, "height"))
        require_at_least(0, options(self, "jpeg_quality"))
        require_at_most(MOST_JPEG_QUALITY, options(self, "jpeg_quality"))

    def run(self) -> int:
        """Do what the options say, print it, and write the figures; return 1 if anything was lost."""
        with tempfile.TemporaryDirectory(prefix="ttm_endurance_") as own:
            folder = Path(own)
            if self.kills:
                return self._run_kills(folder)
            if self.fill:
                return self._run_fill(folder)
            return self._run_measurement(folder)

    def _run_measurement(self, folder: Path) -> int:
        widen_transport(folder)
        load = CameraLoad(write_contract(folder / "robot.yaml", self.cameras), self)
        with recording(folder, self, load, max_delay_s=1.0) as run:
            found = load.record(run.recorder.pid)
        columns: dict[str, Cell] = {
            "camera": lambda camera: camera.name,
            "sent": lambda camera: str(camera.sent),
            "never arrived": lambda camera: str(camera.never_arrived),
            "in the file": lambda camera: str(camera.in_file),
            "lost": lambda camera: str(camera.lost),
        }
        size, seconds = f"{self.width}x{self.height}", self.episode_s
        report = Report(self.json)
        title = f"{size} at {self.rate_hz:g} Hz for {seconds:g} s"
        report.table(rows_table(title, columns, found.cameras), NOTES)
        report.text(f"the recorder says: {found.cadence}")
        report.text(found.cost(seconds))
        report.text(f"the cameras ran at {seconds / found.streamed_s:.0%} of their rate")
        report.figures |= {
            **asdict(found),
            "cameras": [{**asdict(camera), "lost": camera.lost} for camera in found.cameras],
            "seconds": seconds,
            "frames_per_core_second": found.frames_per_core_second,
        }
        report.write()
        return int(any(camera.lost for camera in found.cameras))

    def _run_kills(self, folder: Path) -> int:
        """Return 1 also if a recorder leaves what the one before it left."""
        random = np.random.default_rng(self.seed)
        left: list[int] = []
        load = EpisodesLoad(write_contract(folder / "robot.yaml", self.cameras), self, 0)
        with recording(folder, self, load) as run:
            for number in range(self.kills):
                if number:
                    run.start()
                saved = len(load.told["saved"])
                load.wait(lambda saved=saved: len(load.told["saved"]) > saved, "an episode")
                time.sleep(random.uniform(0, 2 * (self.episode_s + MAX_DELAY_S)))
                run.end(signal.SIGKILL)
                left.append(len(run.files(".*.partial")))
            found = {
                "kills": self.kills,
                "in_hand": sum(map(bool, left)),
                "most_at_once": max(left),
            }
            figures = {**found, **run.figures()}
        text = (
            "{kills} kills, {in_hand} of them with an episode in hand, never more than {most_at_once} at "
            "once: {whole} whole episodes, {damaged} damaged, {lost} lost after they were saved"
        )
        return self._end(text.format(**figures), figures, max(left) > 1)

    def _run_fill(self, folder: Path) -> int:
        """Return 1 also if anything is left of the episode in hand."""
        contract = write_contract(folder / "robot.yaml", self.cameras)
        load = EpisodesLoad(contract, self, WHOLE_BEFORE_FULL)
        told = load.told
        with recording(folder, self, load) as run:
            load.wait(lambda: told["problem"] or told["refused"], "the end of the space")
            if not told[
                "refused"
            ]:  # what was recorded is deleted, so that there may be space again
                saved = len(told["saved"])
                load.wait(lambda: len(told["saved"]) > saved or told["refused"], "it to go on")
            reasons = dict.fromkeys(told["problem"] + told["refused"])
            run.end(signal.SIGTERM)
            figures = run.figures()
        text = (
            "{whole} whole episodes, {damaged} damaged, {lost} lost after they were saved, {partial} left in "
            "part"
        )
        said = "".join(f"the recorder says: {reason}\n" for reason in reasons)
        return self._end(said + text.format(**figures), figures, bool(figures["partial"]))

    def _end(self, text: str, figures: dict[str, int], failed: bool) -> int:
        report = Report(self.json, **figures)
        report.text(text)
        report.write()
        return int(failed or bool(figures["damaged"] or figures["lost"]))


class RecorderRun:
    """The recorder at work in a folder, beside what has it record."""

    def __init__(self, episodes: Path, own: Path, load: CameraLoad, parameters: dict[str, Any]):
        self.folder, self.load = episodes, load
        self._own, self._parameters, self._started = own, parameters, 0

    def start(self) -> None:
        """Start the recorder."""
        self._started += 1
        folder = self._own / f"recorder_{self._started}"
        self.recorder = NodeProcess("recorder_node", folder, self._parameters, constants={})
        self.load.processes = [self.recorder]

    def end(self, number: signal.Signals) -> None:
        """End the recorder by a signal."""
        self.load.processes = []
        self.recorder.send(number)
        self.recorder.wait()

    def files(self, pattern: str) -> set[str]:
        """Return the names of the files in the folder."""
        return {path.name for path in self.folder.glob(pattern)}

    def figures(self) -> dict[str, int]:
        """Return what is in the folder, and how many episodes are not that were told to be saved."""
        told = {Path(path).name for path in self.load.told["saved"]}
        return {
            "whole": len(self.files("*.hdf5")),
            "partial": len(self.files(".*.partial")),
            "damaged": check_dataset(self.folder).num_errors,
            "lost": len(told - self.files("*.hdf5")),
        }


@contextmanager
def recording(
    own: Path, campaign: RecorderCampaign, load: CameraLoad, max_delay_s: float = MAX_DELAY_S
) -> Iterator[RecorderRun]:
    """Yield a recorder that keeps all frames, and runs beside a load."""
    episodes = own / "episodes" if campaign.out is None else campaign.out.absolute()
    parameters = {
        "contract": str(own / "robot.yaml"),
        "rate_hz": float(campaign.rate_hz),
        "folder": str(episodes),
        "jpeg_quality": campaign.jpeg_quality,
        "instruction": "keep every frame",
        "countdown_s": 0.0,
        "max_delay_s": max_delay_s,
        "min_fresh": 0.0,
    }
    run = RecorderRun(episodes, own, load, parameters)
    try:
        run.start()
        yield run
    except TimeoutError:
        print(run.recorder.output)
        raise
    finally:
        run.end(signal.SIGINT)
        load.close()


def write_contract(path: Path, cameras: int) -> RobotContract:
    """Write and return the contract of a robot with so many cameras, an arm and a base."""
    images = {
        f"camera_{n}": {"topic": f"camera_{n}/image_raw", "type": "sensor_msgs/Image"}
        for n in range(cameras)
    }
    joints = {
        "topic": "joint_states",
        "type": "sensor_msgs/JointState",
        "fields": [f"joint_{n}" for n in range(JOINTS)],
    }
    base = {
        "topic": "cmd_vel",
        "type": "geometry_msgs/TwistStamped",
        "fields": ["twist.linear.x", "twist.angular.z"],
        "limit": ["max_forward_m_s", "max_yaw_rad_s"],
    }
    contract = {
        "robot": "bench",
        "base_frame": "base_link",
        "observations": {**images, "joints": joints},
        "actions": {"base": base},
    }
    path.write_text(yaml.safe_dump(contract))
    return load_contract(path)


PROFILE = """\
<?xml version="1.0" encoding="UTF-8"?>
<dds xmlns="http://www.eprosima.com"><profiles>
  <transport_descriptors>
    <transport_descriptor>
      <transport_id>shared_memory</transport_id><type>SHM</type>
      <segment_size>67108864</segment_size><maxMessageSize>8388608</maxMessageSize>
    </transport_descriptor>
    <transport_descriptor><transport_id>network</transport_id><type>UDPv4</type></transport_descriptor>
  </transport_descriptors>
  <participant profile_name="large_frames" is_default_profile="true"><rtps>
    <userTransports><transport_id>shared_memory</transport_id><transport_id>network</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles></dds>
"""


def widen_transport(folder: Path) -> None:
    """Let this process and its children have shared memory for large frames, unless the user has a profile.

    By default the shared memory of Fast DDS holds half a megabyte. Larger messages, such as raw frames of
    640x480 pixels, do not fit, go over UDP in pieces, of which some are lost, and wait for a second or more
    until these are sent again.
    """
    path = folder / "large_frames.xml"
    path.write_text(PROFILE)
    os.environ.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", str(path))
