"""The options of `ttm robot`: one for each parameter, and mistakes are found at once."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm.training.cli import parse
from ttm.training.robot.robot import (
    WITHOUT_OPTION,
    RobotCommand,
    in_file_alone,
    option_of,
    read_options,
)
from ttm.training.robot.tools import DataBagsCommand
from ttm_policy.parameters import NodeParameters, PolicyParameters, SimParameters, parameters_of

KINDS = [PolicyParameters, SimParameters]


@pytest.fixture(scope="module")
def help_text() -> str:
    """What `ttm robot --help` prints, in one line."""
    from contextlib import redirect_stdout, suppress
    from io import StringIO

    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        parse(["robot", "--help"])
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", printed.getvalue()).split())


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_an_option_or_has_a_reason_not_to_be(
    kind: type[NodeParameters], help_text: str
) -> None:
    options = {item.name for item in fields(RobotCommand)}
    names = {parameter.name for parameter in parameters_of(kind)}
    assert set(WITHOUT_OPTION[kind]) <= names
    for parameter in parameters_of(kind):
        if parameter.name in WITHOUT_OPTION[kind]:
            continue
        assert option_of(parameter.name) in options
        if in_file_alone(parameter.name):
            continue
        flag = f"--{option_of(parameter.name).replace('_', '-')}"
        assert f" {flag} " in help_text or f" {flag}, " in help_text
        assert parameter.about.help.split()[0] in help_text


def test_without_options_the_nodes_get_their_defaults() -> None:
    command = parse(["robot"])
    assert read_options(command, PolicyParameters) == PolicyParameters()
    assert read_options(command, SimParameters) == SimParameters()


def test_options_become_parameters_of_the_nodes() -> None:
    line = (
        "robot --instruction yes --contract my.yaml --threads 2 --max-age-s 0.25 "
        "--max-forward-m-s 0.2 --no-cmd-vel-stamped --seed 7 --out runs/ros --episodes 3"
    )
    command = parse(line.split())
    assert read_options(command, PolicyParameters) == PolicyParameters(
        instruction="yes", contract="my.yaml", threads=2, max_age_s=0.25, max_forward_m_s=0.2,
        cmd_vel_stamped=False,
    )  # fmt: skip
    assert read_options(command, SimParameters) == SimParameters(
        instruction="yes", contract="my.yaml", cmd_vel_stamped=False, first_seed=7,
        out="runs/ros", episodes=3,
    )  # fmt: skip


def test_a_file_gives_options_and_alone_those_that_are_seldom_changed(tmp_path: Path) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text("max-yaw-accel-rad-s2: 2\nepisodes: 3\ne_stop_rearm: false\nout: runs/ros\n")
    command = parse(["robot", "--config", str(file), "--episodes", "4"])
    policy, sim = (read_options(command, kind) for kind in (PolicyParameters, SimParameters))
    assert (policy.max_yaw_accel_rad_s2, policy.e_stop_rearm) == (2.0, False)
    assert (sim.episodes, sim.out) == (4, "runs/ros")
    with pytest.raises(SystemExit):
        parse(["robot", "--max-yaw-accel-rad-s2", "2"])
    file.write_text("max-yaw-acel-rad-s2: 2\n")
    with pytest.raises(UserError, match=r"no option 'max-yaw-acel-rad-s2'"):
        parse(["robot", "--config", str(file)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"instruction": "fold the towel"},
            "does not know the instruction 'fold the towel'; it knows: 'pick up the red can'",
        ),
        (
            {"task": "pick", "instruction": "open the top drawer"},
            "task 'pick' of .* does not know the instruction 'open the top drawer'",
        ),
        ({"task": "fold"}, "--task is 'fold'; give one of pick, open_drawer"),
        ({"env": "no_such/Env-v0"}, "no environment 'no_such/Env-v0'"),
        ({"episodes": 0}, "--episodes is 0; give 1 or more"),
        ({"gap": -2}, "--gap is -2; give -1 or more"),
        ({"gap": 5}, "--gap 5 needs a memory task.*'pick' is none"),
        ({"probe": "erase"}, "--probe erase needs a memory task.*'pick' is none"),
        ({"execution": "receding:4"}, "execution receding:4.* this policy predicts 1 a tick"),
        ({"seed": -1}, "--seed is -1; give 0 or more"),
        ({"rate": float("nan")}, "rate is nan; give 0 or more"),
        ({"max_yaw_rad_s": 0.0}, r"--max-yaw-rad-s is 0\.0; give a number above 0"),
        ({"sim": False, "episodes": 3}, "--episodes is one of the simulated robot; add --sim"),
        ({"sim": False, "free_running": True}, "--free-running is one of the simulated robot; add"),
        ({"sim": False, "task": "pick"}, "--task is one of the simulated robot; add --sim"),
        ({"contract": Path("nowhere.yaml")}, r"no contract at nowhere\.yaml"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("ttm.training.robot.processes.find_spec", lambda name: name)
    with pytest.raises(UserError, match=words):
        RobotCommand(**{"sim": True, **options}).run()


def test_a_missing_checkpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ttm.training.robot.processes.find_spec", lambda name: name)
    with pytest.raises(UserError, match=r"nowhere.*: no such checkpoint"):
        RobotCommand(checkpoint=Path("nowhere")).run()


def test_without_rclpy_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ttm.training.robot.processes.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "ttm-policy-stack\[ros\]"'):
        RobotCommand().run()


@pytest.mark.parametrize("missing", ["rosbags", "rclpy"])
def test_the_conversion_of_bags_says_what_it_lacks(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("processes", "tools"):
        monkeypatch.setattr(
            f"ttm.training.robot.{module}.find_spec", lambda name: name != missing or None
        )
    extra = {"rosbags": "convert", "rclpy": "ros"}[missing]
    with pytest.raises(UserError, match=rf'pip install "ttm-policy-stack\[{extra}\]"'):
        DataBagsCommand(Path("bags"), Path("out"), Path("robot.yaml"), rate_hz=5.0).run()
