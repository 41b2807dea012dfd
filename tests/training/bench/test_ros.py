"""`ttm bench ros`: figures of made-up times, and a short run of both nodes. No test depends on time."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from ttm.policy import UserError
from ttm.training.bench.common import resident_mb
from ttm.training.bench.ros import BenchRosCommand, growth_mb, lines, regularity


def test_periods_that_are_late_and_close_are_told() -> None:
    """98 periods of 100 ms, one of 140 ms and one of 40 ms."""
    arrivals, now_s = [0.0], 0.0
    for period_s in [0.1] * 49 + [0.14, 0.04] + [0.1] * 49:
        now_s += period_s
        arrivals.append(now_s)
    found = regularity(arrivals, 0.1)
    assert found["ticks"] == 101
    assert found["late_share"] == pytest.approx(0.01)
    assert found["closest_ms"] == pytest.approx(40)
    assert found["worst_ms"] == pytest.approx(140)
    assert found["rate_hz"] == pytest.approx(100 / now_s)
    holds = {line.what: line.holds for line in lines(found, None, 0.1)}
    assert holds["late, %"] is True
    assert holds["closest ticks, ms"] is False
    assert holds["growth, MB"] is None


def test_memory_is_compared_once_the_process_has_settled() -> None:
    settling = [(float(second), 100.0 + second) for second in range(20)]
    assert growth_mb(settling) is None
    flat = settling + [(float(second), 300.0) for second in range(20, 100)]
    assert growth_mb(flat) == 0.0
    growing = settling + [(float(second), 300.0 + 0.1 * second) for second in range(20, 100)]
    assert growth_mb(growing) == pytest.approx(7.2)
    assert [line.holds for line in lines(regularity(list(range(20)), 1.0), 7.2, 1.0)][-1] is False


def test_too_few_ticks_are_an_error() -> None:
    with pytest.raises(UserError, match="only 1 actions"):
        regularity([0.0], 0.1)


def test_memory_of_another_process_is_read() -> None:
    assert resident_mb(os.getpid()) == pytest.approx(resident_mb(), rel=0.1)
    assert resident_mb(2**30) is None


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="minutes"):
        BenchRosCommand(minutes=0.0).run()


@pytest.mark.skipif(find_spec("rclpy") is None, reason="ROS 2 is not here")
def test_both_nodes_run_and_the_figures_are_written(tmp_path: Path) -> None:
    """Only that ticks are counted; how regular they are depends on the machine."""
    out = tmp_path / "ros.json"
    minutes = 0.1
    while not out.exists():  # a busy machine needs longer for as many ticks
        try:
            assert BenchRosCommand(minutes=minutes, rate_hz=5.0, json=out).run() == 0
        except UserError as error:
            if "count for longer" not in str(error) or minutes > 1.0:
                raise
            minutes *= 3
    figures = json.loads(out.read_text())
    assert figures["ticks"] >= 10
    assert 0 < figures["rate_hz"] <= 10
    assert figures["growth_mb"] is None
    assert float(figures["diagnostics"]["wanted_rate_hz"]) == 5.0
