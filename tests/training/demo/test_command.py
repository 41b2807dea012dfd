"""`ttm demo`, all of its steps, at the smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.policy.network.policy import Policy
from ttm.policy.network.presets import PRESETS
from ttm.policy.run.checkpoint import load_checkpoint, save_checkpoint
from ttm.sim.evaluation.result import load_evaluation
from ttm.sim.kitchen.spec import SPEC
from ttm.training.demo.command import DemoCommand


def test_demo_goes_all_the_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rclpy")
    start, out = tmp_path / "start.safetensors", tmp_path / "out"
    torch.manual_seed(3)
    save_checkpoint(start, Policy(SPEC, PRESETS["tiny"]), {})
    command = DemoCommand(
        out=out, checkpoint=str(start), demonstrations=2, minutes=0.01, episodes=1, ros_episodes=1, workers=1,
        max_ticks=4,
    )  # fmt: skip
    assert command.run() == 0
    printed = capfd.readouterr().out
    for step in range(1, 7):
        assert f"[{step}/6]" in printed
    assert (
        "2 of 2 initial states ended as they did in process; 2 of them at the very same tick"
        in printed
    )
    load_checkpoint(out / "trained" / "best.safetensors")
    given, begun = load_checkpoint(start)[0], load_checkpoint(out / "start.safetensors")[0]
    assert all(map(torch.equal, given.vision.parameters(), begun.vision.parameters()))
    assert not torch.equal(given.core.unit.read.position, begun.core.unit.read.position)
    for when in ("before", "after"):
        assert {result.episodes for result in load_evaluation(out / when).tasks.values()} == {1}
    page = (out / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 6
    assert "What was done" in page
