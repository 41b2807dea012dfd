"""Dependencies point one way: policy <- datasets <- sim <- training <- the ROS package (read off the syntax trees)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROS_PACKAGE = ROOT / "ros2_ws" / "src" / "ttm_policy" / "ttm_policy"

ALLOWED = {
    "policy": {"policy"},
    "datasets": {"policy", "datasets"},
    "sim": {"policy", "datasets", "sim"},
    "training": {"policy", "datasets", "sim", "training"},
}
SIMULATION_AND_ROS = {
    "mujoco", "gymnasium", "gymnasium_robotics", "mink", "rclpy", "launch", "launch_ros",
    "sensor_msgs", "geometry_msgs", "nav_msgs", "std_msgs", "std_srvs", "trajectory_msgs", "diagnostic_msgs",
    "lifecycle_msgs", "rosgraph_msgs", "builtin_interfaces",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, at the top or within functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def python_files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, f"no Python files in {folder}"
    return files


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_those_below_it(folder: str) -> None:
    for path in python_files(ROOT / folder):
        used = {name.split(".")[1] for name in imports(path) if name.startswith("ttm.")}
        assert used <= ALLOWED[folder], f"{path.relative_to(ROOT)} imports {used - ALLOWED[folder]}"


@pytest.mark.parametrize("folder", ["policy", "datasets"])
def test_policy_and_datasets_know_neither_simulator_nor_ros(folder: str) -> None:
    for path in python_files(ROOT / folder):
        used = {name.split(".")[0] for name in imports(path)} & SIMULATION_AND_ROS
        assert not used, f"{path.relative_to(ROOT)} imports {used}"


def test_nothing_imports_the_ros_package_but_itself() -> None:
    for folder in ALLOWED:
        for path in python_files(ROOT / folder):
            assert "ttm_policy" not in {name.split(".")[0] for name in imports(path)}, (
                path.relative_to(ROOT)
            )


def test_the_ros_package_imports_no_training() -> None:
    """A robot needs neither the trainer nor its dependencies."""
    for path in python_files(ROS_PACKAGE):
        assert not {name for name in imports(path) if name.startswith("ttm.training")}, (
            path.relative_to(ROOT)
        )
