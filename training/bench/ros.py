"""`ttm bench ros`: whether `policy_node` keeps its rate for minutes, beside made-up sensors."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError, options, require_above_0
from ttm.policy.spec import SHIPPED, checkpoint_path
from ttm.training.bench.common import BenchCommand, Figures, Line, Report, bar_table, resident_mb
from ttm.training.robot.processes import require_rclpy, running_nodes, simulation_environment

Samples = list[tuple[float, float]]
"""Times in seconds, on a steady clock, each with the resident memory (MB) of a process."""

SETTLING_S = 20.0
"""The memory of a process is compared from this time on: libraries fill their pools at first."""
SENSORS_HZ = 30.0
"""Messages per second of each made-up sensor."""
START_S = 300.0
"""The longest time until the first action, and from the last one until the sensors end."""
LATE = 1.1
"""A tick is late if more than this many periods passed since the one before."""
CLOSEST_SHARE, LATE_SHARE, GROWTH_MB = 0.5, 0.01, 1.0
"""The bars: the shortest period as a share of the one asked for, late ticks, growth of memory."""
FEWEST = 10
"""There are no figures of fewer ticks."""

NOTES = f"""\
Ticks are the policy's actions as another process receives them, with what two processes and the
network between them add.
  late     the share of periods above {LATE:g} times the one that was asked for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first action until the end;
           a dash if that was too short.
"""


def growth_mb(samples: Samples) -> float | None:
    """Return how much memory a process gained since it settled; None if it was not watched so long.

    It is the difference of the medians of the first and of the last tenth.
    """
    if not samples or samples[-1][0] - samples[0][0] < 2 * SETTLING_S:
        return None
    settled = [mb for at_s, mb in samples if at_s - samples[0][0] >= SETTLING_S]
    tenth = max(1, len(settled) // 10)
    return float(np.median(settled[-tenth:]) - np.median(settled[:tenth]))


def regularity(arrivals_s: Sequence[float], period_s: float) -> Figures:
    """Return the figures of ticks that arrived at these times. Raises `UserError` for too few."""
    if len(arrivals_s) < FEWEST:
        raise UserError(
            f"only {len(arrivals_s)} actions came from policy_node; see its messages above, "
            "or count for longer with --minutes"
        )
    periods_ms = np.diff(np.asarray(arrivals_s)) * 1e3
    return {
        "ticks": len(arrivals_s),
        "rate_hz": float(1e3 / periods_ms.mean()),
        "p50_ms": float(np.median(periods_ms)),
        "p99_ms": float(np.quantile(periods_ms, 0.99)),
        "worst_ms": float(periods_ms.max()),
        "closest_ms": float(periods_ms.min()),
        "late_share": float((periods_ms > LATE * period_s * 1e3).mean()),
    }


def lines(found: Figures, growth_mb: float | None, period_s: float) -> list[Line]:
    """Return all figures with their bars. period_s: what was asked for."""
    late_ms, closest_ms = LATE * period_s * 1e3, CLOSEST_SHARE * period_s * 1e3
    p99_ms, shortest_ms, share = found["p99_ms"], found["closest_ms"], found["late_share"]
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("ticks", found["ticks"], 0),
        Line("rate, Hz", found["rate_hz"], 2),
        Line("median period, ms", found["p50_ms"], 1),
        Line("p99 period, ms", p99_ms, 1, f"<= {late_ms:g}", p99_ms <= late_ms),
        Line("worst period, ms", found["worst_ms"], 1),
        Line("closest ticks, ms", shortest_ms, 1, f">= {closest_ms:g}", shortest_ms >= closest_ms),
        Line("late, %", 100 * share, 2, f"<= {100 * LATE_SHARE:g}", share <= LATE_SHARE),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]


@dataclass(frozen=True)
class BenchRosCommand(BenchCommand):
    """Run the policy's node over ROS 2 at a steady rate, and measure how regular its ticks are.

    Made-up sensors publish every input of the contract, and count the actions that reach their
    process: the periods between them, ticks that are late or too close, and how the node's memory
    grows. Nothing moves. Run it while nothing else runs.
    """

    minutes: float = 10.0
    """How long ticks are counted, after the start."""
    rate_hz: float = 10.0
    """Ticks per second that are asked of the policy, whatever rate it was trained at."""
    checkpoint: Path | None = None
    """A .safetensors file; by default the policy that ships with the project."""
    contract: Path | None = None
    """YAML file of the robot's topics; by default that of the simulated robot."""

    def measure(self, report: Report) -> None:
        """Measure. Raises `UserError` if the policy's node ends before, or sends too few actions."""
        require_above_0(options(self, "minutes", "rate_hz"))
        require_rclpy()
        seen, memory = self._run_nodes()
        arrivals, told = seen["arrivals_s"], seen["diagnostics"]
        found = regularity(arrivals, 1.0 / self.rate_hz)
        growth = growth_mb([sample for sample in memory if sample[0] >= arrivals[0]])
        seconds = arrivals[-1] - arrivals[0]
        title = f"policy_node at {self.rate_hz:g} Hz for {seconds:.0f} s"
        report.table(bar_table(title, lines(found, growth, 1.0 / self.rate_hz)), NOTES)
        times = ", ".join(f"{key} {value}" for key, value in told.items() if "_ms" in key)
        report.text(f"/diagnostics at the end: {told.get('message', 'nothing')}; {times}")
        report.figures |= {"sensors_hz": SENSORS_HZ, **found, "growth_mb": growth}
        report.figures |= {"seconds": seconds, "diagnostics": told}

    def _run_nodes(self) -> tuple[dict[str, Any], Samples]:
        """Run a copy of the policy that ticks at the wanted rate, beside the sensors."""
        policy, info = load_checkpoint(checkpoint_path(self.checkpoint or SHIPPED))
        policy.spec = replace(policy.spec, rate_hz=self.rate_hz)
        with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
            checkpoint, out = Path(folder) / "policy.safetensors", Path(folder) / "ticks.json"
            save_checkpoint(checkpoint, policy, info)
            given, seconds = {"contract": str(self.contract or "")}, self.minutes * 60.0
            instruction = next(iter(policy.known_instructions), "pick up the red can")
            sensors = {"spec": policy.spec.to_json(), "out": str(out), "rate_hz": SENSORS_HZ}
            nodes: dict[str, dict[str, Any]] = {
                "policy_node": given | {"checkpoint": str(checkpoint), "instruction": instruction},
                "fake_sensors": given | sensors | {"seconds": seconds},
            }
            memory: Samples = []
            with running_nodes(nodes, simulation_environment()) as processes:
                end = time.monotonic() + START_S + seconds
                while time.monotonic() < end and all(p.poll() is None for p in processes.values()):
                    if (found_mb := resident_mb(processes["policy_node"].pid)) is not None:
                        memory.append((time.monotonic(), found_mb))
                    time.sleep(1.0)
            if not out.is_file():
                raise UserError("the nodes did not run to the end; see their messages above")
            return json.loads(out.read_text()), memory
