"""The options of `ttm record`."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

from ttm.policy.errors import UserError
from ttm.training.robot.options import (
    check_options,
    parameter_options,
    read_options,
    require_contract,
)
from ttm_policy.parameters import RecorderParameters, WebParameters


@dataclass(frozen=True)
class _CommandOptions:
    """The options that are no parameters of the nodes."""

    sim: bool = False
    """Start the simulated robot too, and the web page to drive it by. After each episode it is in another
    initial state, none of which `ttm evaluate` uses by itself."""
    web: bool = False
    """Serve a web page on this machine by which a person drives the robot and records."""
    task: str | None = None
    """With --sim: task of the simulated kitchen. By default the one of the instruction, or the first."""


_AllOptions: Any = make_dataclass(
    "_AllOptions",
    parameter_options(RecorderParameters, {"--web": WebParameters}),
    bases=(_CommandOptions,),
    frozen=True,
)


@dataclass(frozen=True)
class RecordCommand(_AllOptions):
    """Record episodes from a robot's topics while somebody drives it.

    The contract says which topics are what, as for ttm robot, so that a policy will see what is recorded.
    With --web, a page in the browser shows the cameras, drives, records, and lists what was recorded; its
    address is printed. Otherwise the robot is driven by other means.
    In the terminal, space starts and stops an episode, f stops it as a failure, d discards it, u deletes
    the last one, and q or Ctrl-C ends the command. The services of recorder_node do the same.

    For example:
      ttm record --sim --out demos
      ttm record --contract my_robot.yaml --rate-hz 10 --web --out my_episodes
      ttm record --contract my_robot.yaml --spec runs/mine/best.safetensors --out more_episodes
    """

    def run(self) -> int:
        """Start the nodes, wait for their end, and return the exit code."""
        check_options(self, RecorderParameters, WebParameters)
        require_contract(self.contract)
        if self.task and not self.sim:
            raise UserError("--task is one of the simulated robot; add --sim")
        from ttm.training.robot.record.record import record_episodes, record_simulation

        recorder = read_options(self, RecorderParameters)
        web = read_options(self, WebParameters, folder=recorder.folder)
        if self.sim:
            return record_simulation(recorder, web, self.task or "")
        return record_episodes(recorder, web if self.web else None)
