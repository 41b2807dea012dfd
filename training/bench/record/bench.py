"""Measure, and report what was kept and what it cost, or what a kill and a full disk leave."""

from __future__ import annotations

from dataclasses import asdict

from ttm.training.bench.record.crashes import run_fill, run_kills
from ttm.training.bench.record.measure import CameraFigures, RecordRun, record_once
from ttm.training.bench.record.options import BenchRecordOptions
from ttm.training.bench.report import Report, rows_table

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
