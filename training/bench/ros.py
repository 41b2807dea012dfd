"""Run the nodes, and report how regular the ticks were."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError, options, require_above_0
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.common import Line, Report, bar_table
from ttm.training.bench.processes import SETTLING_S, growth_mb, run_beside, some_instruction
from ttm.training.robot.processes import require_rclpy

# The options of `ttm bench ros`.


@dataclass(frozen=True)
class RosOptions:
    """What runs, how fast and for how long."""

    minutes: float = 10.0
    """How long ticks are counted, after the start."""
    rate_hz: float = 10.0
    """Ticks per second that are asked of the policy, whatever rate it was trained at."""
    sensors_hz: float = 30.0
    """Messages per second of each made-up sensor."""
    checkpoint: Path | None = None
    """A .safetensors file; by default the policy that ships with the project."""
    contract: Path | None = None
    """YAML file of the robot's topics; by default that of the simulated robot."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "minutes", "rate_hz", "sensors_hz"))


# `ttm bench ros`: whether the policy's node keeps its rate for minutes, beside made-up sensors.


@dataclass(frozen=True)
class BenchRosCommand(RosOptions):
    """Run the policy's node over ROS 2 at a steady rate, and measure how regular its ticks are.

    Made-up sensors publish every input of the contract. Counted are the actions that arrive at
    another process: the periods between them, ticks that are late or too close, and how the
    node's memory grows. Nothing moves. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()

        run_bench(self)
        return 0


# Runs the policy's node beside made-up sensors, and watches its memory.

START_S = 300.0
"""The longest time until the first action, and from the last one until the sensors end."""


@dataclass(frozen=True)
class RosRun:
    """What was seen of one run."""

    arrivals_s: list[float]
    """When each action arrived, on a steady clock."""
    memory_mb: list[tuple[float, float]]
    """Time and resident memory of the policy's process, while actions arrived."""
    diagnostics: Mapping[str, str]
    """The last values on `/diagnostics`."""


def run_nodes(options: RosOptions) -> RosRun:
    """Run both nodes for the time that the options name.

    Raises `UserError` if the policy's node ends before, or sends nothing.
    """
    with _policy_at(options) as (checkpoint, spec, instruction), _out_file() as out:
        contract = str(options.contract or "")
        policy = {"checkpoint": str(checkpoint), "instruction": instruction, "contract": contract}
        sensors: dict[str, Any] = {"spec": spec, "contract": contract, "out": str(out)}
        sensors |= {"rate_hz": float(options.sensors_hz), "seconds": options.minutes * 60.0}
        limit_s = START_S + options.minutes * 60.0
        seen, memory = run_beside(policy, "sensors.fake_sensors", sensors, limit_s)
    arrivals = seen["arrivals_s"]
    memory = [sample for sample in memory if arrivals and sample[0] >= arrivals[0]]
    return RosRun(arrivals, memory, seen["diagnostics"])


@contextmanager
def _policy_at(options: RosOptions) -> Iterator[tuple[Path, str, str]]:
    """Yield a copy of the checkpoint that ticks at the wanted rate, its spec, and an instruction."""
    policy, info = load_checkpoint(checkpoint_path(options.checkpoint or SHIPPED))
    policy.spec = replace(policy.spec, rate_hz=options.rate_hz)
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        path = Path(folder) / "policy.safetensors"
        save_checkpoint(path, policy, info)
        yield path, policy.spec.to_json(), some_instruction(policy)


@contextmanager
def _out_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        yield Path(folder) / "ticks.json"


# How regular ticks are.

LATE = 1.1
"""A tick is late if more than this many periods passed since the one before."""
FEWEST = 10
"""There are no figures of fewer ticks."""


@dataclass(frozen=True)
class Regularity:
    """Figures of the periods between ticks, in milliseconds."""

    ticks: int
    rate_hz: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    closest_ms: float
    late_share: float


def regularity(arrivals_s: Sequence[float], period_s: float) -> Regularity:
    """Return the figures of ticks that arrived at these times. Raises `UserError` for too few."""
    if len(arrivals_s) < FEWEST:
        raise UserError(
            f"only {len(arrivals_s)} actions came from policy_node; see its messages above, "
            "or count for longer with --minutes"
        )
    periods_ms = np.diff(np.asarray(arrivals_s)) * 1e3
    return Regularity(
        ticks=len(arrivals_s),
        rate_hz=float(1e3 / periods_ms.mean()),
        p50_ms=float(np.median(periods_ms)),
        p99_ms=float(np.percentile(periods_ms, 99)),
        worst_ms=float(periods_ms.max()),
        closest_ms=float(periods_ms.min()),
        late_share=float((periods_ms > LATE * period_s * 1e3).mean()),
    )


# The table that `ttm bench ros` prints.

CLOSEST_SHARE = 0.5
LATE_SHARE = 0.01
GROWTH_MB = 1.0

NOTES = f"""\
Ticks are the policy's actions as another process receives them, with what two processes and the
network between them add.
  late     the share of periods above {LATE:g} times the one that was asked for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first action until the end;
           a dash if that was too short.
"""


def lines(found: Regularity, growth_mb: float | None, period_s: float) -> list[Line]:
    """Return all figures with their bars. period_s: what was asked for."""
    late_ms, closest_ms = LATE * period_s * 1e3, CLOSEST_SHARE * period_s * 1e3
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("ticks", found.ticks, 0, "", None),
        Line("rate, Hz", found.rate_hz, 2, "", None),
        Line("median period, ms", found.p50_ms, 1, "", None),
        Line("p99 period, ms", found.p99_ms, 1, f"<= {late_ms:g}", found.p99_ms <= late_ms),
        Line("worst period, ms", found.worst_ms, 1, "", None),
        Line(
            "closest ticks, ms",
            found.closest_ms,
            1,
            f">= {closest_ms:g}",
            found.closest_ms >= closest_ms,
        ),
        Line(
            "late, %",
            100 * found.late_share,
            2,
            f"<= {100 * LATE_SHARE:g}",
            found.late_share <= LATE_SHARE,
        ),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]


def run_bench(options: RosOptions) -> None:
    """Measure, print a table, and write the figures. Raises `UserError` if there were no ticks."""
    report = Report(options.json, rate_hz=options.rate_hz, sensors_hz=options.sensors_hz)
    run = run_nodes(options)
    period_s = 1.0 / options.rate_hz
    found, growth = regularity(run.arrivals_s, period_s), growth_mb(run.memory_mb)
    seconds = run.arrivals_s[-1] - run.arrivals_s[0]
    title = f"policy_node at {options.rate_hz:g} Hz for {seconds:.0f} s"
    report.table(bar_table(title, lines(found, growth, period_s)), NOTES)
    told = ", ".join(f"{key} {value}" for key, value in run.diagnostics.items() if "_ms" in key)
    report.text(f"/diagnostics at the end: {run.diagnostics.get('message', 'nothing')}; {told}")
    report.figures |= {
        **asdict(found),
        "growth_mb": growth,
        "seconds": seconds,
        "diagnostics": dict(run.diagnostics),
    }
    report.write()
