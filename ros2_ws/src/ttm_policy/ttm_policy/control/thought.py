"""What is handed to the thread of the network, and what comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass

from builtin_interfaces.msg import Time

from ttm_policy.control.control_loop import ControlLoop
from ttm_policy.inputs.stamped_observation import StampedObservation, Vector
from ttm_policy.network.memory_report import MemoryReport


@dataclass(frozen=True)
class Thought:
    """What the network made of an observation."""

    action: Vector
    """The policy's own action (A,)."""
    memory: MemoryReport
    seconds: float
    """How long the network took."""


@dataclass(frozen=True)
class Question:
    """An observation that the network is at work on."""

    observation: StampedObservation
    wall_s: float
    """When it began, on the steady clock."""
    reply_stamp: Time
    stops: int
    """How often the robot had been stopped before. A stop in between makes the answer void."""


def think_about(loop: ControlLoop, question: Question, delay_s: float) -> Thought:
    """Run the network; in the thread of the network. delay_s: see `PolicyRunner.step`."""
    started_s = time.perf_counter()
    action = loop.think(question.observation, delay_s)
    report = MemoryReport.of(loop.runner)
    return Thought(action, report, time.perf_counter() - started_s)
