"""What the nodes of `ttm bench record` are told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ttm.training.bench.record.options import BenchRecordOptions

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
