"""What the ROS package uses of ROS is there: modules, names, attributes, arguments of calls.

mypy looks them up in the code of the packages that `package.xml` names; nothing is imported. The test takes
those that are installed. For other releases of ROS 2,

    python tests/ros/test_ros_sources.py FOLDER...

A folder holds the packages of one release: `/opt/ros/<release>/lib/python3.12/site-packages`, wheels unpacked
into it, or sources of rclpy, launch and launch_ros. Sources of messages will not do: their code is generated.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest

PACKAGE = Path(__file__).parents[2] / "ros2_ws" / "src" / "ttm_policy"

NOT_THERE = {"attr-defined", "call-arg", "import-not-found", "name-defined"}
"""mypy's codes for what does not exist. Types are not compared: each release declares others."""

NOT_GENERIC = "type-arg"
"""mypy's code for `Publisher[Joy]` where Publisher takes no types, as in Jazzy; annotations may."""

CONFIG = "[mypy]\nmypy_path = {}\nignore_missing_imports = True\ncheck_untyped_defs = True\n"
CONFIG_OF_PACKAGE = "[mypy-{}.*]\nignore_missing_imports = False\nfollow_imports = silent\n"
FOUND = re.compile(r"(\S+\.py):(\d+): error: (.*)  \[([\w-]+)\]")

NODES = {"Node": "node.py", "LifecycleNode": "lifecycle/node.py"}
"""Classes of rclpy from which the nodes are made -> their place in it."""


def ros_packages() -> set[str]:
    """Return the ROS packages that `package.xml` names."""
    nodes = ElementTree.parse(PACKAGE / "package.xml").iter("exec_depend")
    return {node.text for node in nodes if node.text and not node.text.startswith("python3-")}


def packages_in(folder: Path) -> dict[str, Path]:
    """Return the ROS packages of `package.xml` whose code is somewhere in `folder`, and where."""
    found: dict[str, Path] = {}
    wanted = ros_packages()
    for path in folder.rglob("__init__.py"):
        place = path.parent
        if place.name in wanted and not (place.parent / "__init__.py").exists():
            found.setdefault(place.name, place)
    return found


def installed_packages() -> dict[str, Path]:
    """Return the ROS packages of `package.xml` that can be imported, and where they are."""
    specs = {name: find_spec(name) for name in ros_packages()}
    return {name: Path(spec.origin).parent for name, spec in specs.items() if spec and spec.origin}


def not_there(packages: Mapping[str, Path], package: Path = PACKAGE) -> list[str]:
    """Return a line for each thing that `package` uses and `packages` do not have, and each name taken twice.

    packages: name -> folder of its code. What belongs to other packages is not judged.
    """
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, place in {**packages, "ttm_policy": package / "ttm_policy"}.items():
            (root / name).symlink_to(place.resolve())
        launch_files = root / "launch_files"
        launch_files.mkdir()
        for path in sorted(package.glob("launch/*.launch.py")):
            (launch_files / f"{path.name.split('.')[0]}.py").symlink_to(path.resolve())
        config = root / "mypy.ini"
        sections = [CONFIG.format(root), *(CONFIG_OF_PACKAGE.format(name) for name in packages)]
        config.write_text("".join(sections))
        command = [sys.executable, "-m", "mypy", "--config-file", str(config)]
        command += ["--no-site-packages", "--no-error-summary", "--cache-dir", str(root / "cache")]
        command += ["-p", "ttm_policy", "-p", launch_files.name]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode > 1:  # mypy gave up
            raise RuntimeError(done.stdout + done.stderr)
        lines = [
            line
            for line in done.stdout.splitlines()
            if (found := FOUND.fullmatch(line)) and _matters(root / found[1], *found.groups()[1:])
        ]
        return [*lines, *_hidden(root, packages.get("rclpy"))]


def _matters(path: Path, line: str, text: str, code: str) -> bool:
    if code == NOT_GENERIC:
        return int(line) not in _annotated(path)
    unknown = "? has no attribute" in text  # of a type whose package is not looked at
    return code in NOT_THERE and not unknown


