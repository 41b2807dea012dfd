"""What is installed without extras runs a policy and reads episodes, as a robot's computer does."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ttm.policy import UserError
from ttm.policy.extras import extra_with
from ttm.sim import make_env

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[1]
NAME = "ttm-policy-stack"


def installed_with(*extras: str) -> set[str]:
    """Return the names of the distributions that `pip install ttm-policy-stack[extras]` brings."""
    found: set[str] = set()
    todo = [Requirement(f"{NAME}[{','.join(extras)}]" if extras else NAME)]
    seen = set()
    while todo:
        wanted = todo.pop()
        key = (plain(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(plain(wanted.name))
        try:
            needs = [Requirement(text) for text in requires(wanted.name) or ()]
        except PackageNotFoundError:
            continue
        for need in needs:
            marker = need.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in {"", *wanted.extras}):
                todo.append(need)
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


distributions = cache(packages_distributions)


def run(code: str, *extras: str) -> None:
    """Run code in a process in which what other extras bring cannot be imported."""
    allowed = installed_with(*extras)
    blocked = {
        module
        for module, names in distributions().items()
        if not {plain(name) for name in names} & allowed
    } - {"ttm", "ttm_policy"}
    assert "mujoco" in blocked
    hide = f"""
import re, sys
def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
class Hidden:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            return None
        return self.finder.find_spec(name, path, target)
    def find_distributions(self, context):
        found = getattr(self.finder, "find_distributions", lambda context: [])(context)
        return [each for each in found if plain(each.name) in {allowed!r}]
sys.meta_path[:] = [Hidden(finder) for finder in sys.meta_path]
"""
    subprocess.run([sys.executable, "-c", hide + code], check=True)


def test_a_policy_runs_and_episodes_are_written_and_read() -> None:
    run("""
import tempfile
from pathlib import Path
import numpy as np
from ttm.policy.spec import SHIPPED_CHECKPOINT
from ttm.datasets import EpisodeReader, EpisodeWriter
from ttm.policy import PolicyRunner

runner = PolicyRunner.from_checkpoint(SHIPPED_CHECKPOINT)
runner.reset("open the top drawer")
spec = runner.spec
seen = {c.name: np.zeros((c.height, c.width, 3), np.uint8) for c in spec.cameras}
seen |= {v.name: np.zeros(v.size, np.float32) for v in spec.proprioception}
action = runner.step(seen)
path = Path(tempfile.mkdtemp(), "one.hdf5")
with EpisodeWriter(path, spec) as writer:
    writer.append(seen, action.values, timestamp_s=0.0)
    writer.finish(instruction="wave", task="wave", success=True, seed=0)
""")


def test_the_command_line_and_checks_of_data_need_no_extra() -> None:
    run("""
from ttm.training import cli
assert cli.main(["data", "check", "/nowhere.hdf5"]) == 2
""")


def test_the_nodes_of_a_robot_need_only_ros() -> None:
    pytest.importorskip("rclpy")
    run("import ttm_policy.policy_node, ttm_policy.recorder_node", "ros")


def test_another_simulator_needs_no_mujoco(tmp_path: Path) -> None:
    """It is evaluated and collected from, and its episodes are trained on."""
    run(
        f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "sim")!r})
from ttm.training import cli
env = ["--env", "point_env:test/Point-v0", "--episodes", "3", "--workers", "1"]
out = {str(tmp_path)!r}
assert cli.main(["evaluate", *env, "--checkpoint", "expert", "--out", out + "/eval"]) == 0
assert cli.main(["collect", *env, "--out", out + "/demos"]) == 0
train = ["--steps", "2", "--batch-size", "2", "--device", "cpu", "--dry-run"]
assert cli.main(["train", "--data", out + "/demos", "--out", out + "/run", *train]) == 0
assert "mujoco" not in sys.modules
""",
        "sim",
        "train",
    )
    assert (tmp_path / "eval" / "videos" / "touch_0000.mp4").is_file()


def test_without_mujoco_the_kitchen_names_its_extra(capfd: Capture) -> None:
    run(
        """
from ttm.training import cli
for command in ("evaluate --out o", "collect --out o", "bench sim", "demo --out o"):
    assert cli.main(command.split()) == 2
""",
        "sim",
        "train",
    )
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert re.search(r'needs mujoco.*pip install "ttm-policy-stack\[kitchen\]"$', line)


def test_the_kitchen_refuses_a_mujoco_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another simulator may have asked for that one."""
    monkeypatch.setattr("ttm.policy.extras.version", lambda name: "3.3.0")
    with pytest.raises(UserError, match=r"kitchen needs mujoco.*3\.3\.0 is installed.*\[kitchen\]"):
        make_env()


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("msgpack", "serve"),
        ("websocket", "serve"),
        ("gymnasium", "sim"),
        ("lightning_fabric", "train"),
        ("nothing", None),
    ],
)
def test_the_extra_of_a_package_that_cannot_be_imported_is_known(
    package: str, extra: str | None
) -> None:
    assert extra_with(package) == extra
