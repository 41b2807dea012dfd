"""The layout that the packaging relies on; design decisions that are easy to break without noticing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("folder", ["datasets", "launch", "tests"])
def test_folders_whose_name_belongs_to_others_are_no_packages(folder: str) -> None:
    """With an __init__.py, `datasets/` would hide Hugging Face's package, and `launch/` that of ROS."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_launch_files_are_those_of_the_ros_package() -> None:
    """The package holds the files: a link out of it would lead nowhere in a copy."""
    assert (ROOT / "launch").resolve() == ROOT / "ros2_ws" / "src" / "ttm_policy" / "launch"


def test_type_checkers_see_the_same_packages() -> None:
    for name in ("policy", "datasets/episodes", "sim", "training"):
        assert (ROOT / ".typing" / "ttm" / name.split("/")[0]).resolve() == ROOT / name


def test_hugging_face_datasets_can_be_imported_from_the_root() -> None:
    """`python` in the repository's root puts our folders first on the path."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("datasets", [str(ROOT)])
    assert spec is None or spec.loader is None, "a plain folder gives way to an installed package"


def test_report_template_is_installed() -> None:
    assert resources.files("ttm.sim.assets").joinpath("report.html.j2").is_file()


def test_ci_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "make test" in script.read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_make_knows_the_commands_of_the_readme() -> None:
    for target in ("demo", "test", "test-cpus", "table"):
        done = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_type_checker_finds_the_packages_in_a_users_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ttm\nfrom ttm.policy import PolicyRunner\n"
        "reveal_type(ttm.__version__)\nreveal_type(PolicyRunner.from_checkpoint('a'))\n"
    )
    config = tmp_path / "mypy.ini"  # the types of others do not matter here, and take a minute
    others = "torch.*,numpy.*,openvino.*,efficientnet_pytorch.*,rich.*,tyro.*"
    config.write_text(f"[mypy]\nfollow_imports = silent\n[mypy-{others}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Revealed type is "ttm.policy.runner.PolicyRunner"' in done.stdout, done.stdout
    assert '"builtins.str"' in done.stdout or '"str"' in done.stdout, done.stdout
