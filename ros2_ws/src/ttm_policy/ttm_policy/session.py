"""A configured policy with its topics, services and ticks.

One tick runs in two halves, since the network takes its time on a thread of its own. `PolicySession._tick`
observes and asks the network; `PolicySession._finish_tick` limits, publishes and records.

Each object holds references to those below it that it uses; callbacks come from ROS and the network's thread:

    PolicySession
    MemoryServices, GoalInterface
    GoalKeeper
    EpisodeControl
    CommandMux, TickRecord, Recovery
    Watchdog, CommandPublishers
    ControlLoop, Inputs, EStopTopic, CommandEcho, StopThread
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future as Answered
from rclpy.timer import Timer
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import ObservationError, UserError
from ttm_policy.commands import CommandMux, CommandPublishers
from ttm_policy.control_loop import (
    STANDING_STILL,
    ControlLoop,
    Inference,
    LoopState,
    MemoryReport,
    PendingTick,
    Watchdog,
)
from ttm_policy.diagnostics import TickRecord
from ttm_policy.goals import EpisodeControl, GoalInterface, GoalKeeper
from ttm_policy.guards import CommandEcho, EStop, EStopTopic, StopThread
from ttm_policy.inference import LoadedPolicy, Worker
from ttm_policy.inputs import PERSON_TOPIC, Inputs, read_instruction
from ttm_policy.lifecycle import ManagedNode
from ttm_policy.memory import MemoryTopic, Recovery, load_snapshot, save_snapshot
from ttm_policy.messages import ResetReply, ns_to_stamp
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import steady_timer
from ttm_policy.qos import COMMAND, listen

Then = Callable[[], str]
WAITING_AFTER_S = 2.0
"""The time after its activation when a policy says what it still waits for."""


class PolicySession:
    """Translates between topics and a `ControlLoop`. It commands nothing until `start`.

    The network and the language model run on the thread of `worker`. Every new command is sent by the thread
    that spins the node; while the network thinks, the `StopThread` repeats the last one, and stops the robot.
    """

    def __init__(
        self, node: ManagedNode, loaded: LoadedPolicy, parameters: PolicyParameters, worker: Worker
    ):
        self._node, self._parameters, self._worker = node, parameters, worker
        self._spec, contract = loaded.runner.spec, loaded.codec.contract
        lockstep = parameters.lockstep
        self._timer: Timer | None = None
        self._waiting: Timer | None = None
        self._stop_thread = StopThread(node)
        self._loop = ControlLoop(loaded.runner, loaded.limits, parameters)
        self.recovery = Recovery(self._loop, parameters, node.get_logger())
        disarmed = self.recovery.restore(contract)
        outlook = self.recovery.outlook(contract)
        self._memory = MemoryTopic(node)
        self._inputs = Inputs(
            node, contract, self._spec, lockstep=lockstep, on_message=self._on_input
        )
        worker.on_idle = self._on_input
        echo = None if lockstep else CommandEcho(node, loaded.codec.types())
        e_stop = EStop(
            rearm=parameters.e_stop_rearm, timeout_s=parameters.e_stop_timeout_s, disarmed=disarmed
        )
        self._e_stop = EStopTopic(self._stop_thread, e_stop, self._on_e_stop)
        self._watchdog = Watchdog(node, self._loop, self._inputs, e_stop=self._e_stop, echo=echo)
        publishers = CommandPublishers(self._stop_thread, loaded, parameters, echo)
        self._commands = CommandMux(node, loaded, parameters, publishers, self._watchdog)
        self._record = TickRecord(
            node, self._loop, self._inputs, self._memory, self._commands, outlook
        )
        self._episode = EpisodeControl(
            node=node,
            instructions=loaded.instructions,
            loop=self._loop,
            worker=worker,
            recovery=self.recovery,
            memory=self._memory,
            commands=self._commands,
            record=self._record,
            lockstep=lockstep,
        )
        self._goals = GoalKeeper(self._episode, parameters, self._spec.control_dt_s)
        GoalInterface(node, self._goals)
        MemoryServices(self._episode, self._goals, self._inputs, parameters.snapshot_path)
        listen(node, String, "instruction", self._on_instruction)
        node.create_subscription(JointState, PERSON_TOPIC, self._on_person_command, COMMAND)
        steady_timer(node, self._spec.control_dt_s / 2, self._watch)
        self._memory.publish(MemoryReport.of(loaded.runner))
        policy = parameters.actor or parameters.checkpoint or "the shipped policy"
        node.get_logger().info(
            f"ready: {policy} for {self._spec.robot}, {self._spec.rate_hz} Hz; after a crash: {outlook}"
        )

    @property
    def active(self) -> bool:
        """Whether the policy ticks."""
        return self._episode.active

    def start(self) -> None:
        """Start the ticks: at the policy's rate, or in lockstep at each complete observation."""
        self._episode.active = self._commands.publishers.is_open = True
        self._loop.resume()
        self._check_e_stop()
        if not self._parameters.lockstep:
            self._timer = self._node.create_timer(self._spec.control_dt_s, self._on_timer)
        self._waiting = steady_timer(self._node, WAITING_AFTER_S, self._say_what_is_missing)
        self._on_input()

    def stop(self) -> None:
        """End the ticks, and then stop the robot: the stop is the last command."""
        self._episode.active = False
        self._goals.abort("the node was deactivated")
        self._commands.release()
        self._commands.publishers.is_open = False
        for timer in filter(None, (self._timer, self._waiting)):
            self._node.destroy_timer(timer)
        self._timer = self._waiting = None
        self._episode.stop()

    def take_parameters(self, parameters: PolicyParameters) -> None:
        """Take those parameters that a running node can change, from the next tick on."""
        self._loop.take_parameters(parameters)
        self._commands.take_limits(parameters.limits)
        self._goals.parameters = parameters

    def flush(self) -> None:
        """Wait until the last commands have arrived."""
        self._commands.publishers.flush()

    def close(self) -> None:
        """End the thread that stops the robot; the node destroys the topics, and has closed the worker."""
        self._stop_thread.close()

    def status(self) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        return self._record.status(active=self.active)

    def _say_what_is_missing(self) -> None:
        """Say once what the robot lacks in order to move."""
        assert self._waiting is not None
        self._waiting.cancel()
        missing = [self._inputs.waits_for()]
        if self._loop.state is LoopState.NO_INSTRUCTION:
            topic = self._node.resolve_topic_name("instruction")
            missing.append(f"no instruction; publish one on {topic}")
        if found := "; ".join(filter(None, missing)):
            self._node.get_logger().warning(f"the robot does not move yet: {found}")

    def _on_timer(self) -> None:
        self._worker.deliver()
        if self._worker.idle:
            self._tick_if_allowed()
        else:  # The network is still at work; the command of the last tick stays in force.
            self._record.statistics.skipped += self._loop.state is LoopState.RUNNING

    def _on_input(self) -> None:
        """In lockstep, tick once for each complete observation; else if a tick waits for a frame."""
        if not self.active or not self._worker.idle:
            return
        if self._parameters.lockstep:
            stamp_ns = self._inputs.complete_stamp_ns()
            if stamp_ns is not None and stamp_ns > self._loop.last_stamp_ns:
                self._tick(stamp_ns, ns_to_stamp(stamp_ns))
        elif self._timer and self._watchdog.waits_for_frame and not self._watchdog.lacks_frame():
            self._timer.reset()
            self._tick_if_allowed()

    def _tick_if_allowed(self) -> None:
        before, now = self._loop.state, self._node.get_clock().now()
        if self._watchdog.allows_tick():
            self._tick(now.nanoseconds, now.to_msg())
        else:
            self._skip_tick(before)

    def _tick(self, now_ns: int, reply_stamp: Time) -> None:
        """Watch the emergency stop, observe, and let the network infer the action."""
        self._check_e_stop()
        before, wall_s = self._loop.state, time.monotonic()
        try:
            self._commands.require_limits()
            observation = self._commands.with_executed(self._inputs.observation())
            accepted = self._loop.accepts(observation, now_ns * 1e-9, wall_s)
        except ObservationError as error:
            self._loop.hold(error, wall_s)
            accepted = False
        if not accepted:
            self._skip_tick(before)
            return
        if self._timer is not None and self._record.statistics.is_late(wall_s):
            self._timer.reset()  # so that the next tick is a whole period away
        pending = PendingTick(observation, wall_s, reply_stamp, self._episode.stops)
        delay_s = self._record.begin(pending, now_ns)
        self._worker.submit(
            partial(self._loop.infer, observation, delay_s), partial(self._finish_tick, pending)
        )

    def _finish_tick(self, pending: PendingTick, future: Future[Inference]) -> None:
        """Limit the action, publish the command, and record both, unless the robot was stopped meanwhile."""
        self._check_e_stop()
        before, late_s = self._loop.state, 0.0
        try:
            inference = future.result()
            if not self._parameters.lockstep:
                now_s = self._node.get_clock().now().nanoseconds * 1e-9
                late_s = self._loop.require_in_time(pending.observation, now_s)
        except ObservationError as error:
            self._inputs.refused_ns = pending.observation.stamp_ns
            self._loop.hold(error, pending.wall_s)
            self._skip_tick(before)
            return
        self._memory.publish(inference.memory)
        stopped = pending.stops != self._episode.stops
        if not stopped or self._parameters.lockstep:  # a simulator in lockstep waits for an answer
            self._act(pending, inference, late_s)
        if stopped:
            self._episode.stop()
        self._episode.report_if_changed(before)

    def _act(self, pending: PendingTick, inference: Inference, late_s: float) -> None:
        observation = pending.observation
        self._commands.publishers.acknowledge_expiry()
        limited = self._loop.finish(inference.action, pending.wall_s, observation, late_s)
        command = self._commands.publish(limited, pending.reply_stamp, observation.values)
        self._commands.publishers.publish_action(inference.action)
        self._episode.delivered = command
        self._record.finish(pending, inference, limited)
        self._worker.submit(partial(self.recovery.executed, command))
        done = self._spec.says_done(inference.action) and not self._commands.person
        self._goals.ticked(done=done)

    def _skip_tick(self, before: LoopState) -> None:
        """Command zero if the state of the loop asks for it."""
        self._record.statistics.pause()
        if self._loop.state in STANDING_STILL:
            self._episode.stop()
        self._episode.report_if_changed(before)

    def _watch(self) -> None:
        """On the steady clock, stop the robot as soon as the policy sees it no more."""
        self._on_e_stop()
        if not self.active or self._parameters.lockstep:
            return
        before = self._loop.state
        self._watchdog.check_between_ticks()
        self._commands.watch()
        if self._loop.state is not before:
            self._skip_tick(before)
        waits_for = self._loop.problem or self._loop.state.value
        self._goals.watch(waits_for if self._loop.state is LoopState.STOPPED else "", waits_for)

    def _on_e_stop(self) -> None:
        """Obey the emergency stop, and go on at once when it lets the robot move again."""
        before = self._loop.state
        self._check_e_stop()
        if before is LoopState.E_STOP and self._loop.state is not before:
            self._on_input()

    def _check_e_stop(self) -> None:
        """Stop the robot if the emergency stop says so, and let the loop go on when it does no more."""
        before = self._loop.state
        self._watchdog.check_e_stop()
        if self._loop.state is before:
            return
        if self._loop.state is LoopState.E_STOP:
            self._episode.stop_if_active()
            self._goals.abort(self._loop.description)
        self._episode.report_if_changed(before)

    def _on_instruction(self, message: String, _: Any) -> None:
        text = read_instruction(self._node, message)
        if text and text != self._episode.instruction:
            self._goals.abort("another instruction has come")
            self._episode.begin(text)

    def _on_person_command(self, message: JointState) -> None:
        if self._commands.accepts(message):
            self._check_e_stop()
            self._commands.drive(message)


