"""Breaks the sensors of a running policy again and again, and notes how it behaves each time.

Each fault is drawn from the table by a seeded generator, begins at a random moment of its period, and lasts
for a random time. It waits while the policy does not run, which on a busy computer has causes of its own: the
node would tell these in place of the fault. Then the robot is repaired, and the policy must move it again: by
itself or, where the node stays stopped, after the service that its message names. `ttm bench faults` starts
this program beside `policy_node`.

    python -m ttm_policy.faults.campaign --ros-args --params-file FILE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import load_contract
from ttm_policy.faults.robot import FAULTS, FailingRobot, Fault, made_up_observation
from ttm_policy.node_parameters import given_parameters
from ttm_policy.parameters import NodeParameters, Parameter
from ttm_policy.programs import StopSignals, run_with_ros

BEGINS_S = (1.0, 3.0)
"""When a fault begins in its period, at the earliest and at the latest."""
LASTS_S = (2.0, 7.0)
"""For how long a fault lasts, at least and at most."""
RECOVERS_S = 10.0
"""The longest time until the robot moves again: after the repair, or before a fault if it does not run."""
PERIOD_S = BEGINS_S[1] + LASTS_S[1] + RECOVERS_S
"""The least period in which all of this has room, unless the fault has to wait."""
START_S = 300.0
"""The longest wait for the first motion."""
REMEDIES = {"reset the memory": "reset_memory", "call the service rearm": "rearm"}
"""What the message of a stopped node asks for -> the service that does it."""


@dataclass(frozen=True)
class CampaignParameters(NodeParameters):
    """The parameters of a campaign."""

    spec: Annotated[str, Parameter("The policy's spec as JSON, which has the sizes.")] = ""
    contract: Annotated[str, Parameter("YAML file of the robot's topics.")] = ""
    seconds: Annotated[float, Parameter("How long new faults begin.", unit="s", positive=True)] = (
        3600.0
    )
    period_s: Annotated[
        float, Parameter("Time from fault to fault.", unit="s", minimum=PERIOD_S)
    ] = PERIOD_S
    blind_after_s: Annotated[
        float,
        Parameter("How long after its beginning a fault may move the robot.", unit="s", minimum=0),
    ] = 0.8
    seed: Annotated[int, Parameter("Seed of the faults and their times.", minimum=0)] = 0
    out: Annotated[str, Parameter("File for what happened, as JSON.", is_path=True)] = ""


@dataclass
class Trial:
    """What happened in one fault. Times are in seconds."""

    fault: str
    lasted_s: float
    moving_s: float = 0.0
    """From the beginning until the last command that moved the robot."""
    blind_moves: int = 0
    """Commands later than they may come that moved the robot."""
    told: bool = False
    """Whether the diagnostics named the fault."""
    stood: bool = False
    """Whether the robot was commanded to stand still at the end of the fault."""
    recovered_s: float | None = None
    """From the repair until the robot moved again; None if it did not, or if the fault waited in vain."""


class Campaign:
    """Runs trials on one robot until the time is over, or the policy does not recover any more."""

    def __init__(
        self, robot: FailingRobot, parameters: CampaignParameters, stop: Callable[[], bool]
    ):
        """stop: whether to end before the time."""
        self._robot, self._parameters, self._stop = robot, parameters, stop
        self._rng = np.random.default_rng(parameters.seed)
        self.trials: list[Trial] = []
        self.started_s = 0.0
        """When the robot moved for the first time, on a steady clock."""

    def run(self) -> None:
        """Run all trials. Raises `TimeoutError` if the policy never moves the robot."""
        self._robot.wait_for_motion(START_S)
        self.started_s = time.monotonic()
        names = list(FAULTS)
        next_s = self.started_s
        while next_s - self.started_s < self._parameters.seconds and not self._stop():
            next_s += self._parameters.period_s
            name = names[int(self._rng.integers(len(names)))]
            time.sleep(self._rng.uniform(*BEGINS_S))
            trial = Trial(name, lasted_s=float(self._rng.uniform(*LASTS_S)))
            self.trials.append(trial)
            with suppress(TimeoutError):  # a node that answers no more
                self._try(trial, FAULTS[name])
            if trial.recovered_s is None:
                return
            self._sleep_until(next_s)

    def _try(self, trial: Trial, fault: Fault) -> None:
        robot = self._robot
        robot.forget()
        if not robot.runs and self._recover() is None:
            return
        begun_s = time.time()
        end = fault.begin(robot)
        self._watch(trial, fault, begun_s + trial.lasted_s)
        repaired_s = time.time()
        moved_s = [sent for sent in robot.moved_s if begun_s < sent < repaired_s]
        trial.moving_s = max(moved_s, default=begun_s) - begun_s
        limit_s = begun_s + self._parameters.blind_after_s
        trial.blind_moves = sum(sent > limit_s for sent in moved_s)
        trial.stood = robot.stands
        robot.repair()
        if end is not None:
            end()
        trial.recovered_s = self._recover()

    def _watch(self, trial: Trial, fault: Fault, until_s: float) -> None:
        while time.time() < until_s:
            trial.told |= fault.told(self._robot.message)
            time.sleep(0.02)

    def _recover(self) -> float | None:
        """Do what the node asks for until the robot moves, and return how long that took."""
        robot, begun_s, begun_wall_s = self._robot, time.monotonic(), time.time()
        asked_s = begun_s
        while time.monotonic() - begun_s < RECOVERS_S:
            if robot.moved_at_s > begun_wall_s and robot.runs:
                return time.monotonic() - begun_s
            if time.monotonic() - asked_s > 1.0:  # so that a message from before is not heeded
                asked_s = time.monotonic()
                for words, service in REMEDIES.items():
                    if words in robot.message:
                        robot.call(service)
            time.sleep(0.02)
        return None

    def _sleep_until(self, wanted_s: float) -> None:
        while time.monotonic() < wanted_s and not self._stop():
            time.sleep(0.05)


def _run_campaign(signals: StopSignals) -> None:
    parameters = given_parameters("campaign", CampaignParameters)
    spec = PolicySpec.from_json(parameters.spec)
    robot = FailingRobot(load_contract(parameters.contract), spec, made_up_observation(spec))
    campaign = Campaign(robot, parameters, lambda: signals.requested)
    try:
        campaign.run()
    finally:
        robot.close()
    if parameters.out:
        trials = [asdict(trial) for trial in campaign.trials]
        figures = {"started_s": campaign.started_s, "trials": trials}
        Path(parameters.out).write_text(json.dumps(figures))


def _run() -> int:
    try:
        _run_campaign(StopSignals())
    except TimeoutError as error:
        raise UserError(str(error)) from error
    return 0


def main() -> int:
    """Run a campaign until its end or a signal, and return the exit code."""
    return run_with_ros("campaign", _run)


if __name__ == "__main__":
    sys.exit(main())
