"""The launch files, run with a stand-in for `launch`, which only a ROS 2 install has."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from ttm.policy import UserError
from ttm.policy.spec import SHIPPED_CHECKPOINT
from ttm.sim.condition import FIRST_DEMONSTRATION_SEED
from ttm_policy.contract import default_contract
from ttm_policy.launching import (
    TOPICS,
    LaunchParameters,
    RecordLaunchParameters,
    RobotLaunchParameters,
)
from ttm_policy.parameters import (
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
    parameters_of,
)

ROOT = Path(__file__).parents[2]
KINDS = {
    "robot": (RobotLaunchParameters, PolicyParameters, SimParameters),
    "sim": (LaunchParameters, SimParameters),
    "record": (
        RecordLaunchParameters,
        RecorderParameters,
        WebParameters,
        TeleopParameters,
        SimParameters,
    ),
}


@dataclass
class Recorded:
    """An instance of any class of `launch`: its name and what it was made with."""

    kind: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


class StandIn(ModuleType):
    """A module of `launch` in which every class exists."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package for the import system)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: Recorded(name, args, options)


Launch = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def warnings_of_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    names = ("actions", "events", "events.process", "logging")
    for name in (
        "launch",
        *(f"launch.{name}" for name in names),
        "launch_ros",
        "launch_ros.actions",
    ):
        monkeypatch.setitem(sys.modules, name, StandIn(name))
    monkeypatch.delitem(sys.modules, "ttm_policy.launch_files", raising=False)
    said: list[str] = []
    logging = sys.modules["launch.logging"]
    logging.launch_config = SimpleNamespace(log_dir=str(tmp_path))  # type: ignore[attr-defined]
    logging.get_logger = lambda: SimpleNamespace(warning=said.append)  # type: ignore[attr-defined]
    return said


def _describe(name: str) -> list[Recorded]:
    """What the launch description of a launch file holds."""
    path = ROOT / "launch" / f"{name}.launch.py"
    spec = importlib.util.spec_from_file_location(f"{name}_launch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entities: list[Recorded] = module.generate_launch_description().args[0]
    return entities


def _run(name: str, *typed: str) -> dict[str, dict[str, Any]]:
    """Do what `ros2 launch` does with typed arguments. Return what each node was made with."""
    configurations = dict(text.split(":=", 1) for text in typed)
    context = SimpleNamespace(launch_configurations=configurations, argv=list(typed))
    started: list[Recorded] = []
    for entity in _describe(name):
        if entity.kind == "DeclareLaunchArgument":
            configurations.setdefault(entity.args[0], entity.options["default_value"])
        else:
            started += entity.options["function"](context) or []
    assert configurations == dict(text.split(":=", 1) for text in typed), (
        "defaults were left behind"
    )
    return {node.options["name"]: node.options for node in started}


def _parameters(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of a node's parameter files, in order."""
    return [
        next(iter(yaml.safe_load(Path(path).read_text()).values()))["ros__parameters"]
        for path in node["parameters"]
    ]


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_is_an_argument_with_its_help_and_default(name: str) -> None:
    found = [entity for entity in _describe(name) if entity.kind == "DeclareLaunchArgument"]
    arguments = {entity.args[0]: entity.options for entity in found}
    assert len(arguments) == len(found)
    expected = [parameter for kind in KINDS[name] for parameter in parameters_of(kind)]
    assert set(arguments) == {parameter.name for parameter in expected}
    for parameter in expected:
        argument = arguments[parameter.name]
        assert parameter.about.help in argument["description"]
        assert parameter.range_text in argument["description"]
    first = {parameter.name: parameter for parameter in reversed(expected)}
    for parameter in first.values():
        assert arguments[parameter.name]["default_value"] == parameter.default_text


@pytest.mark.parametrize("name", KINDS)
def test_an_argument_that_several_declare_has_one_type(name: str) -> None:
    """One text is read for all of them."""
    types: dict[str, set[type]] = {}
    for kind in KINDS[name]:
        for parameter in parameters_of(kind):
            types.setdefault(parameter.name, set()).add(parameter.type)
    assert all(len(kinds) == 1 for kinds in types.values())


def test_only_what_was_given_reaches_a_real_robots_policy() -> None:
    nodes = _run("robot", "instruction:=yes", "max_age_s:=1", "autostart:=False")
    assert set(nodes) == {"policy_node"}
    defaults, given = _parameters(nodes["policy_node"])
    assert defaults == {"use_sim_time": False}
    assert given == {"instruction": "yes", "max_age_s": 1.0, "autostart": False}
    assert nodes["policy_node"]["remappings"] == []


def test_sim_starts_both_in_lockstep_unless_told_otherwise() -> None:
    nodes = _run("robot", "sim:=true", "episodes:=2", "instruction:=wait")
    policy, sim = _parameters(nodes["policy_node"]), _parameters(nodes["sim_node"])
    assert policy == [{"lockstep": True, "use_sim_time": True}, {"instruction": "wait"}]
    assert sim == [{"lockstep": True}, {"instruction": "wait", "episodes": 2}]
    nodes = _run("robot", "sim:=true", "lockstep:=false", "use_sim_time:=false")
    assert _parameters(nodes["policy_node"])[-1] == {"lockstep": False, "use_sim_time": False}
    assert _parameters(nodes["sim_node"])[-1] == {"lockstep": False}


@pytest.mark.parametrize("argument", TOPICS)
def test_a_remapped_topic_is_in_the_contract_and_reaches_both_nodes(argument: str) -> None:
    assert re.search(rf"topic: {re.escape(TOPICS[argument])}\s", default_contract().read_text())
    for node in _run("robot", "sim:=true", f"{argument}:=/my/topic").values():
        assert node["remappings"] == [(TOPICS[argument], "/my/topic")]


def test_two_simulated_robots_have_namespaces_clocks_and_files_of_their_own() -> None:
    left = _run("robot", "sim:=true", "namespace:=left")
    right = _run("robot", "sim:=true", "namespace:=lab/right")
    apart = [("/clock", "clock"), ("/tf", "tf"), ("/tf_static", "tf_static")]
    for name in ("policy_node", "sim_node"):
        assert left[name]["namespace"] == "left"
        assert right[name]["namespace"] == "lab/right"
        assert left[name]["remappings"] == right[name]["remappings"] == apart
        assert not set(left[name]["parameters"]) & set(right[name]["parameters"])
    # A real robot in a namespace hears the clock of the whole system.
    assert _run("robot", "namespace:=left")["policy_node"]["remappings"] == []


def test_a_parameter_file_stands_between_the_defaults_and_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"policy_node": {"ros__parameters": {"max_age_s": 2.0}}}))
    node = _run("robot", f"params_file:={path}", "max_age_s:=0.3")["policy_node"]
    values = [parameters.get("max_age_s") for parameters in _parameters(node)]
    assert values == [None, 2.0, 0.3]


