"""What only a ROS 2 install can run is at least complete: the package and its lists."""

from __future__ import annotations

import pkgutil
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import setuptools

from ttm_policy.__main__ import NODES
from ttm_policy.contract.contract_file import default_contract

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ros2_ws" / "src" / "ttm_policy"


@pytest.mark.parametrize("name", ["robot.launch.py", "sim.launch.py"])
def test_launch_files_are_installed(name: str) -> None:
    assert (PACKAGE / "launch" / name).resolve() == ROOT / "launch" / name


def test_package_lists_every_message_package_that_it_imports() -> None:
    declared = {
        node.text for node in ElementTree.parse(PACKAGE / "package.xml").iter("exec_depend")
    }
    sources = [*PACKAGE.glob("ttm_policy/**/*.py"), *(ROOT / "launch").glob("*.launch.py")]
    imported = {
        match
        for path in sources
        for match in re.findall(
            r"^from (\w+_(?:msgs|interfaces|srvs)|rclpy|launch\w*)\b", path.read_text(), re.M
        )
    }
    assert len(imported) > 10
    assert imported <= declared, imported - declared


def test_package_has_what_colcon_needs() -> None:
    assert (PACKAGE / "resource" / "ttm_policy").is_file()
    assert (PACKAGE / "config" / "fetch_kitchen.yaml").read_text() == default_contract().read_text()
    assert "script_dir=$base/lib/ttm_policy" in (PACKAGE / "setup.cfg").read_text()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py would install, run as colcon does."""
    said: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", said.update)
    monkeypatch.chdir(PACKAGE)
    runpy.run_path("setup.py")
    return said


def test_every_node_is_a_program(said: dict[str, Any]) -> None:
    lines = said["entry_points"]["console_scripts"]
    programs = dict(line.split(" = ") for line in lines)
    assert set(programs) == set(NODES)
    for name, place in programs.items():
        assert pkgutil.resolve_name(place).args == (name,)
        assert NODES[name].rpartition(".")[2] == name
        assert callable(import_module(f"ttm_policy.{NODES[name]}").main)


def test_colcon_and_pip_install_the_same_packages(said: dict[str, Any]) -> None:
    folders = {path.parent for path in PACKAGE.glob("ttm_policy/**/__init__.py")}
    assert set(said["packages"]) == {".".join(f.relative_to(PACKAGE).parts) for f in folders}
