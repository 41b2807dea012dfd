"""The options of `ttm record`."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

from ttm.training.robot.options import (
    check_options,
    parameter_options,
    read_options,
    require_contract,
)
from ttm_policy.parameters import RecorderParameters

_Options: Any = make_dataclass("_Options", parameter_options(RecorderParameters), frozen=True)


@dataclass(frozen=True)
class RecordCommand(_Options):
    """Record episodes from a robot's topics while somebody drives it by other means.

    The contract says which topics are what, as for ttm robot, so that a policy will see what is recorded.
    Space starts and stops an episode, f stops it as a failure, d discards it, u deletes the last one, and
    q or Ctrl-C ends the command. Without a terminal, the services of recorder_node do the same.

    For example:
      ttm record --contract my_robot.yaml --rate-hz 10 --out my_episodes --instruction "wave"
      ttm record --contract my_robot.yaml --spec runs/mine/best.safetensors --out more_episodes
    """

    def run(self) -> int:
        """Start the recorder, wait for its end, and return its exit code."""
        check_options(self, RecorderParameters)
        require_contract(self.contract)
        from ttm.training.robot.record.record import record_episodes

        return record_episodes(read_options(self, RecorderParameters))
