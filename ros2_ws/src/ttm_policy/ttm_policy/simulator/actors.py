"""Actors that get their actions over ROS 2 from a policy in another process.

`ttm evaluate` and `sim_node` run the same loop over an episode; only the actor differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.client import Client
from rclpy.clock import Clock
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm.policy.errors import require_instruction
from ttm_policy.messages import ResetReply, read_reset_reply
from ttm_policy.programs import StopSignals
from ttm_policy.qos import listen
from ttm_policy.simulator.robot import RobotTopics

LEAST_WAIT = 0.25
"""The portion of a period that is always left for messages."""


class Pace:
    """Gives the ends of control periods on the wall clock, in seconds.

    The periods follow one another without gaps, so that what simulating and rendering take comes off
    the waiting time. A simulation that takes longer falls behind: in each period at least a quarter is
    left for the commands to arrive, and what is lost is not made up for.
    """

    def __init__(self, period_s: float):
        """period_s: the wall time of one control tick."""
        self._period_s = period_s
        self._began_s: float | None = None
        self._end_s = 0.0
        self._ticks = 0

    def next_end(self, now_s: float) -> float:
        """Begin the next period, and return when it ends. now_s: the wall time."""
        if self._began_s is None:
            self._began_s = self._end_s = now_s
        self._end_s += self._period_s
        self._ticks += 1
        self._end_s = max(self._end_s, now_s + LEAST_WAIT * self._period_s)
        return self._end_s

    def achieved(self) -> float:
        """Return the speed of the periods since the last restart, 1.0 if none was late."""
        if self._began_s is None:
            return 1.0
        return self._ticks * self._period_s / (self._end_s - self._began_s)

    def restart(self) -> None:
        """Count from the next period on."""
        self._began_s, self._ticks = None, 0


CLOCK_PERIOD_S = 0.02
"""Wall time between two clock messages while time runs on, in seconds."""
ANSWER_TIMEOUT_S = 5.0
"""Wall time after which a service is called again, in seconds. It doubles each time, up to the longest: a
policy on a busy computer may take longer for every answer."""
LONGEST_ANSWER_S = 80.0


class PolicyIsSilent(RuntimeError):
    """There is no policy, or it gives no commands."""


class Interrupted(RuntimeError):
    """A signal asked the process to end."""


class RosActor:
    """Begins episodes over ROS 2. Its sub-classes get the action of each tick."""

    def __init__(self, node: RobotTopics, signals: StopSignals):
        self.node, self._signals = node, signals
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._e_stop, self._answer_timeout_s = False, ANSWER_TIMEOUT_S
        self._executed = np.zeros(node.spec.action_size, np.float32)
        policy_node = node.parameters.policy_node
        self._reset = node.create_client(Trigger, f"{policy_node}/reset_memory")
        self._erase = node.create_client(Trigger, f"{policy_node}/erase_memory")
        listen(node, Bool, "e_stop", self._on_e_stop)

    def _on_e_stop(self, message: Bool, _: Any) -> None:
        self._e_stop = message.data

    def reset(self, instruction: str) -> None:
        """Publish the instruction, and wait until the policy has reset its memory under it."""
        instruction = require_instruction(instruction)
        self._executed = np.zeros(self.node.spec.action_size, np.float32)
        self.node.publish_instruction(instruction)
        name, limit_s = self._reset.srv_name, self.node.parameters.startup_timeout_s
        self._wait(
            self._reset.service_is_ready, limit_s, f"no service {name}; is policy_node configured?"
        )
        wanted = ResetReply(instruction, tick=0)
        problem = f"{name} does not confirm the instruction '{instruction}'"
        # The call is repeated if the instruction arrives after it.
        self._wait(lambda: self._call(self._reset) == wanted, limit_s, problem)

    def executed(self, action: np.ndarray) -> None:
        """See `ttm.sim.rollout.Actor`. It is published with the next observation."""
        self._executed = action

    def erase_memory(self) -> None:
        """Wait until the policy has emptied its memory, and kept all else as it is."""
        limit_s = self.node.parameters.command_timeout_s
        problem = f"{self._erase.srv_name} does not confirm that the memory is empty"
        self._wait(lambda: self._call(self._erase) is not None, limit_s, problem)

    def _call(self, service: Client) -> ResetReply | None:
        """Call the service, and return None if there is no answer.

        A killed policy remains visible for some seconds, so that a call may stay unanswered. A call
        that is given up may still be executed, but never after the answer to a later call, since
        the policy executes them in order. No memory is therefore reset in the middle of an episode.
        """
        future = service.call_async(Trigger.Request())
        until_s = time.monotonic() + self._answer_timeout_s
        while not future.done() and time.monotonic() < until_s:
            self.spin(0.02)
        if future.done():
            self._answer_timeout_s = ANSWER_TIMEOUT_S
            return read_reset_reply(future.result())
        self._answer_timeout_s = min(2 * self._answer_timeout_s, LONGEST_ANSWER_S)
        service.remove_pending_request(future)
        return None

    def _wait(self, done: Callable[[], bool], limit_s: float, problem: str) -> None:
        """Wait for at most `limit_s` of wall time, emergency stops left out. Raises `PolicyIsSilent`."""
        deadline_s = time.monotonic() + limit_s
        while not done():
            self.spin(0.05)
            if self._e_stop:
                deadline_s = time.monotonic() + limit_s
            if time.monotonic() > deadline_s:
                raise PolicyIsSilent(f"{problem} (waited {limit_s:g} s)")

    def spin(self, timeout_s: float) -> None:
        """Handle one message, or wait for that long. Raises `Interrupted` after a signal."""
        if self._signals.requested:
            raise Interrupted
        self._executor.spin_once(timeout_sec=timeout_s)


class LockstepActor(RosActor):
    """Waits for the command that answers each observation."""

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """See `ttm.sim.rollout.Actor`."""
        started_s, commands = time.monotonic(), self.node.commands
        stamp_ns = self.node.next_time_ns()
        commands.expect(stamp_ns)
        self.node.publish_observation(observation, self._executed, stamp_ns)
        limit_s = self.node.parameters.command_timeout_s
        try:
            self._wait(lambda: not commands.missing(), limit_s, "the policy gives no command")
        except PolicyIsSilent as error:
            raise PolicyIsSilent(f"{error} on {', '.join(commands.missing())}") from error
        self._executed = commands.answer()
        if (rate := self.node.parameters.rate) > 0:
            end_s = started_s + self.node.spec.control_dt_s / rate
            while (rest_s := end_s - time.monotonic()) > 0:
                self.spin(rest_s)
        return self._executed


class FreeRunningActor(RosActor):
    """Lets time run on, and carries out the newest commands at the end of each tick.

    In real time, stamps and `/clock` are the time of the system clock, as on a robot, so that they
    are right for nodes with `use_sim_time` and without. At another rate they are simulated time.
    """

    def __init__(self, node: RobotTopics, signals: StopSignals):
        super().__init__(node, signals)
        self._rate = node.parameters.rate or 1.0
        self._simulated = self._rate != 1.0
        self._pace = Pace(node.spec.control_dt_s / self._rate)
        self._system = Clock()

    def reset(self, instruction: str) -> None:
        """See `RosActor`. The time until the policy is ready is no delay of the simulation."""
        super().reset(instruction)
        self._pace.restart()

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """See `ttm.sim.rollout.Actor`."""
        begin_s = last_clock_s = time.monotonic()
        begin_ns = self.node.next_time_ns() if self._simulated else self._system.now().nanoseconds
        end_s = self._pace.next_end(begin_s)
        self.node.publish_observation(observation, self._executed, begin_ns)
        while (now_s := time.monotonic()) < end_s:
            if now_s - last_clock_s >= CLOCK_PERIOD_S:
                self._publish_clock(begin_ns, now_s - begin_s)
                last_clock_s = now_s
            self.spin(min(CLOCK_PERIOD_S, end_s - now_s))
        self._publish_clock(begin_ns, time.monotonic() - begin_s)
        self._executed = self.node.commands.in_force()
        return self._executed

    def speed(self) -> float:
        """Return the simulated seconds per second since the last reset."""
        return self._rate * self._pace.achieved()

    def _publish_clock(self, begin_ns: int, elapsed_s: float) -> None:
        """elapsed_s: wall time since the observation. Simulated time waits for the next one."""
        tick_s = elapsed_s * self._rate
        if self._simulated:
            tick_s = min(tick_s, self.node.spec.control_dt_s)
        self.node.publish_clock(begin_ns + round(tick_s * 1e9))
