"""`ttm robot`: a policy in closed loop over ROS 2, on the simulated robot or on a real one.

It starts the nodes of the ROS package as processes of their own, as a launch file would, so that it needs no
ROS install; it stops them in order, and the robot with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from ttm.policy.errors import UserError
from ttm.sim.rendering import require_rendering

STOP_TIMEOUT_S = 10.0
"""A node that has not ended this long after SIGINT is killed."""


@dataclass(frozen=True)
class RobotCommand:
    """Drive a robot with a policy over ROS 2, keeping its memory from tick to tick.

    With --sim the robot is the simulated one, in a process of its own behind the same topics; without it only
    the policy's node starts, for the robot whose topics --contract names. Ctrl-C stops the robot and all processes.

    For example:
      ttm robot --sim --instruction "pick up the red can"
      ttm robot --sim --task open_drawer --episodes 20 --out runs/ros
      ttm robot --checkpoint runs/mine/best.safetensors --contract my_robot.yaml --instruction "open the drawer"
    """

    sim: bool = False
    """Start the simulated robot too."""
    checkpoint: Path | None = None
    """The policy's .safetensors file; by default the one that ships with the project."""
    instruction: str | None = None
    """What to do, in words. With --sim: only initial states that ask for it."""
    contract: Path | None = None
    """YAML file that says which topic feeds which observation; by default the simulated robot's."""
    device: str = "cpu"
    """Torch device of the network."""
    task: Literal["pick", "open_drawer"] | None = None
    """With --sim: which task; by default the one of the instruction, or pick."""
    seed: int = 0
    """With --sim: number of the first initial state."""
    episodes: int = 1
    """With --sim: how many initial states, one after the other."""
    max_ticks: int = 0
    """With --sim: end episodes after so many ticks (5 a second); 0 for the task's own limit."""
    free_running: bool = False
    """With --sim: time runs on while the policy thinks, as on a robot. Otherwise the simulator waits for each
    command, and every run of an initial state is the same."""
    rate: float = 0.0
    """With --sim: simulated seconds a second; 0 for as fast as possible (free-running: 1)."""
    out: Path | None = None
    """With --sim: folder for result.json, in the format of `ttm evaluate`, and actions.npz."""
    video: Path | None = None
    """With --sim: path of an .mp4 of the first episode."""

    def run(self) -> int:
        _require_rclpy()
        self._validate()
        checkpoint = self._checkpoint()
        policy: dict[str, Any] = {
            "checkpoint": str(checkpoint),
            "instruction": self.instruction or "",
            "contract": str(self.contract or ""),
            "device": self.device,
        }
        if not self.sim:
            with _nodes({"policy_node": policy}, os.environ) as nodes:
                return nodes["policy_node"].wait()
        require_rendering()
        _require_simulated_robot(checkpoint)
        policy |= {"lockstep": not self.free_running, "use_sim_time": True}
        environment = _own_domain()
        with _nodes(
            {"policy_node": policy, "sim_node": self._sim_parameters()}, environment
        ) as nodes:
            return _wait_for_episodes(nodes["policy_node"], nodes["sim_node"])

    def _validate(self) -> None:
        if self.episodes < 1:
            raise UserError(f"--episodes is {self.episodes}; give at least 1")
        for name, value in {
            "seed": self.seed,
            "max-ticks": self.max_ticks,
            "rate": self.rate,
        }.items():
            if value < 0:
                raise UserError(f"--{name} is {value}; give 0 or more")
        if self.contract is not None and not self.contract.is_file():
            raise UserError(f"no contract at {self.contract}; give the path of a YAML file")

    def _checkpoint(self) -> Path:
        """Named or shipped; absolute, as the nodes' errors name it."""
        from ttm.sim.shipped import SHIPPED, checkpoint_path

        return checkpoint_path(self.checkpoint or SHIPPED).resolve()

    def _sim_parameters(self) -> dict[str, Any]:
        return {
            "task": self._task(),
            "instruction": self.instruction or "",
            "episodes": self.episodes,
            "first_seed": self.seed,
            "max_ticks": self.max_ticks,
            "lockstep": not self.free_running,
            "rate": self.rate,
            "contract": str(self.contract or ""),
            "out": str(self.out or ""),
            "video": str(self.video or ""),
        }

    def _task(self) -> str:
        """The one that was named, or whose instructions hold the given one."""
        from ttm.sim.tasks import TASKS

        if self.instruction is None:
            return self.task or "pick"
        candidates = [TASKS[self.task]] if self.task else list(TASKS.values())
        for task in candidates:
            if self.instruction in task.instructions:
                return task.name
        known = ", ".join(f"'{text}'" for task in candidates for text in task.instructions)
        raise UserError(
            f"the simulated kitchen has no task '{self.instruction}'; it knows: {known}"
        )


def _require_rclpy() -> None:
    if find_spec("rclpy") is None:
        raise UserError(
            'ROS 2 is not here; run: pip install "ttm-policy-stack[ros]" '
            "or source a ROS 2 install: source /opt/ros/<distro>/setup.bash"
        )


def _require_simulated_robot(checkpoint: Path) -> None:
    """Before two processes start, so that the error is one line."""
    from ttm.policy.run.checkpoint import load_checkpoint
    from ttm.sim.kitchen.env import SPEC

    policy, _ = load_checkpoint(checkpoint)
    policy.spec.require_compatible(SPEC, theirs="the simulated robot", ours=str(checkpoint))


def _own_domain() -> dict[str, str]:
    """Simulated commands must not reach a real robot on the network, nor another simulation on this machine."""
    environment = dict(os.environ)
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    environment.setdefault(
        "ROS_DOMAIN_ID", str(1 + os.getpid() % 100)
    )  # above 101 ports may be in use (ROS docs)
    names = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")
    print(
        "to look in: export " + " ".join(f"{name}={environment[name]}" for name in names),
        flush=True,
    )
    return environment


def _wait_for_episodes(policy: subprocess.Popen[bytes], sim: subprocess.Popen[bytes]) -> int:
    """The simulator ends after its last episode; a policy that ends before that has failed and said why."""
    while sim.poll() is None:
        if policy.poll() is not None:
            return policy.returncode or 1
        time.sleep(0.05)
    return sim.returncode


@contextmanager
def _nodes(
    parameters: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Nodes of `ttm_policy` by name; on the way out, whatever the reason, those still running are stopped in order."""
    before = {
        number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="ttm_robot_") as folder:
        try:
            for name, values in parameters.items():
                file = _write_parameters(Path(folder) / f"{name}.yaml", values)
                command = [
                    sys.executable,
                    "-m",
                    f"ttm_policy.{name}",
                    "--ros-args",
                    "--params-file",
                    str(file),
                ]
                nodes[name] = subprocess.Popen(command, env=environment)
            yield nodes
        finally:
            for node in nodes.values():
                _stop(node)
            for number, handler in before.items():
                signal.signal(number, handler)


def _write_parameters(path: Path, values: Mapping[str, Any]) -> Path:
    """A file, since on a command line ROS would take the instruction `yes` for a boolean."""
    import yaml

    text = yaml.safe_dump(
        {"/**": {"ros__parameters": dict(values)}}, allow_unicode=True, width=10_000
    )
    path.write_text(text)
    return path


def _stop(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is not None:
        return
    node.send_signal(signal.SIGINT)
    try:
        node.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