def test_a_parameter_file_for_the_policy_serves_whatever_is_started_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.yaml"
    given = {"max_forward_m_s": 0.1, "max_translation_m": 0.02}
    path.write_text(yaml.safe_dump({"/**/policy_node": {"ros__parameters": given}}))
    file = f"params_file:={path}"
    for name, *typed in (
        ("robot",),
        ("robot", "sim:=true"),
        ("record", "sim:=true", "checkpoint:=shipped"),
    ):
        nodes = _run(name, file, *typed)
        assert given in _parameters(nodes["policy_node"])
    for name in ("sim", "record"):
        with pytest.raises(UserError, match=r"params_file .* has nothing for"):
            _run(name, file)


@pytest.mark.parametrize(("name", "node"), [("robot", "policy_node"), ("record", "recorder_node")])
def test_a_given_clock_stands_above_the_parameter_file_and_the_default_below(
    name: str, node: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": {"use_sim_time": True}}}))
    file = f"params_file:={path}"
    for typed, expected in (((), [False, True]), (("use_sim_time:=false",), [False, True, False])):
        files = _parameters(_run(name, file, *typed)[node])
        assert [values["use_sim_time"] for values in files] == expected


def test_a_respawned_policy_finds_its_memory_and_only_crashes_are_respawned() -> None:
    node = _run("robot", "respawn:=true", "namespace:=left")["policy_node"]
    assert node["respawn"] is True
    assert _parameters(node)[0]["recovery_path"].endswith("left_policy_node_memory.npz")
    running, ending = SimpleNamespace(is_shutdown=False), SimpleNamespace(is_shutdown=True)
    for code, ends in ((0, True), (2, True), (1, False), (-9, False), (-11, False)):
        assert bool(node["on_exit"](SimpleNamespace(returncode=code), running)) is ends
        assert not node["on_exit"](SimpleNamespace(returncode=code), ending)
    assert _run("robot")["policy_node"]["respawn"] is False


def test_the_launch_ends_with_either_node() -> None:
    nodes = _run("robot", "sim:=true")
    assert all(node["on_exit"].kind == "Shutdown" for node in nodes.values())


def test_record_starts_what_a_person_drives_by() -> None:
    assert set(_run("record", "rate_hz:=10", "contract:=robot.yaml")) == {"recorder_node"}
    nodes = _run("record", "web:=true", "teleop:=true", "folder:=demos", "port:=0")
    assert set(nodes) == {"recorder_node", "web_node", "teleop_node"}
    assert _parameters(nodes["teleop_node"]) == [{"use_sim_time": False, "source": "gamepad"}]
    assert _parameters(nodes["web_node"])[-1] == {"folder": "demos", "port": 0}
    assert _parameters(nodes["recorder_node"])[-1] == {"folder": "demos"}
    assert all(node["on_exit"].kind == "Shutdown" for node in nodes.values())


def test_record_in_simulation_has_a_page_a_person_and_time_of_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "episode_00004.hdf5").touch()
    nodes = _run("record", "sim:=true", "instruction:=wave", f"folder:={tmp_path}")
    assert set(nodes) == {"recorder_node", "web_node", "sim_node"}
    web, sim = _parameters(nodes["web_node"])[0], _parameters(nodes["sim_node"])
    assert (web["use_sim_time"], web["simulator"], web["max_age_s"]) == (True, "sim_node", 5.0)
    assert (sim[0]["driver"], sim[1]) == ("person", {"instruction": "wave"})
    assert sim[0]["first_seed"] == FIRST_DEMONSTRATION_SEED + 5
    assert _parameters(nodes["recorder_node"])[0] == {"use_sim_time": True}
    assert "web_node" not in _run("record", "sim:=true", "teleop:=true")