def _annotated(path: Path) -> set[int]:
    """The lines of a file that hold annotations."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for kind in ("annotation", "returns"):
            part = getattr(node, kind, None)
            if isinstance(part, ast.expr):
                lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return lines


def _hidden(root: Path, rclpy: Path | None) -> Iterator[str]:
    """Attributes of our nodes that take the place of rclpy's, which the methods of its Node go on to use."""
    if rclpy is None:
        return
    files = [path for path in (root / "ttm_policy").rglob("*.py") if path.is_file()]
    classes = {
        node.name: (path, node)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    taken = set[str]()
    for file in NODES.values():
        if (rclpy / file).exists():
            taken |= _attributes(ast.parse((rclpy / file).read_text()))

    def is_node(name: str) -> bool:
        bases = classes[name][1].bases if name in classes else []
        names = [base.id for base in bases if isinstance(base, ast.Name)]
        return name in NODES or any(map(is_node, names))

    for name, (path, node) in classes.items():
        if is_node(name):
            for attribute in sorted(_attributes(node) & taken):
                place = f"{path.relative_to(root)}:{node.lineno}"
                yield f"{place}: {name}.{attribute} takes the place of rclpy's own; rename it"


def _attributes(tree: ast.AST) -> set[str]:
    """The names that are assigned to on `self`."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_all_that_is_used_of_ros_is_installed() -> None:
    packages = installed_packages()
    assert {"rclpy", "std_msgs"} <= set(packages)
    assert not_there(packages) == []


@pytest.mark.parametrize(
    "name",
    [
        "rclpy.subscription.MessageInfo",  # not in Jazzy
        "rclpy.topic_endpoint_info.TopicEndpointInfo",  # in Kilted for the last time
    ],
)
def test_recorder_needs_no_name_that_some_releases_lack(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, attribute = name.rpartition(".")
    if find_spec(module) is not None:
        monkeypatch.delattr(import_module(module), attribute, raising=False)
    for ours in ("ttm_policy.qos", "ttm_policy.recording.recorder"):
        monkeypatch.delitem(sys.modules, ours, raising=False)
        import_module(ours)


def _write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


RCLPY = """
class Node:
    def __init__(self, name): self._clock = name
    def create_publisher(self, kind, topic, depth) -> 'Publisher': return Publisher()
class Publisher:
    def publish(self, message): pass
"""

OURS = """
from rclpy.node import MessageInfo, Node, Publisher
from rclpy.topic_endpoint_info import TopicEndpointInfo
from unknown.package import Thing
class Robot(Node):
    def __init__(self, other: Node, thing: Thing, ours: Publisher[Node]) -> None:
        self._clock = self.create_publisher(int, "clock", depth=10).publish(1)
        other.create_publisher(int, "clock", 10).wait_for_all_acked()
        other.create_publisher(int, "clock", 10, callback_group=thing.group)
Kind = Publisher[Node]
"""


def test_what_a_release_lacks_is_found(tmp_path: Path) -> None:
    files = {"src/rclpy/__init__.py": "", "src/rclpy/node.py": RCLPY}
    release = _write(tmp_path / "release", files)
    ours = {"ttm_policy/__init__.py": "", "ttm_policy/robot.py": OURS}
    files = {"launch/robot.launch.py": "from rclpy.node import Launched\n"}
    lines = not_there(packages_in(release), _write(tmp_path / "ours", {**ours, **files}))
    places = {line.partition(": ")[0]: line for line in lines}
    for place, words in {
        "ttm_policy/robot.py:2": '"MessageInfo"',
        "ttm_policy/robot.py:3": "rclpy.topic_endpoint_info",
        "ttm_policy/robot.py:5": "Robot._clock takes the place of rclpy's own",
        "ttm_policy/robot.py:8": '"wait_for_all_acked"',
        "ttm_policy/robot.py:9": '"callback_group"',
        "ttm_policy/robot.py:10": '"Publisher" expects no type arguments',
        "launch_files/robot.py:1": '"Launched"',
    }.items():
        assert words in places.pop(place)
    assert not places


def main(folders: list[str]) -> int:
    """Print what each release lacks. Return 1 if that is anything, and 2 if a folder holds no rclpy."""
    if not folders:
        print("name folders with the packages of one release each", file=sys.stderr)
        return 2
    code = 0
    for folder in folders:
        packages = packages_in(Path(folder))
        if "rclpy" not in packages:
            print(f"{folder} holds no package rclpy; give a folder that does", file=sys.stderr)
            return 2
        lines = not_there(packages)
        print(*lines, sep="\n", end="\n" if lines else "")
        others = ", ".join(sorted(ros_packages() - set(packages))) or "none"
        print(
            f"{folder}: {len(lines)} missing in {len(packages)} packages; not there to look at: {others}"
        )
        code = code or int(bool(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
