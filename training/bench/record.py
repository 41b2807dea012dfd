"""Measure, and report what was kept and what it cost, or what a kill and a full disk leave."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.datasets.tools.check import check_dataset
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_at_most
from ttm.training.bench.common import Report, rows_table
from ttm.training.bench.processes import used_between, watch_processor
from ttm.training.robot.processes import require_rclpy, running_nodes, simulation_environment

# The options of `ttm bench record`.

LEAST_WIDTH, LEAST_HEIGHT = 320, 16
"""As in `ttm_policy.sensors.camera_load`: smaller frames have no room for their number."""


@dataclass(frozen=True)
class BenchRecordOptions:
    """What is recorded, how fast and for how long."""

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


# `ttm bench record`: whether the recorder keeps every frame that reaches it, and what that costs.


@dataclass(frozen=True)
class BenchRecordCommand(BenchRecordOptions):
    """Record made-up cameras over ROS 2, and compare the episode with what they sent.

    Every frame carries a number. Told are the frames that were sent, those that never reached the
    recorder, those that it received and lost, and its processor time, from which follows how many frames
    a second one core can record.

    With --kills or --fill, it tells instead what is left after the recorder was killed, or the disk was
    full: damaged files, and episodes that the recorder had said to be saved and are gone, are lost.

    For example:
      ttm bench record --kills 50 --width 320 --height 240
      ttm bench record --fill --out /mnt/small_disk --jpeg-quality 0
    """

    def run(self) -> int:
        """Measure and print; return the exit code: 1 if the recorder lost anything."""
        self.check()
        require_rclpy()

        return run_bench(self)


# What the nodes of `ttm bench record` are told.

JOINTS = 7


def recorder_parameters(
    options: BenchRecordOptions, folder: Path, contract: Path
) -> dict[str, Any]:
    """Return the parameters of a recorder that keeps all frames, in a folder."""
    return {
        "contract": str(contract),
        "rate_hz": float(options.rate_hz),
        "folder": str(folder),
        "jpeg_quality": options.jpeg_quality,
        "instruction": "keep every frame",
        "countdown_s": 0.0,
        "max_delay_s": 1.0,
        "min_fresh": 0.0,
    }


def camera_parameters(options: BenchRecordOptions, contract: Path) -> dict[str, Any]:
    """Return the parameters of the made-up cameras."""
    return {
        "contract": str(contract),
        "rate_hz": float(options.rate_hz),
        "width": options.width,
        "height": options.height,
        "seconds": options.episode_s,
    }


def write_contract(path: Path, cameras: int) -> None:
    """Write the contract of a robot with so many cameras, an arm and a base."""
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


@contextmanager
def episode_folder(options: BenchRecordOptions) -> Iterator[Path]:
    """Yield the folder of the episodes, which is deleted afterwards unless it is the user's."""
    if options.out is not None:
        yield options.out.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        yield Path(folder)


# Kills the recorder again and again, or fills its disk, and looks what is left of its episodes.

MAX_DELAY_S = 0.1
WHOLE_BEFORE_FULL = 2
"""So many episodes are ended before one goes on until the disk is full."""
WAIT_S = 300.0
"""The longest wait for the recorder to tell something."""
LOOK_S = 0.02


@dataclass
class Run:
    """The recorder at work in a folder, what has it record, and what it has told."""

    folder: Path
    journal: Path
    recorder: subprocess.Popen[bytes]
    load: subprocess.Popen[bytes]
    environment: dict[str, str]

    def told(self, what: str) -> list[str]:
        """Return what the recorder has told: the names of `saved` episodes, `problem` or `refused`."""
        text = self.journal.read_text() if self.journal.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line[what] for line in lines if what in line]

    def files(self, pattern: str) -> set[str]:
        """Return the names of the files in the folder."""
        return {path.name for path in self.folder.glob(pattern)}

    @property
    def lost(self) -> set[str]:
        """The episodes that the recorder has told to be saved, and that are not there."""
        return {Path(path).name for path in self.told("saved")} - self.files("*.hdf5")

    def wait(self, done: Callable[[], bool], problem: str) -> None:
        """Wait for something. Raises `UserError` if it does not come, or the recorder ends."""
        until_s = time.monotonic() + WAIT_S
        while not done():
            if (self.recorder.poll(), self.load.poll()) != (None, None):
                raise UserError("a node has ended; see its messages above")
            if time.monotonic() > until_s:
                raise UserError(f"the recorder {problem}; see its messages above")
            time.sleep(LOOK_S)

    def wait_for_an_episode(self) -> None:
        """Wait until another episode is saved."""
        before = len(self.told("saved"))
        self.wait(lambda: len(self.told("saved")) > before, "saves no episode")

    def kill(self) -> None:
        """Kill the recorder, and wait for its end."""
        self.recorder.kill()
        self.recorder.wait()

    def start_again(self) -> None:
        """Start the recorder with the same parameters."""
        self.recorder = subprocess.Popen(self.recorder.args, env=self.environment)

    def figures(self) -> dict[str, int]:
        """Return what is in the folder."""
        return {
            "whole": len(self.files("*.hdf5")),
            "partial": len(self.files(".*.partial")),
            "damaged": check_dataset(self.folder).num_errors,
            "lost": len(self.lost),
        }


