"""The launch files, run with a stand-in for `launch`, which only a ROS 2 install has."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ttm_policy.contract.contract_file import default_contract
from ttm_policy.parameters import (
    NodeParameters,
    PolicyParameters,
    SimParameters,
    parameters_of,
)

ROOT = Path(__file__).parents[2]
FOLLOW_SIM = {"lockstep", "use_sim_time"}
"""Arguments of robot.launch.py whose default is the value of `sim`."""


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


@pytest.fixture(autouse=True)
def launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "launch",
        "launch.actions",
        "launch.conditions",
        "launch.launch_description_sources",
        "launch.substitutions",
        "launch_ros",
        "launch_ros.actions",
        "launch_ros.parameter_descriptions",
        "launch_ros.substitutions",
    ):
        monkeypatch.setitem(sys.modules, name, StandIn(name))
    monkeypatch.delitem(sys.modules, "ttm_policy.launch_arguments", raising=False)


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


def _arguments(entities: list[Recorded]) -> dict[str, dict[str, Any]]:
    found = [entity for entity in entities if entity.kind == "DeclareLaunchArgument"]
    names = [entity.args[0] for entity in found]
    assert len(set(names)) == len(names)
    return {entity.args[0]: entity.options for entity in found}


def _node(entities: list[Recorded]) -> Recorded:
    return next(entity for entity in entities if entity.kind == "Node")


CASES = [("robot", PolicyParameters, "policy_node"), ("sim", SimParameters, "sim_node")]


@pytest.mark.parametrize(("name", "kind", "node"), CASES)
def test_every_parameter_is_an_argument_and_reaches_the_node(
    name: str, kind: type[NodeParameters], node: str
) -> None:
    entities = _describe(name)
    arguments, started = _arguments(entities), _node(entities).options
    assert started["executable"] == started["name"] == node
    values = started["parameters"][0]
    for parameter in parameters_of(kind):
        argument = arguments[parameter.name]
        assert parameter.about.help in argument["description"]
        assert parameter.range_text in argument["description"]
        if not (name == "robot" and parameter.name in FOLLOW_SIM):
            assert argument["default_value"] == parameter.default_text
        value = values[parameter.name]
        assert value.args[0] == Recorded("LaunchConfiguration", (parameter.name,))
        assert value.options == {"value_type": parameter.type}
    names = {parameter.name for parameter in parameters_of(kind)}
    assert set(values) - names <= {"use_sim_time"}


def test_the_arguments_that_both_files_have_agree() -> None:
    """robot.launch.py includes sim.launch.py after its own arguments, and the first one decides."""
    robot, sim = _arguments(_describe("robot")), _arguments(_describe("sim"))
    shared = set(robot) & set(sim)
    assert shared == {"instruction", "contract", "cmd_vel_stamped", "lockstep"}
    for name in shared - FOLLOW_SIM:
        assert robot[name]["default_value"] == sim[name]["default_value"]


def test_robot_launch_follows_sim_and_includes_the_simulator() -> None:
    entities = _describe("robot")
    arguments = _arguments(entities)
    sim = Recorded("LaunchConfiguration", ("sim",))
    assert all(arguments[name]["default_value"] == sim for name in FOLLOW_SIM)
    assert arguments["sim"]["default_value"] == "false"
    included = next(entity for entity in entities if entity.kind == "IncludeLaunchDescription")
    assert included.options["condition"] == Recorded("IfCondition", (sim,))


def test_remapped_topics_are_in_the_contract() -> None:
    text = default_contract().read_text()
    remappings = _node(_describe("robot")).options["remappings"]
    assert len(remappings) == 5
    for topic, name in remappings:
        assert re.search(rf"topic: {re.escape(topic)}\s", text), topic
        assert name.kind == "LaunchConfiguration"
