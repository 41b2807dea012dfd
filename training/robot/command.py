"""`ttm robot`: drive a robot with a policy in closed loop over ROS 2, simulated or real."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

from ttm.policy.errors import UserError
from ttm.training.robot.options import (
    check_options,
    parameter_options,
    read_options,
    require_contract,
    require_started,
)
from ttm_policy.parameters import PolicyParameters, SimParameters


@dataclass(frozen=True)
class _CommandOptions:
    """The options that are no parameters of the nodes."""

    sim: bool = False
    """Start the simulated robot too."""
    free_running: bool = False
    """With --sim: time runs on while the policy computes, as on a robot. Otherwise the simulator
    waits for each command, and every run of an initial state is the same."""
    respawn: bool = False
    """Start the policy again after a crash, with the memory that it had."""


_AllOptions: Any = make_dataclass(
    "_AllOptions",
    parameter_options(PolicyParameters, {"--sim": SimParameters}),
    bases=(_CommandOptions,),
    frozen=True,
)


@dataclass(frozen=True)
class RobotCommand(_AllOptions):
    """Drive a robot with a policy over ROS 2, keeping its memory from tick to tick.

    With --sim the robot is the simulated one, in a process of its own behind the same topics. Without
    it only the policy's node starts, for the robot whose topics --contract names. Ctrl-C stops the
    robot and all processes.

    For example:
      ttm robot --sim --instruction "pick up the red can"
      ttm robot --sim --task open_drawer --episodes 20 --out runs/ros
      ttm robot --checkpoint runs/mine/best.safetensors --contract my_robot.yaml
    """

    def run(self) -> int:
        """Start the nodes, wait for their end, and return the exit code."""
        check_options(self, PolicyParameters, SimParameters)
        require_contract(self.contract)
        if self.free_running and not self.sim:
            raise UserError("--free-running is one of the simulated robot; add --sim")
        started = (PolicyParameters, SimParameters) if self.sim else (PolicyParameters,)
        require_started(self, started, {SimParameters: "the simulated robot; add --sim"})
        from ttm.training.robot.robot import drive_robot, drive_simulation

        lockstep = self.sim and not self.free_running
        policy = read_options(self, PolicyParameters, lockstep=lockstep)
        if not self.sim:
            return drive_robot(policy, respawn=self.respawn)
        sim = read_options(self, SimParameters, lockstep=lockstep)
        return drive_simulation(policy, sim, respawn=self.respawn)