class MemoryServices:
    """The services that reset, erase, save and restore the memory.

    They wait for their turn with the network while the node goes on. What each does in the thread of the
    network returns what remains for that of the node, whose result is the answer.
    """

    def __init__(
        self, episode: EpisodeControl, goals: GoalKeeper, inputs: Inputs, snapshot_path: str
    ):
        self._episode, self._goals, self._inputs = episode, goals, inputs
        self._loop, self._path = episode.loop, snapshot_path
        # Reentrant: a service that waits for the network keeps no other callback waiting.
        group = ReentrantCallbackGroup()
        for name, call in (
            ("reset", self._reset),
            ("erase", self._erase),
            ("snapshot", self._snapshot),
            ("restore", self._restore),
        ):
            serve = partial(self._serve, call)
            episode.node.create_service(Trigger, f"~/{name}_memory", serve, callback_group=group)

    async def _serve(
        self, call: Callable[[], Then], _: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        """Answer a service when its turn with the network is over."""
        answered: Answered[None] = Answered()

        def conclude(future: Future[Then]) -> None:
            try:
                response.message, response.success = future.result()(), True
            except UserError as error:
                response.message, response.success = str(error), False
                self._episode.node.get_logger().warning(str(error))
            answered.set_result(None)

        self._episode.worker.submit(partial(self._change, call), conclude)
        await answered
        return response

    def _change(self, call: Callable[[], Then]) -> Then:
        """Run `call` in the thread of the network, and save what it made of the memory."""
        then = call()
        self._episode.recovery.save()
        return then

    def _reset(self) -> Callable[[], str]:
        """Empty the memory under the instruction in force. The answer is a `ResetReply` as JSON."""
        runner = self._loop.runner
        if not runner.instruction:
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        self._episode.instructions.reset(runner, runner.instruction)
        self._loop.for_goal = False
        answered_ns, self._loop.last_stamp_ns = self._loop.last_stamp_ns, 0
        report = MemoryReport.of(runner)

        def then() -> str:
            self._begin_episode(report, "the memory was reset")
            # Accept the old stamps of a restarted simulator, but answer no observation twice.
            if not self._inputs.lockstep or self._inputs.complete_stamp_ns() == answered_ns:
                self._inputs.forget()
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _erase(self) -> Callable[[], str]:
        """Empty the memory alone: instruction, tick count and previous action stay."""
        self._loop.runner.erase_memory()
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self._episode.memory.publish(report)
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _begin_episode(self, report: MemoryReport, why: str) -> None:
        """Let the next tick go on with another memory; a goal ends."""
        self._loop.begin_episode()
        self._episode.memory.publish(report)
        self._episode.change_memory()
        self._goals.abort(why)

    def _snapshot(self) -> Callable[[], str]:
        """Save the memory to the file of the parameter `snapshot_path`."""
        save_snapshot(self._path, self._loop.snapshot())
        tick = self._loop.runner.tick
        return lambda: f"saved tick {tick} to {self._path}"

    def _restore(self) -> Callable[[], str]:
        """Continue from the saved memory, tick count, instruction and previous action."""
        self._loop.load(load_snapshot(self._path))
        self._loop.for_goal = False
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self._episode.instruction = report.instruction
            self._begin_episode(report, "another memory was restored")
            return f"restored tick {report.tick} from {self._path}"

        return then
