"""Runs the recorder beside made-up cameras, and watches its processor time."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ttm.policy.errors import UserError
from ttm.training.bench.processor_time import used_between, watch_processor
from ttm.training.bench.record.nodes import (
    camera_parameters,
    episode_folder,
    recorder_parameters,
    write_contract,
)
from ttm.training.bench.record.options import BenchRecordOptions
from ttm.training.bench.record.wide_transport import wide_transport
from ttm.training.robot.processes import running_nodes, simulation_environment


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