def test_record_takes_over_from_a_policy_of_the_simulator() -> None:
    """As `ttm record --sim --checkpoint` does, with the limits of the person for the policy."""
    typed = ("sim:=true", "checkpoint:=shipped", "max_forward_m_s:=0.2", "page_timeout_s:=2")
    nodes = _run("record", *typed, "teleop:=true")
    assert set(nodes) == {"recorder_node", "web_node", "teleop_node", "policy_node", "sim_node"}
    assert all(node["on_exit"].kind == "Shutdown" for node in nodes.values())
    policy, recorder = _parameters(nodes["policy_node"]), _parameters(nodes["recorder_node"])[0]
    assert policy[0]["checkpoint"] == recorder["spec"] == str(SHIPPED_CHECKPOINT.resolve())
    assert policy[0]["use_sim_time"]
    assert policy[1] == {"max_forward_m_s": 0.2}
    assert (recorder["simulator"], recorder["countdown_s"]) == ("sim_node", 0.0)
    for name in ("web_node", "teleop_node"):
        assert _parameters(nodes[name])[0]["policy"] == "policy_node"
    nodes = _run("record", "sim:=true", "policy:=mine")
    assert _parameters(nodes["recorder_node"])[0]["simulator"] == "sim_node"
    with pytest.raises(UserError, match="checkpoint starts a policy; leave out policy"):
        _run("record", *typed, "policy:=mine")


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("robot", "threads:=two", "argument threads is 'two'; give a whole number"),
        ("robot", "max_age_s:=nan", "argument max_age_s is nan; give a number above 0"),
        ("robot", "sim:=maybe", "argument sim is 'maybe'; give true or false"),
        (
            "robot",
            "max_forward_ms:=0.1",
            "no argument max_forward_ms; did you mean max_forward_m_s",
        ),
        ("robot", "task:=pick", r"argument task is one of the simulated robot; add sim:=true"),
        ("robot", "namespace:=a-b", "argument namespace is 'a-b'; give names of letters"),
        ("robot", "cmd_vel:=", "argument cmd_vel is ''; give names of letters"),
        ("robot", "params_file:=/no/file", "params_file /no/file cannot be read"),
        ("sim", "episodes:=0", "argument episodes is 0; give 1 or more"),
        ("record", "checkpoint:=shipped", "a policy for the simulated robot; add sim:=true"),
        ("record", "port:=0", "argument port is one of the web page; add web:=true"),
        ("record", "task:=pick", "argument task is one of the simulated robot; add sim:=true"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(name: str, typed: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _run(name, typed)
    assert "\n" not in str(caught.value)


def test_an_argument_that_nobody_knows_is_told(warnings_of_launch: list[str]) -> None:
    _run("robot", "rviz:=true")
    assert warnings_of_launch == ["robot.launch.py has no argument rviz; see --show-args"]


def test_kinds_are_those_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """`KINDS` above is what the launch files declare, so that no class is left out of the tests."""
    for name, kinds in KINDS.items():
        text = (ROOT / "launch" / f"{name}.launch.py").read_text()
        assert all(kind.__name__ in text for kind in kinds)
        assert all(issubclass(kind, NodeParameters) for kind in kinds)