def run_kills(options: BenchRecordOptions, report: Report) -> int:
    """Kill the recorder at random moments.

    Returns 1 if more than the episodes in hand is lost, or a recorder leaves what the one before it left.
    """
    random = np.random.default_rng(options.seed)
    left: list[int] = []
    with _recording(options, endless_after=0) as run:
        for number in range(options.kills):
            if number:
                run.start_again()
            run.wait_for_an_episode()
            time.sleep(random.uniform(0, 2 * (options.episode_s + MAX_DELAY_S)))
            run.kill()
            left.append(len(run.files(".*.partial")))
        found = {"kills": options.kills, "in_hand": sum(map(bool, left)), "most_at_once": max(left)}
        figures = {**found, **run.figures()}
    report.text(
        "{kills} kills, {in_hand} of them with an episode in hand, never more than {most_at_once} at once: "
        "{whole} whole episodes, {damaged} damaged, {lost} lost after they were saved".format(
            **figures
        )
    )
    return _end(report, figures, max(left) > 1)


def run_fill(options: BenchRecordOptions, report: Report) -> int:
    """Record until the disk is full, and return 1 if more than the episode in hand is lost."""
    with _recording(options, endless_after=WHOLE_BEFORE_FULL) as run:
        run.wait(
            lambda: bool(run.told("problem") or run.told("refused")), "finds space for everything"
        )
        if not run.told(
            "refused"
        ):  # what was recorded is deleted, so that there may be space again
            before = len(run.told("saved"))
            run.wait(
                lambda: len(run.told("saved")) > before or bool(run.told("refused")),
                "does not go on",
            )
        report.text("\n".join(f"the recorder says: {text}" for text in _reasons(run)))
        run.recorder.terminate()
        run.recorder.wait()
        figures = run.figures()
    report.text(
        "{whole} whole episodes, {damaged} damaged, {lost} lost after they were saved, {partial} left in "
        "part".format(**figures)
    )
    return _end(report, figures, bool(figures["partial"]))


def _reasons(run: Run) -> list[str]:
    return list(dict.fromkeys(run.told("problem") + run.told("refused")))


def _end(report: Report, figures: dict[str, int], failed: bool) -> int:
    report.figures |= figures
    report.write()
    return int(failed or bool(figures["damaged"] or figures["lost"]))


@contextmanager
def _recording(options: BenchRecordOptions, *, endless_after: int) -> Iterator[Run]:
    """Start the recorder, and what has it record one episode after the other."""
    with (
        episode_folder(options) as episodes,
        tempfile.TemporaryDirectory(prefix="ttm_bench_") as own,
    ):
        contract, journal = Path(own) / "robot.yaml", Path(own) / "journal.jsonl"
        write_contract(contract, options.cameras)
        recorder = recorder_parameters(options, episodes, contract)
        load = camera_parameters(options, contract)
        nodes = {
            "recorder_node": {**recorder, "max_delay_s": MAX_DELAY_S},
            "sensors.episodes_load": {**load, "out": str(journal), "endless_after": endless_after},
        }
        environment = simulation_environment()
        with running_nodes(nodes, environment) as processes:
            recorder_node, episodes_load = processes.values()
            run = Run(episodes, journal, recorder_node, episodes_load, environment)
            try:
                yield run
            finally:
                processes["recorder_node"] = run.recorder


# Shared memory that holds large frames, for the nodes of `ttm bench record`.

VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"
"""Names the file from which Fast DDS takes the settings of every process."""
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


