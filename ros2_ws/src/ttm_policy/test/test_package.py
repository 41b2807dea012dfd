"""The package is whole: what it imports, what `package.xml` names, and what `setup.py` installs are the same.

`colcon test` runs this on a ROS 2 install, and `make test` in the repository.
"""

from __future__ import annotations

import ast
import pkgutil
import runpy
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import setuptools

from ttm_policy.__main__ import NODES
from ttm_policy.contract import default_contract, load_contract

PACKAGE = Path(__file__).resolve().parents[1]
CODE = sorted(PACKAGE.glob("ttm_policy/**/*.py"))
LAUNCH_FILES = sorted(PACKAGE.glob("launch/*.launch.py"))
CONTRACTS = sorted(PACKAGE.glob("config/*.yaml"))
TESTS = sorted(PACKAGE.glob("test/*.py"))

ROSDEP = {
    "PIL": "python3-pil",
    "aiohttp": "python3-aiohttp",
    "numpy": "python3-numpy",
    "pytest": "python3-pytest",
    "setuptools": "python3-setuptools",
    "yaml": "python3-yaml",
}
"""Module -> its key in rosdep. A ROS package has the name of its module."""

WITH_TTM = {"ttm", "gymnasium", "rosbags", "simplejpeg", "torch"}
"""What comes with `pip install` of the repository: rosdep does not know `ttm`."""


def _imported(paths: Iterable[Path]) -> set[str]:
    """The packages that files import, by statement or by `import_module`, as `package.xml` names them."""
    roots = {
        name.partition(".")[0] for path in paths for name in _modules(ast.parse(path.read_text()))
    }
    others = roots - sys.stdlib_module_names - WITH_TTM - {"ttm_policy"}
    return {ROSDEP.get(root, root) for root in others}


def _modules(tree: ast.Module) -> Iterator[str]:
    constants: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                constants[name] = text
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(text))]):
                yield text
            case ast.Call(
                func=ast.Name(id="import_module"),
                args=[ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id=name)), *_])],
            ):
                yield constants[name]


def _declared(kind: str) -> set[str]:
    nodes = ElementTree.parse(PACKAGE / "package.xml").iter(kind)
    return {node.text for node in nodes if node.text}


def test_package_xml_names_every_import_and_nothing_else() -> None:
    imported = _imported([*CODE, *LAUNCH_FILES])
    assert {"rclpy", "bond", "tf2_msgs", "ttm_policy_msgs"} <= imported, "also what is optional"
    assert imported == _declared("exec_depend")
    assert _imported(TESTS) - imported == _declared("test_depend")


def test_no_link_leads_out_of_the_package() -> None:
    """A copy of the package, or a release of it, would lack what is there."""
    links = [path for path in PACKAGE.rglob("*") if path.is_symlink()]
    outside = [path for path in links if not path.resolve(strict=True).is_relative_to(PACKAGE)]
    assert not outside


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py would install, run as colcon does."""
    said: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", said.update)
    monkeypatch.chdir(PACKAGE)
    runpy.run_path("setup.py")
    return said


@pytest.mark.parametrize("name", NODES)
def test_every_node_is_a_program_and_can_be_imported(name: str, said: dict[str, Any]) -> None:
    lines = said["entry_points"]["console_scripts"]
    programs = dict(line.split(" = ") for line in lines)
    assert set(programs) == set(NODES)
    assert pkgutil.resolve_name(programs[name]).args == (name,)
    assert NODES[name].rpartition(".")[2] == name
    assert callable(import_module(f"ttm_policy.{NODES[name]}").main)
    assert "script_dir=$base/lib/ttm_policy" in (PACKAGE / "setup.cfg").read_text()


def test_all_code_and_files_are_installed(said: dict[str, Any]) -> None:
    folders = {path.parent for path in CODE if path.name == "__init__.py"}
    assert set(said["packages"]) == {".".join(f.relative_to(PACKAGE).parts) for f in folders}
    files = dict(said["data_files"])
    share = "share/ttm_policy"
    installed = {folder: sorted(PACKAGE / file for file in files[folder]) for folder in files}
    assert installed[f"{share}/launch"] == LAUNCH_FILES
    assert installed[f"{share}/config"] == CONTRACTS
    assert installed[share] == [PACKAGE / "package.xml"]
    assert installed["share/ament_index/resource_index/packages"] == [
        PACKAGE / "resource/ttm_policy"
    ]
    assert all(path.is_file() for paths in installed.values() for path in paths)


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.name)
def test_launch_files_are_read_by_ros(path: Path) -> None:
    pytest.importorskip("launch_ros", reason="a part of ROS 2 installs, not of its wheels")
    sources = import_module("launch.launch_description_sources")
    description = sources.get_launch_description_from_python_launch_file(str(path))
    arguments = description.get_launch_arguments()
    assert len(arguments) > 10
    assert all(argument.description and argument.default_value for argument in arguments)


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.name)
def test_contracts_can_be_loaded(path: Path) -> None:
    assert load_contract(str(path)).actions


def test_default_contract_is_the_one_that_is_installed() -> None:
    assert (PACKAGE / "config" / "fetch_kitchen.yaml").read_text() == default_contract().read_text()
