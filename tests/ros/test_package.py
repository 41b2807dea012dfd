"""What only a ROS 2 install can run is at least whole: package, launch files, parameters."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ttm_policy.contract import default_contract
from ttm_policy.settings import PolicySettings, SimSettings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ros2_ws" / "src" / "ttm_policy"


def _constants(launch_file: str) -> dict[str, object]:
    """The upper-case tables at the top of a launch file, without importing ROS's `launch`."""
    tree = ast.parse((ROOT / "launch" / launch_file).read_text())
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            found[statement.targets[0].id] = [ast.literal_eval(key) for key in statement.value.keys]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", ["robot.launch.py", "sim.launch.py"])
def test_launch_files_are_installed_and_describe_something(name: str) -> None:
    assert (PACKAGE / "launch" / name).resolve() == ROOT / "launch" / name
    tree = ast.parse((ROOT / "launch" / name).read_text())
    assert "generate_launch_description" in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def test_launch_arguments_are_parameters_of_the_nodes() -> None:
    policy = {field.name for field in fields(PolicySettings)} | {"use_sim_time"}
    tables = _constants("robot.launch.py")
    assert {*tables["ARGUMENTS"], *tables["FOLLOW_SIM"]} - {"sim"} <= policy
    assert set(_constants("sim.launch.py")["ARGUMENTS"]) <= {
        field.name for field in fields(SimSettings)
    }


def test_remapped_topics_are_in_the_contract() -> None:
    tree = ast.parse((ROOT / "launch" / "robot.launch.py").read_text())
    topics = next(
        s.value for s in tree.body if isinstance(s, ast.Assign) and s.targets[0].id == "TOPICS"
    )  # type: ignore[attr-defined]
    text = default_contract().read_text()
    for topic in ast.literal_eval(topics).values():
        assert re.search(rf"topic: {re.escape(topic)}\s", text), topic


def test_package_lists_every_message_package_that_it_imports() -> None:
    declared = {
        node.text for node in ElementTree.parse(PACKAGE / "package.xml").iter("exec_depend")
    }
    sources = [*PACKAGE.glob("ttm_policy/*.py"), *(ROOT / "launch").glob("*.launch.py")]
    imported = {
        match
        for path in sources
        for match in re.findall(
            r"^from (\w+_(?:msgs|interfaces|srvs)|rclpy|launch\w*)\b", path.read_text(), re.M
        )
    }
    assert imported <= declared, imported - declared


def test_package_has_what_colcon_needs() -> None:
    assert (PACKAGE / "resource" / "ttm_policy").is_file()
    assert (PACKAGE / "config" / "fetch_kitchen.yaml").read_text() == default_contract().read_text()
    assert "script_dir=$base/lib/ttm_policy" in (PACKAGE / "setup.cfg").read_text()
    setup = (PACKAGE / "setup.py").read_text()
    for node in ("policy_node", "sim_node"):
        assert f"{node} = {{NAME}}.{node}:main" in setup
        assert (PACKAGE / "ttm_policy" / f"{node}.py").is_file()
