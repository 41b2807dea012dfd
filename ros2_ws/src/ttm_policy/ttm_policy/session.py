"""A configured policy with its topics, services and ticks."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import numpy as np
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node
from rclpy.timer import Timer
from std_msgs.msg import String

from ttm.policy.errors import ObservationError, UserError
from ttm_policy.commands import CommandPublishers, Helm, Seen
from ttm_policy.control_loop import (
    STANDING_STILL,
    ControlLoop,
    LoopState,
    MemoryReport,
    PolicyTick,
    Question,
    Thought,
    Vector,
    Vigilance,
    think_about,
)
from ttm_policy.diagnostics import PolicyFacts, TickStatistics, policy_status
from ttm_policy.goals import GoalInterface, GoalKeeper, GoalRules
from ttm_policy.guards import StopThread
from ttm_policy.inference import LoadedPolicy, Worker
from ttm_policy.inputs import Inputs, read_instruction
from ttm_policy.memory import MemoryInterface, Recovery
from ttm_policy.messages import ns_to_stamp
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import listen

# Puts instructions into force: those of the topic `instruction`, and those of goals.

Then = Callable[[str], object]
"""Gets an empty text, or what went wrong."""


class Instructing:
    """Resets the memory under each new instruction. Meanwhile the robot stands still.

    `on_heard` is called when the topic has a new instruction, `on_void` when the one in force is void, and
    `on_begun` with the loop's state before when the new one is in force or cannot be used.
    """

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        worker: Worker,
        recovery: Recovery,
        memory: MemoryInterface,
        *,
        reset: Callable[[str], None],
        on_heard: Callable[[], None],
        on_void: Callable[[], None],
        on_begun: Callable[[LoopState], None],
    ):
        self._node, self._loop, self._worker = node, loop, worker
        self._recovery, self._memory, self._reset_runner = recovery, memory, reset
        self._on_heard, self._on_void, self._on_begun = on_heard, on_void, on_begun
        self.text = loop.runner.instruction or ""
        """The instruction in force, or the one that is being prepared."""
        self._turn = 0
        """Counts instructions, so that only the newest one comes into force."""
        self._listeners = listen(
            node, String, "instruction", lambda message, _: self._on_message(message)
        )

    def _on_message(self, message: String) -> None:
        text = read_instruction(self._node, message)
        if text and text != self.text:
            self._on_heard()
            self.begin(text)

    def begin(self, text: str, then: Then = lambda _: None, *, goal: bool = False) -> None:
        """Stop the robot, and begin an episode under an instruction, be it the same as before.

        The language model may take seconds for a new one. `then` is called when the policy may tick.
        goal: whether this is for a goal.
        """
        self._turn += 1
        self.text = text
        self._on_void()
        self._loop.prepare()
        self._worker.submit(
            partial(self._instruct, text, self._turn, goal),
            partial(self._on_instructed, text, self._turn, then, goal),
        )

    def _instruct(self, text: str, turn: int, goal: bool) -> MemoryReport:
        """Reset the memory under a new instruction; in the thread of the network."""
        runner = self._loop.runner
        if turn == self._turn:  # or else a newer instruction waits already
            try:
                self._reset_runner(text)
                self._loop.for_goal = goal
                self._recovery.save()
            except UserError:
                runner.instruction = None
                raise
        return MemoryReport.of(runner)

    def _on_instructed(
        self, text: str, turn: int, then: Then, goal: bool, future: Future[MemoryReport]
    ) -> None:
        if turn != self._turn:
            then("another instruction has come")
            return
        before, problem = self._loop.state, ""
        try:
            report = future.result()
        except UserError as error:
            self.text, problem = "", str(error)
            self._loop.refuse(problem)
        else:
            self._loop.reopen(goal=goal)
            self._memory.publish(report)
            self._node.get_logger().info(f"new instruction, memory reset: {text}")
        then(problem)
        self._on_begun(before)

    def close(self) -> None:
        """Destroy the subscriptions."""
        for listener in self._listeners:
            self._node.destroy_subscription(listener)


# Keeps account of a session's ticks for `/diagnostics`.


class TickRecord:
    """Gathers what a session knows about its ticks, its inputs and its memory."""

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        inputs: Inputs,
        memory: MemoryInterface,
        commands: Helm,
        *,
        after_crash: str = "",
    ):
        """after_crash: what the robot will do if the process crashes, in words."""
        self._node, self._loop, self._inputs = node, loop, inputs
        self._memory, self._commands, self._after_crash = memory, commands, after_crash
        self._network_s = self._told_delay_s = 0.0
        self.statistics = TickStatistics(loop.runner.spec.control_dt_s)

    def begun(self, question: Question, now_ns: int) -> float:
        """Count a tick that begins. Return how late its command will be in force, in seconds.

        That is the age of its oldest input and what the last ticks took from their beginning until their
        commands were sent. In lockstep the simulator waits, and nothing is late.
        """
        self.statistics.begin(question.wall_s)
        age_s = (now_ns - question.observation.oldest_ns) * 1e-9
        late = not self._inputs.lockstep
        self._told_delay_s = age_s + self.statistics.recent_tick_s if late else 0.0
        return self._told_delay_s

    def answered(self, tick: PolicyTick, question: Question, thought: Thought) -> None:
        """Count a tick whose command was sent just now."""
        now_ns = self._node.get_clock().now().nanoseconds
        latency_s = (now_ns - question.observation.oldest_ns) * 1e-9
        self.statistics.answer(question.wall_s, time.monotonic(), latency_s)
        self._network_s = thought.seconds
        for name, where in self._loop.runner.spec.action_slices.items():
            if not np.array_equal(tick.action[where], tick.command[where]):
                self.statistics.limits_hit[name] += 1

    def status(self, name: str, *, active: bool) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        facts = PolicyFacts(
            active=active,
            memory=self._memory.report,
            memory_age_s=self.statistics.memory_age_s(time.monotonic()),
            network_s=self._network_s,
            told_delay_s=min(self._told_delay_s, self._loop.runner.policy.config.longest_delay_s),
            ticks=self.statistics,
            input_ages_s=self._inputs.ages_s(self._node.get_clock().now().nanoseconds),
            expired=self._commands.expired,
            person=self._commands.person,
            person_problem=self._commands.problem,
            after_crash=self._after_crash,
        )
        return policy_status(name, self._loop, facts)


TELL_AFTER_S = 2.0
"""So long after its activation a policy says what it still waits for."""


class PolicySession:
    """Translates between topics and a `ControlLoop`. It commands nothing until `start`.

    The network and the language model run on the thread of `worker`. Every new command to the robot is
    sent by the thread that spins the node; while the network thinks, the `StopThread` keeps the command of
    the last tick in force, and stops the robot. `on_state_change` is called whenever the loop's state has
    changed.
    """

    def __init__(
        self,
        node: Node,
        loaded: LoadedPolicy,
        parameters: PolicyParameters,
        worker: Worker,
        on_state_change: Callable[[], None],
    ):
        """Connect all topics."""
        self._node, self._parameters, self._worker = node, parameters, worker
        self._on_state_change = on_state_change
        self.active = False
        self._timer: Timer | None = None
        self._waiting: Timer | None = None
        self._stops = 0
        self._delivered: Vector | None = None
        runner = loaded.runner
        reset = partial(loaded.instructions.reset, runner)
        self._stop_thread = StopThread(node)
        self._loop = ControlLoop(
            runner,
            loaded.limits,
            max_age_s=parameters.max_age_s,
            stop_after_s=parameters.stop_after_s,
            only_goals=not parameters.start_on_instruction,
        )
        self.recovery = Recovery(self._loop, parameters, node.get_logger())
        hold = self.recovery.restore(loaded.codec.contract)
        self._memory = MemoryInterface(
            node,
            self._loop,
            worker,
            parameters.snapshot_path,
            self.recovery,
            reset=reset,
            on_reset=self._begin_episode,
            on_restore=self._on_restore,
        )
        self._instructing = Instructing(
            node,
            self._loop,
            worker,
            self.recovery,
            self._memory,
            reset=reset,
            on_heard=lambda: self._goals.abort("another instruction has come"),
            on_void=self._stop_if_active,
            on_begun=self._on_instructed,
        )
        rules = GoalRules.of(parameters, runner.spec.control_dt_s)
        self._goals = GoalKeeper(
            self._instructing, rules, obstacle=self._goal_obstacle, rest=self._rest
        )
        self._goal_interface = GoalInterface(node, self._goals)
        self._inputs = Inputs(
            node,
            loaded.codec.contract,
            runner.spec,
            lockstep=parameters.lockstep,
            on_message=self._on_input,
        )
        worker.on_idle = self._on_input
        self._vigilance = Vigilance(
            self._stop_thread,
            self._loop,
            self._inputs,
            loaded.codec,
            parameters,
            disarmed=hold,
            on_watch=self._watch,
            on_e_stop=self._on_e_stop,
        )
        commands = CommandPublishers(
            self._stop_thread,
            loaded.codec,
            parameters,
            self._vigilance.echo,
            loaded.limits.halt,
        )
        self._commands = Helm(node, loaded, parameters, commands, self._look_for_person)
        outlook = self.recovery.outlook(loaded.codec.contract)
        self._record = TickRecord(
            node, self._loop, self._inputs, self._memory, self._commands, after_crash=outlook
        )
        self._memory.publish(MemoryReport.of(runner))
        checkpoint = parameters.checkpoint or "the shipped policy"
        node.get_logger().info(
            f"ready: {checkpoint} for {runner.spec.robot} at {runner.spec.rate_hz} Hz; "
            f"after a crash: {outlook}"
        )

    def start(self) -> None:
        """Start the ticks: at the policy's rate, or in lockstep at each complete observation."""
        self.active = self._commands.is_open = True
        self._loop.resume()
        self._heed_e_stop()
        if not self._parameters.lockstep:
            period_s = self._loop.runner.spec.control_dt_s
            self._timer = self._node.create_timer(period_s, self._on_timer)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._waiting = self._node.create_timer(TELL_AFTER_S, self._tell_waiting, clock=steady)
        self._on_input()

    def stop(self) -> None:
        """End the ticks, and then stop the robot: the stop is the last command."""
        self.active = False
        self._goals.abort("the node was deactivated")
        self._commands.release()
        self._commands.is_open = False
        for timer in filter(None, (self._timer, self._waiting)):
            self._node.destroy_timer(timer)
        self._timer = self._waiting = None
        self._stop_robot()

    def _tell_waiting(self) -> None:
        """Say once what the robot lacks in order to move."""
        assert self._waiting is not None
        self._waiting.cancel()
        lacks = [self._inputs.waits_for()]
        if self._loop.state is LoopState.NO_INSTRUCTION:
            topic = self._node.resolve_topic_name("instruction")
            lacks.append(f"no instruction; publish one on {topic}")
        if found := "; ".join(filter(None, lacks)):
            self._node.get_logger().warning(f"the robot does not move yet: {found}")

    def _goal_obstacle(self) -> str:
        """Return why no goal can begin now, or an empty text."""
        if not self.active:
            return "the node is inactive; activate it first"
        if self._parameters.lockstep:
            return "in lockstep the simulator begins the episodes; there are no goals"
        return self._loop.description if self._loop.state is LoopState.E_STOP else ""

    def _rest(self, why: str) -> None:
        """Stop the robot, and let it stand still until the next goal begins."""
        before = self._loop.state
        self._loop.rest(why)
        self._stop_if_active()
        self._report_if_changed(before)

    def _stop_if_active(self) -> None:
        if self.active:
            self._stop_robot()

    def _stop_robot(self) -> None:
        """Send zero now. What the network makes of an observation from before is not sent."""
        self._stops += 1
        self._record.statistics.pause()
        self._commands.stop()
        self._loop.limits.halt()
        if self._delivered is None:
            self._worker.submit(self._loop.stand_still)
        else:
            still = self._loop.limits.stopped(self._delivered)
            self._worker.submit(partial(self._loop.acted, still))

    def take_parameters(self, parameters: PolicyParameters) -> None:
        """Take those parameters that a running node can change, from the next tick on."""
        self._loop.take_parameters(parameters)
        self._commands.take_limits(parameters.limits)
        self._goals.rules = GoalRules.of(parameters, self._loop.runner.spec.control_dt_s)

    def flush(self) -> None:
        """Wait until the last commands have arrived."""
        self._commands.flush()

    def close(self) -> None:
        """Destroy all topics and services. The caller closes the worker before."""
        self._stop_thread.close()
        self._vigilance.close()
        self._inputs.close()
        self._memory.close()
        self._commands.close()
        self._instructing.close()
        self._goal_interface.close()

    def status(self, name: str) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        return self._record.status(name, active=self.active)

    def _on_timer(self) -> None:
        self._worker.deliver()
        if not self._worker.idle:
            # The network is still at work; the command of the last tick stays in force.
            self._record.statistics.skipped += self._loop.state is LoopState.RUNNING
            return
        self._tick_if_seeing()

    def _tick_if_seeing(self) -> None:
        before, now = self._loop.state, self._node.get_clock().now()
        if self._vigilance.lets_tick():
            self._tick(now.nanoseconds, now.to_msg())
        else:
            self._stand_still_if_due(before)

    def _watch(self) -> None:
        """On the steady clock, stop the robot as soon as the policy sees it no more."""
        self._on_e_stop()
        if self.active and not self._parameters.lockstep:
            before = self._loop.state
            self._vigilance.look()
            self._commands.watch()
            if self._loop.state is not before:
                self._stand_still_if_due(before)
            waits_for = self._loop.problem or self._loop.state.value
            stopped = self._loop.state is LoopState.STOPPED
            self._goals.watch(waits_for if stopped else "", waits_for)

    def _on_input(self) -> None:
        """In lockstep, run a tick on each complete observation once, whose stamp the commands carry.

        Otherwise, run a tick that is overdue because a camera had no new frame.
        """
        if not self.active or not self._worker.idle:
            return
        if not self._parameters.lockstep:
            if (
                self._timer is not None
                and self._vigilance.due
                and not self._vigilance.lacks_frame()
            ):
                self._timer.reset()
                self._tick_if_seeing()
            return
        stamp_ns = self._inputs.complete_stamp_ns()
        if stamp_ns is not None and stamp_ns > self._loop.last_stamp_ns:
            self._tick(stamp_ns, ns_to_stamp(stamp_ns))

    def _tick(self, now_ns: int, reply_stamp: Time) -> None:
        """Let the network think about the newest observation, unless there is an emergency stop by now."""
        self._heed_e_stop()
        before, wall_s = self._loop.state, time.monotonic()
        try:
            self._commands.require_limits()
            observation = self._commands.with_executed(self._inputs.observation())
            if self._loop.begin(observation, now_ns * 1e-9, wall_s):
                question = Question(observation, wall_s, reply_stamp, self._stops)
                if self._timer is not None and self._record.statistics.is_late(wall_s):
                    self._timer.reset()  # so that the next tick is a whole period away
                delay_s = self._record.begun(question, now_ns)
                think = partial(think_about, self._loop, question, delay_s)
                self._worker.submit(think, partial(self._answer, question))
                return
        except ObservationError as error:
            self._loop.hold(error, wall_s)
        self._stand_still_if_due(before)

    def _stand_still_if_due(self, before: LoopState) -> None:
        self._record.statistics.pause()
        if self._loop.state in STANDING_STILL:
            self._stop_robot()
        self._report_if_changed(before)

    def _answer(self, question: Question, future: Future[Thought]) -> None:
        """Send what the network answered, unless the robot was stopped while it thought."""
        self._heed_e_stop()
        before = self._loop.state
        try:
            thought, late_s = future.result(), 0.0
            if not self._parameters.lockstep:
                now_s = self._node.get_clock().now().nanoseconds * 1e-9
                late_s = self._loop.require_in_time(question.observation, now_s)
        except ObservationError as error:
            self._inputs.refused_ns = question.observation.stamp_ns
            self._loop.hold(error, question.wall_s)
            self._stand_still_if_due(before)
            return
        self._memory.publish(thought.memory)
        stopped = question.stops != self._stops
        if not stopped or self._parameters.lockstep:  # a simulator in lockstep waits for an answer
            self._act(thought, question, late_s)
        if stopped:
            self._stop_robot()
        self._report_if_changed(before)

    def _act(self, thought: Thought, question: Question, late_s: float) -> None:
        self._commands.settle()
        tick = self._loop.finish(thought.action, question.wall_s, question.observation, late_s)
        seen = question.observation.values
        self._delivered = self._commands.publish(tick, question.reply_stamp, seen)
        self._record.answered(tick, question, thought)
        self._worker.submit(partial(self.recovery.acted, self._delivered))
        done = self._loop.runner.spec.says_done(tick.action) and not self._commands.person
        self._goals.ticked(done=done)

    def _on_instructed(self, before: LoopState) -> None:
        self._delivered = None
        self._report_if_changed(before)

    def _look_for_person(self) -> tuple[Seen, float]:
        self._heed_e_stop()
        return self._vigilance.look_for_person()

    def _on_e_stop(self) -> None:
        """Heed the emergency stop, and go on at once when it lets the robot move again."""
        before = self._loop.state
        self._heed_e_stop()
        if before is LoopState.E_STOP and self._loop.state is not before:
            self._on_input()

    def _heed_e_stop(self) -> None:
        """Stop the robot if the emergency stop says so, and let the loop go on when it does no more."""
        before = self._loop.state
        self._vigilance.heed_e_stop()
        if self._loop.state is before:
            return
        if self._loop.state is LoopState.E_STOP:
            self._stop_if_active()
            self._goals.abort(self._loop.description)
        self._report_if_changed(before)

    def _begin_episode(self, answered_ns: int) -> None:
        """Accept the old stamps of a restarted simulator, but answer no observation twice."""
        self._end_command()
        if self._inputs.complete_stamp_ns() == answered_ns or not self._parameters.lockstep:
            self._inputs.forget()
        self._goals.abort("the memory was reset")

    def _end_command(self) -> None:
        """Let the robot stand still until the next tick, since its command belongs to another memory.

        In lockstep it stands still anyway, and would take this for an answer.
        """
        self._delivered = None
        if self.active and not self._parameters.lockstep:
            self._stops += 1
            self._commands.stop()

    def _on_restore(self) -> None:
        self._end_command()
        self._instructing.text = self._memory.report.instruction
        self._goals.abort("another memory was restored")

    def _report_if_changed(self, before: LoopState) -> None:
        if self._loop.state is not before:
            # Of a pause nothing was told.
            if (before, self._loop.state) != (LoopState.PAUSED, LoopState.RUNNING):
                self._node.get_logger().info(self._loop.description)
            self._on_state_change()
