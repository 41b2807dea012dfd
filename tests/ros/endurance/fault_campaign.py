"""The campaign of faults: a policy's robot whose sensors fail again and again, and how the policy behaves.

Each fault is drawn from the table by a seeded generator, begins at a random moment of its period, and lasts
for a random time. It waits while the policy does not run, which on a busy computer has causes of its own: the
node would tell these in place of the fault. Then the robot is repaired, and the policy must move it again: by
itself or, where the node stays stopped, after the service that its message names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from failing_robot import FAULTS, FailingRobot, Fault, driven_robot, strict_contract

from ttm.policy import UserError
from ttm.policy.errors import options, require_above_0, require_at_least
from ttm.training.bench.common import Line, Report, bar_table, resident_mb
from ttm.training.bench.ros import SETTLING_S, Samples, growth_mb

BEGINS_S = (1.0, 3.0)
"""When a fault begins in its period, at the earliest and at the latest."""
LASTS_S = (2.0, 7.0)
"""For how long a fault lasts, at least and at most."""
RECOVERS_S = 10.0
"""The longest time until the robot moves again: after the repair, or before a fault if it does not run."""
PERIOD_S = BEGINS_S[1] + LASTS_S[1] + RECOVERS_S
"""From fault to fault: all of this has room, unless the fault has to wait."""
START_S = 300.0
"""The longest wait for the first motion."""
REMEDIES = {"reset the memory": "reset_memory", "call the service rearm": "rearm"}
"""What the message of a stopped node asks for -> the service that does it."""
MAX_AGE_S = 0.5
"""Largest accepted age of an observation."""
GROWTH_MB = 1.0

NOTES = f"""\
  blind    the robot was commanded to move although the fault had lasted longer than max_age_s, a tick
           and --slack-s. Not told: the diagnostics never named the fault.
  recover  from the end of the fault until the robot moves again. A dead end: it does not within 10 s,
           although the services were called that the node's message asks for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first motion until the end;
           a dash if that was too short.
"""


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


class Trials:
    """Tries faults on one robot until the time is over, or the policy does not recover any more."""

    def __init__(self, robot: FailingRobot, blind_after_s: float, seed: int):
        """blind_after_s: how long after its beginning a fault may move the robot."""
        self._robot, self._blind_after_s = robot, blind_after_s
        self._rng = np.random.default_rng(seed)
        self.trials: list[Trial] = []

    def run(self, seconds: float) -> None:
        """Begin faults for so long, of a robot that moves."""
        names = list(FAULTS)
        begun_s = next_s = time.monotonic()
        while next_s - begun_s < seconds:
            next_s += PERIOD_S
            name = names[int(self._rng.integers(len(names)))]
            time.sleep(self._rng.uniform(*BEGINS_S))
            trial = Trial(name, lasted_s=float(self._rng.uniform(*LASTS_S)))
            self.trials.append(trial)
            with suppress(TimeoutError):  # a node that answers no more
                self._try(trial, FAULTS[name])
            if trial.recovered_s is None:
                return
            time.sleep(max(0.0, next_s - time.monotonic()))

    def _try(self, trial: Trial, fault: Fault) -> None:
        robot = self._robot
        robot.forget()
        if not robot.runs and self._recover() is None:
            return
        begun_s = time.time()
        end = fault.begin(robot)
        while time.time() < begun_s + trial.lasted_s:
            trial.told |= fault.told(robot.message)
            time.sleep(0.02)
        repaired_s = time.time()
        moved_s = [sent for sent in robot.moved_s if begun_s < sent < repaired_s]
        trial.moving_s = max(moved_s, default=begun_s) - begun_s
        trial.blind_moves = sum(sent > begun_s + self._blind_after_s for sent in moved_s)
        trial.stood = robot.stands
        robot.repair()
        if end is not None:
            end()
        trial.recovered_s = self._recover()

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


@contextmanager
def watched_memory(process: int) -> Iterator[Samples]:
    """Yield a list that gets the time and the resident memory (MB) of a process once a second."""
    samples: Samples = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            if (found := resident_mb(process)) is not None:
                samples.append((time.monotonic(), found))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def lines(trials: Sequence[Trial], growth_mb: float | None, blind_after_s: float) -> list[Line]:
    """Return all figures with their bars."""
    blind = sum(trial.blind_moves for trial in trials)
    not_still = sum(not trial.stood for trial in trials)
    not_told = sum(not trial.told for trial in trials)
    recovered_s = [trial.recovered_s for trial in trials if trial.recovered_s is not None]
    dead_ends = len(trials) - len(recovered_s)
    moving_s = max((trial.moving_s for trial in trials), default=0.0)
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("faults", len(trials), 0, "> 0", len(trials) > 0),
        Line("kinds of faults", len({trial.fault for trial in trials}), 0, "", None),
        Line("blind moves", blind, 0, "0", blind == 0),
        Line("longest motion, s", moving_s, 3, f"<= {blind_after_s:g}", moving_s <= blind_after_s),
        Line("not at a stand", not_still, 0, "0", not_still == 0),
        Line("not told", not_told, 0, "0", not_told == 0),
        Line("dead ends", dead_ends, 0, "0", dead_ends == 0),
        Line("longest to recover, s", max(recovered_s, default=None), 1, "", None),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]


@dataclass(frozen=True)
class FaultCampaign:
    """Break the sensors of a running policy every 20 seconds, and see that it never moves blindly.

    The policy's node runs in real time beside a made-up robot. Faults are drawn from the table of stamps,
    silence, clocks, second publishers, bad values and emergency stops. The exit code is 1 if the robot
    moved while the policy could not see it, if a fault was a dead end, or if the node's memory grew.
    """

    minutes: float = 60.0
    """How long faults come, from the first motion on."""
    seed: int = 0
    """Seed of the faults, of when they begin and how long they last."""
    slack_s: float = 0.1
    """What a stop may take beyond max_age_s and a tick: for a computer that is busy with other work."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what happened in each fault to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "minutes"))
        require_at_least(0, options(self, "seed", "slack_s"))

    def run(self) -> int:
        """Try faults, print a table, and write the figures; return the exit code."""
        with driven_robot(
            FailingRobot, self.checkpoint, strict_contract(), max_age_s=MAX_AGE_S
        ) as (robot, policy):
            blind_after_s = MAX_AGE_S + policy.spec.control_dt_s + self.slack_s
            campaign = Trials(robot, blind_after_s, self.seed)
            robot.wait_for_motion(START_S)
            with watched_memory(robot.processes[0].pid) as memory:
                campaign.run(self.minutes * 60.0)
        trials, growth = campaign.trials, growth_mb(memory)
        if not trials:
            raise UserError("no fault has been tried; give more --minutes")
        report = Report(self.json, minutes=self.minutes, seed=self.seed)
        rows = lines(trials, growth, blind_after_s)
        report.table(bar_table(f"{self.minutes:g} minutes of faults", rows), NOTES)
        for trial in trials:
            if trial.blind_moves or not (trial.stood and trial.told):
                report.text(f"see: {asdict(trial)}")
        report.figures |= {"growth_mb": growth, "trials": [asdict(trial) for trial in trials]}
        report.write()
        return int(any(row.holds is False for row in rows))