def wide_transport(folder: Path) -> dict[str, str]:
    """Write the profile to a folder, and return the environment that makes processes use it.

    By default the shared memory of Fast DDS holds half a megabyte. Larger messages, such as raw frames of
    640x480 pixels, do not fit, go over UDP in pieces, of which some are lost, and wait for a second or more
    until these are sent again.
    """
    path = folder / "large_frames.xml"
    path.write_text(PROFILE)
    return {VARIABLE: str(path)}


# Runs the recorder beside made-up cameras, and watches its processor time.


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
class RecordRun:
    """What came of one episode."""

    cameras: list[CameraFigures]
    cadence: str
    """What the recorder tells of it."""
    processor_s: float
    """Processor time of the recorder until the episode was complete."""
    streamed_s: float
    """How long the cameras took. They wait for each other's frames to arrive."""


def record_once(options: BenchRecordOptions) -> RecordRun:
    """Record one episode. Raises `UserError` if one of the nodes fails."""
    with (
        episode_folder(options) as episodes,
        tempfile.TemporaryDirectory(prefix="ttm_bench_") as own,
    ):
        contract, out = Path(own) / "robot.yaml", Path(own) / "figures.json"
        write_contract(contract, options.cameras)
        nodes = {
            "recorder_node": recorder_parameters(options, episodes, contract),
            "sensors.camera_load": {**camera_parameters(options, contract), "out": str(out)},
        }
        environment = wide_transport(Path(own)) | simulation_environment()
        with running_nodes(nodes, environment) as processes:
            samples = watch_processor(*(processes[name] for name in nodes))
        if not out.is_file():
            raise UserError("the nodes did not run to the end; see their messages above")
        seen = json.loads(out.read_text())
    cameras = [CameraFigures(name, **figures) for name, figures in seen["cameras"].items()]
    used_s = used_between(samples, seen["begin_s"], seen["end_s"])
    return RecordRun(cameras, seen["cadence"], used_s, seen["streamed_s"])


NOTES = """\
  sent            from the first to the last frame in the file.
  never arrived   not in the file, and lost on their way by the gaps in the publisher's numbers.
  lost            not in the file, although the recorder received them.
The cameras wait until their frames have arrived. Where they run below their rate, the processor is too
slow or busy, and the recorder's processor time contains that of its waiting.
"""


def run_bench(options: BenchRecordOptions) -> int:
    """Run what the options say, print it, and write the figures; return 1 if anything was lost."""
    report = Report(options.json)
    if options.kills:
        return run_kills(options, report)
    if options.fill:
        return run_fill(options, report)
    return run_measurement(options, report)


def run_measurement(options: BenchRecordOptions, report: Report) -> int:
    """Record once, and return 1 if the recorder lost a frame."""
    run = record_once(options)
    columns = {
        "camera": lambda camera: camera.name,
        "sent": lambda camera: str(camera.sent),
        "never arrived": lambda camera: str(camera.never_arrived),
        "in the file": lambda camera: str(camera.in_file),
        "lost": lambda camera: str(camera.lost),
    }
    title = (
        f"{options.width}x{options.height} at {options.rate_hz:g} Hz for {options.episode_s:g} s"
    )
    report.table(rows_table(title, columns, run.cameras), NOTES)
    report.text(f"the recorder says: {run.cadence}")
    report.text(cost(run, options.episode_s))
    report.text(f"the cameras ran at {options.episode_s / run.streamed_s:.0%} of their rate")
    report.figures |= {
        "cameras": [{**asdict(camera), "lost": camera.lost} for camera in run.cameras],
        "processor_s": run.processor_s,
        "seconds": options.episode_s,
        "streamed_s": run.streamed_s,
        "frames_per_core_second": frames_per_core_second(run),
        "cadence": run.cadence,
    }
    report.write()
    return int(any(camera.lost for camera in run.cameras))


def frames_per_core_second(run: RecordRun) -> float:
    """Return how many frames a second one core can record."""
    return _stored(run.cameras) / max(run.processor_s, 1e-9)


def cost(run: RecordRun, seconds: float) -> str:
    """Return what the recording cost, in a sentence."""
    share = run.processor_s / seconds
    return (
        f"the recorder took {share:.2f} s of processor time for each recorded second; one core could record "
        f"{1 / max(share, 1e-9):.1f} times as much, {frames_per_core_second(run):.0f} frames a second"
    )


def _stored(cameras: list[CameraFigures]) -> int:
    return sum(camera.in_file for camera in cameras)
