"""`ttm robot` and the commands beside it that start nodes: options, domains, respawn, their end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm.training import cli
from ttm.training.cli import parse
from ttm.training.robot import processes
from ttm.training.robot import processes as ros_domain
from ttm.training.robot import tools as bags
from ttm.training.robot import tools as replay
from ttm.training.robot.processes import PARENT, start_after_crash, wait_for_episodes
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


CLAIM = (
    "import os; os.getpid = lambda: {pid}; from ttm.training.robot.processes import claim_ros_domain; "
    "print(claim_ros_domain(), flush=True); input()"
)


def test_two_processes_have_different_domains_until_they_end() -> None:
    def start() -> subprocess.Popen[str]:
        code = [sys.executable, "-c", CLAIM.format(pid=os.getpid())]
        return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(process: subprocess.Popen[str]) -> int:
        assert process.stdout is not None
        return int(process.stdout.readline())

    with start() as first, start() as second:
        domains = {read(first), read(second), ros_domain.claim_ros_domain()}
        assert len(domains) == 3
        assert ros_domain.claim_ros_domain() in domains  # asked again, it is the same
        first.communicate("\n")
        second.communicate("\n")


@pytest.mark.parametrize("number", [0, 3])
def test_a_domain_in_which_somebody_listens_is_left_to_him(number: int) -> None:
    """The first participant may have ended before the others."""
    domain, claim = ros_domain._claimed.__wrapped__()
    claim.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as participant:
        participant.bind(("", 7410 + 250 * domain + 2 * number))
        other, claim = ros_domain._claimed.__wrapped__()
    claim.close()
    assert other != domain


def test_without_a_free_domain_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ros_domain, "NUM_DOMAINS", 0)
    with pytest.raises(UserError, match="choose one by ROS_DOMAIN_ID"):
        ros_domain._claimed.__wrapped__()


WAIT_S = 180.0
CHILD = "import time; from ttm_policy.__main__ import end_with_parent; end_with_parent(); time.sleep(60)"


def children(process: int) -> list[int]:
    return [
        int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_program_whose_parent_was_gone_at_once_ends_by_sigterm() -> None:
    environment = {**os.environ, PARENT: "1" if os.getpid() != 1 else "2"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, timeout=WAIT_S, check=False
    )
    assert done.returncode == -signal.SIGTERM


def test_policy_and_simulator_end_when_the_command_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("rclpy", reason="ROS 2 is not here")
    command = [sys.executable, "-m", "ttm.training.cli", "robot", "--sim", "--task", "pick"]
    process = subprocess.Popen(
        [*command, "--episodes", "1000", "--max-ticks", "1000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "episode 1 of" in line:  # so the policy drives
            break
    nodes = children(process.pid)
    assert len(nodes) == 2
    assert all(map(alive, nodes))
    process.kill()
    process.wait()
    deadline_s = time.monotonic() + WAIT_S
    while any(map(alive, nodes)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    left = [node for node in nodes if alive(node)]
    for node in left:
        os.kill(node, signal.SIGKILL)
    assert not left


WORDS = ["data", "bags", "from", "to", "--contract", "robot.yaml"]


def test_options_of_reading_are_refused_for_writing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, "--to", "mcap", "--rate-hz", "5"]) == 2
    assert "--rate-hz is for bags that are read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module"), [(["--rate-hz", "5"], "bags.read"), (["--to", "sqlite3"], "bags.write")]
)
def test_it_starts_the_program_that_reads_or_writes(
    words: list[str], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(bags, "run_program", lambda *given: (started.append(given), 7)[1])
    monkeypatch.setattr(bags, "find_spec", lambda _: object())
    assert cli.main([*WORDS, *words]) == 7
    ((name, options),) = started
    assert name == module
    assert ("rate_hz" in options) == (module == "bags.read")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lockstep"], "are for --topics"),
        (["--contract", "robot.yaml"], "are for --topics"),
        (["--topics", "--out", "film.mp4"], "writes no file"),
        (["--topics", "--contract", "nowhere.yaml"], "no contract at nowhere.yaml"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "play", "episode.hdf5", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_program_gets_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(replay, "run_program", lambda *given: (started.append(given), 7)[1])
    contract = tmp_path / "robot.yaml"
    contract.touch()
    words = ["e.hdf5", "--demo", "demo_1", "--topics", "--contract", str(contract), "--lockstep"]
    assert cli.main(["data", "play", *words]) == 7
    options = {"episode": "e.hdf5", "demo": "demo_1", "contract": str(contract), "lockstep": True}
    assert started == [("replay", options)]


def _process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.parametrize(("code", "again"), [("os._exit(1)", True), ("os._exit(2)", False)])
def test_only_a_crash_is_followed_by_another_start(
    code: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESPAWN_DELAY_S", 0.0)
    nodes = {"policy_node": _process(f"import os; {code}")}
    first = nodes["policy_node"]
    first.wait()
    assert start_after_crash(nodes, "policy_node", os.environ) is again
    assert (nodes["policy_node"] is not first) is again
    nodes["policy_node"].wait()


def test_a_running_node_is_left_alone() -> None:
    nodes = {"policy_node": _process("import time; time.sleep(600)")}
    assert not start_after_crash(nodes, "policy_node", os.environ)
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()


def test_the_simulator_goes_on_only_if_the_policy_comes_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without `look`, the crash of the policy is the end; with it, the simulator's code counts."""
    wait, crash = "import time; time.sleep(600)", "import os; os._exit(3)"
    nodes = {"sim_node": _process(wait), "policy_node": _process(crash)}
    assert wait_for_episodes(nodes) == 3
    assert capsys.readouterr().err == "policy_node has ended with exit code 3; the run ends\n"

    def look() -> None:
        if nodes["policy_node"].poll() is not None:
            nodes["policy_node"] = _process(wait)
            nodes["sim_node"].terminate()

    nodes["policy_node"].wait()
    assert wait_for_episodes(nodes, look) == -15
    nodes["policy_node"].kill()
    nodes["policy_node"].wait()
