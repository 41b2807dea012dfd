"""The options of `ttm record`, and the keys of its terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm.training.cli import parse
from ttm.training.robot import record
from ttm.training.robot.processes import claim_ros_domain
from ttm.training.robot.record import RecordCommand, with_policy
from ttm.training.robot.robot import WITHOUT_OPTION, option_of, read_options
from ttm_policy.parameters import (
    NodeParameters,
    RecorderParameters,
    TeleopParameters,
    WebParameters,
    parameters_of,
)

WAIT_S = 180.0


@pytest.mark.parametrize("kind", [RecorderParameters, TeleopParameters, WebParameters])
def test_every_parameter_is_an_option_or_has_a_reason_not_to_be(kind: type[NodeParameters]) -> None:
    options = {item.name for item in fields(RecordCommand)}
    names = {parameter.name for parameter in parameters_of(kind)}
    left_out = set(WITHOUT_OPTION[kind])
    assert left_out <= names
    assert {option_of(name) for name in names - left_out} <= options


def test_options_become_parameters() -> None:
    command = parse(["record", "--out", "demos", "--rate-hz", "10", "--instruction", "wave"])
    assert read_options(command, RecorderParameters) == RecorderParameters(
        folder="demos", rate_hz=10.0, instruction="wave"
    )
    assert read_options(parse(["record"]), RecorderParameters) == RecorderParameters()


def test_mistakes_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="countdown-s is -1"):
        RecordCommand(countdown_s=-1.0).run()
    with pytest.raises(UserError, match="jpeg-quality is 96; give 95 or less"):
        RecordCommand(jpeg_quality=96).run()
    with pytest.raises(UserError, match="min-fresh is nan"):
        RecordCommand(min_fresh=float("nan")).run()
    with pytest.raises(UserError, match="no contract at"):
        RecordCommand(contract=tmp_path / "none.yaml").run()
    with pytest.raises(UserError, match="--port is 70000; give 65535 or less"):
        RecordCommand(web=True, port=70000).run()
    with pytest.raises(
        UserError, match="--controls is one of the keys or the gamepad that drive; add"
    ):
        RecordCommand(controls=tmp_path / "mine.yaml", web=True).run()
    with pytest.raises(UserError, match="--port is one of the web page; add --web"):
        RecordCommand(port=9000, teleop="gamepad", policy="policy_node").run()
    with pytest.raises(UserError, match="--policy is one of the web page; add --web"):
        RecordCommand(policy="policy_node").run()
    with pytest.raises(UserError, match="--task is one of the simulated robot; add --sim"):
        RecordCommand(task="pick").run()
    with pytest.raises(UserError, match="--checkpoint is for --sim"):
        RecordCommand(checkpoint=Path("shipped")).run()
    with pytest.raises(UserError, match="--checkpoint starts a policy; leave out --policy"):
        RecordCommand(sim=True, checkpoint=Path("shipped"), policy="policy_node").run()
    with pytest.raises(UserError, match="'fly'"):
        RecordCommand(sim=True, task="fly", out=tmp_path).run()


def test_a_policy_of_the_simulator_is_taken_over_from_by_page_and_device() -> None:
    command = RecordCommand(
        sim=True, checkpoint=Path("shipped"), teleop="gamepad", max_forward_m_s=0.2
    )
    nodes = with_policy(command._nodes(), "shipped").parameters()
    assert nodes["web_node"]["policy"] == nodes["teleop_node"]["policy"] == "policy_node"
    assert nodes["policy_node"]["checkpoint"] == nodes["recorder_node"]["spec"]
    assert nodes["policy_node"]["max_forward_m_s"] == 0.2
    assert nodes["recorder_node"]["countdown_s"] == 0


@pytest.mark.parametrize("option", [{}, {"policy": "mine"}, {"checkpoint": Path("shipped")}])
def test_whatever_starts_an_episode_of_a_policy_begins_its_scene_anew(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keys of the terminal as well as the page: all of them ask the recorder."""
    started: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(record, "_run", lambda nodes, _: started.update(nodes) or 0)
    monkeypatch.setattr(record, "simulation_environment", dict)
    assert RecordCommand(sim=True, teleop="keyboard", web=True, out=tmp_path, **option).run() == 0
    assert started["recorder_node"]["simulator"] == ("sim_node" if option else "")


def test_keys_of_a_terminal_are_answered(tmp_path: Path) -> None:
    pytest.importorskip("rclpy", reason="ROS 2 is not here")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ttm.training.cli", "record", "--rate-hz", "5"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--instruction", "wave"],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "ROS_DOMAIN_ID": str(claim_ros_domain()),
             "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"},
    )  # fmt: skip
    os.close(theirs)
    _read_until(ours, "space: start")
    for key, answer in (
        (b" ", "nothing received yet from: "),
        (b"f", "it is ready, not recording"),
        (b"d", "there is no episode to discard"),
        (b"u", "no episode was recorded since the start"),
        (b"x", "u: undo the last"),
    ):
        os.write(ours, key)
        _read_until(ours, answer)
    os.write(ours, b"q")
    assert process.wait(WAIT_S) == 0
    os.close(ours)


def _read_until(terminal: int, text: str) -> None:
    """Read from the terminal until it shows `text`."""
    shown, deadline_s = "", time.monotonic() + WAIT_S
    while text not in " ".join(shown.split()):
        assert time.monotonic() < deadline_s, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode("utf-8", "replace")
