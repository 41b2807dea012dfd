"""Runs the recorder beside made-up cameras, and watches its processor time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm.training.bench.processor_time import used_between, watch_processor
from ttm.training.bench.record.options import BenchRecordOptions
from ttm.training.robot.processes import running_nodes, simulation_environment

JOINTS = 7


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
    with _folder(options.out) as episodes, tempfile.TemporaryDirectory(prefix="ttm_bench_") as own:
        contract, out = Path(own) / "robot.yaml", Path(own) / "figures.json"
        contract.write_text(yaml.safe_dump(_contract(options.cameras)))
        shared = {"contract": str(contract), "rate_hz": float(options.rate_hz)}
        nodes = {
            "recorder_node": {**_recorder(options, episodes), **shared},
            "sensors.camera_load": {
                "width": options.width,
                "height": options.height,
                "seconds": float(options.seconds),
                "out": str(out),
                **shared,
            },
        }
        with running_nodes(nodes, simulation_environment()) as processes:
            samples = watch_processor(*(processes[name] for name in nodes))
        if not out.is_file():
            raise UserError("the nodes did not run to the end; see their messages above")
        seen = json.loads(out.read_text())
    cameras = [CameraFigures(name, **figures) for name, figures in seen["cameras"].items()]
    used_s = used_between(samples, seen["begin_s"], seen["end_s"])
    return RecordRun(cameras, seen["cadence"], used_s, seen["streamed_s"])


def _recorder(options: BenchRecordOptions, folder: Path) -> Mapping[str, Any]:
    return {
        "folder": str(folder),
        "jpeg_quality": options.jpeg_quality,
        "instruction": "keep every frame",
        "countdown_s": 0.0,
        "max_delay_s": 1.0,
        "min_fresh": 0.0,
    }


def _contract(cameras: int) -> dict[str, Any]:
    """Return the contract of a robot with so many cameras, an arm and a base."""
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
    return {
        "robot": "bench",
        "base_frame": "base_link",
        "observations": {**images, "joints": joints},
        "actions": {"base": base},
    }


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Yield the folder of the episode, which is deleted afterwards unless it is the user's."""
    if out is not None:
        yield out.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        yield Path(folder)
