"""`ttm demo`, all of its steps, at the smallest size."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy import PRESETS, Policy, PolicyRunner, UserError, load_checkpoint, save_checkpoint
from ttm.sim import KitchenEnv, actors, load_evaluation
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.table import GROUP_NAMES, instructions_of
from ttm.training import demo
from ttm.training.demo import Demo, DemoCommand, Steps


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """An untrained policy that knows words of two tasks and has a sight memory, as the shipped one."""
    torch.manual_seed(3)
    policy = Policy(SPEC, replace(PRESETS["tiny"], sight_tokens=2))
    words = np.random.default_rng(0).normal(0, 0.05, 384).astype(np.float32)
    known = (*instructions_of("side_shown"), *instructions_of("drawer")[:4])
    policy.known_instructions = dict.fromkeys(known, words)
    save_checkpoint(tmp_path / "start.safetensors", policy, {})
    return tmp_path / "start.safetensors"


def smallest(start: Path | str, out: Path) -> DemoCommand:
    return DemoCommand(
        out=out, checkpoint=str(start), demonstrations=2, minutes=0.01, episodes=1, group_episodes=1,
        memory_episodes=1, ros_episodes=1, workers=1, max_ticks=8, gap=1,
    )  # fmt: skip


def test_demo_goes_all_the_way(
    start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rclpy")
    monkeypatch.setattr(KitchenEnv, "render_px", 120)  # of films; the robot's are large
    # To convert each of its policies to OpenVINO takes longer than to run it, in process and over ROS.
    monkeypatch.setattr(actors, "PolicyRunner", partial(PolicyRunner, engine="torch"))
    monkeypatch.setattr(demo, "PATIENCE", demo.PATIENCE.replace("}", ", engine: torch}"))
    monkeypatch.setattr(demo, "SKILL_NAMES", ("pick",))  # of two, which are done alike
    out = tmp_path / "out"
    assert smallest(start, out).run() == 0
    printed = capfd.readouterr().out
    for step in range(1, 10):
        assert f"[{step}/9]" in printed
    assert "left out: pick_object, knock_over, place_upright, move_near" in printed
    for count in (1, 2):  # of the skill, and of the memory task live and erased
        same = f"{count} of {count} initial states ended as they did in process; {count} of them at"
        assert printed.count(same) == 1
    load_checkpoint(out / "trained" / "best.safetensors")
    given, begun = load_checkpoint(start)[0], load_checkpoint(out / "start.safetensors")[0]
    assert all(map(torch.equal, given.vision.parameters(), begun.vision.parameters()))
    assert begun.sight is None, "a new one would need a lesson of minutes"
    assert not torch.equal(given.core.unit.read.position, begun.core.unit.read.position)
    for when in ("before", "after"):
        assert {result.episodes for result in load_evaluation(out / when).tasks.values()} == {1}
    groups = load_evaluation(out / "groups")
    assert groups.tasks["drawer"].episodes == 1
    assert groups.condition.levels["light"] == 1
    for folder in ("memory", "memory/over_ros"):
        for probe in ("live", "erase"):
            evaluation = load_evaluation(out / folder / f"gap_1_{probe}")
            assert (evaluation.condition.gap, evaluation.condition.probe) == (1, probe)
            assert evaluation.tasks["side_shown"].episodes == 1
    data = json.loads((out / "memory" / "gap_1_erase" / "result.json").read_text())
    assert data["checkpoint"] == str(start), "what was trained does not take part"
    page = (out / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 3 + 1 + 4
    assert page.count("data:image/webp;base64,") == 1
    assert "What was done" in page
    assert "erased, over ROS 2" in page


def test_tasks_whose_words_the_policy_does_not_know_are_left_out(
    start: Path, tmp_path: Path
) -> None:
    command = smallest(start, tmp_path)
    assert Demo(command).groups == ["drawer"]
    policy, _ = load_checkpoint(start)
    policy.known_instructions = dict.fromkeys(
        instructions_of("open_drawer"), np.zeros(384, np.float32)
    )
    save_checkpoint(start, policy, {})
    assert Demo(command).unknown == [*GROUP_NAMES, "side_shown"], "to open is half of the drawers"


def test_every_step_is_numbered_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(2)
    with steps.step("look", "at it"):
        pass
    steps.note("by the way", "it is red")
    with steps.step("take"):
        steps.found("it is heavy")
    printed = capsys.readouterr().out
    assert [word in printed for word in ("[1/2] look: at it", "[2/2] take\n", "red")] == [True] * 3
    assert [(fact.name, fact.finding) for fact in steps.facts] == [
        ("look", "at it"), ("by the way", "it is red"), ("take", "it is heavy")
    ]  # fmt: skip
    assert [fact.seconds is None for fact in steps.facts] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ros_episodes": 30}, "--ros-episodes is 30; give 25 or less"),
        ({"memory_episodes": 3}, "--ros-episodes is 5; give 3 or less"),
        ({"checkpoint": "none"}, "--checkpoint none has no vision"),
        ({"gap": -1}, "--gap is -1; give 0 or more"),
    ],
)
def test_impossible_sizes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DemoCommand(**options).run()  # type: ignore[arg-type]
