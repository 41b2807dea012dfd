"""What a simulated robot goes through: numbered episodes of a policy, or scenes that a person drives.

`ttm evaluate` and `sim_node` run the same loop over an episode; only the actor differs, which here gets its
actions over ROS 2 from a policy in another process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.client import Client
from rclpy.clock import Clock
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from ttm.policy.errors import require_instruction
from ttm.sim.environment import Env, reset_options, resting_action_of, tasks_of
from ttm.sim.results import Evaluation, TaskResult
from ttm.sim.rollout import Actor, Outcome, delayed, forget_commands, run_episode, step
from ttm.sim.video import EpisodeVideo
from ttm_policy.contract import ImageSource
from ttm_policy.inputs import read_json
from ttm_policy.messages import ResetReply, frame_to_image, read_reset_reply
from ttm_policy.programs import StopSignals
from ttm_policy.qos import COMMAND, LATCHED, listen
from ttm_policy.recording.recorder import SCENE, promise
from ttm_policy.recording.session import State
from ttm_policy.simulator.robot import Observation, RobotTopics, SimNode, Vector

LEAST_WAIT = 0.25
"""The portion of a period that is always left for messages."""
CLOCK_PERIOD_S = 0.02
"""Wall time between two clock messages while time runs on, in seconds."""
ANSWER_TIMEOUT_S = 5.0
"""Wall time after which a service is called again, in seconds. It doubles each time, up to the longest: a
policy on a busy computer may take longer for every answer."""
LONGEST_ANSWER_S = 80.0
OVERVIEW = ImageSource("overview", "~/overview", "sensor_msgs/Image")
"""The scene from outside, for people. No policy sees it."""


class PolicyIsSilent(RuntimeError):
    """There is no policy, or it gives no commands."""


class Interrupted(RuntimeError):
    """A signal asked the process to end."""


class Pace:
    """Gives the ends of control periods of `period_s` on the wall clock, in seconds.

    The periods follow one another without gaps, so that what simulating and rendering take comes off
    the waiting time. A simulation that takes longer falls behind: in each period at least a quarter is
    left for the commands to arrive, and what is lost is not made up for.
    """

    def __init__(self, period_s: float):
        self._period_s = period_s
        self._end_s: float | None = None

    def next_end(self, now_s: float) -> float:
        """Begin the next period, and return when it ends. now_s: the wall time."""
        end_s = (now_s if self._end_s is None else self._end_s) + self._period_s
        self._end_s = max(end_s, now_s + LEAST_WAIT * self._period_s)
        return self._end_s

    def restart(self) -> None:
        """Begin without a delay at the next period."""
        self._end_s = None


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
        absent = f"no service {name}; is policy_node configured?"
        self._wait(self._reset.service_is_ready, limit_s, absent)
        wanted = ResetReply(instruction, tick=0)
        problem = f"{name} does not confirm the instruction '{instruction}'"
        # The call is repeated if the instruction arrives after it.
        self._wait(lambda: self._call(self._reset) == wanted, limit_s, problem)

    def executed(self, action: Vector) -> None:
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

    def act(self, observation: Observation) -> Vector:
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

    def act(self, observation: Observation) -> Vector:
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

    def _publish_clock(self, begin_ns: int, elapsed_s: float) -> None:
        """elapsed_s: wall time since the observation. Simulated time waits for the next one."""
        tick_s = elapsed_s * self._rate
        if self._simulated:
            tick_s = min(tick_s, self.node.spec.control_dt_s)
        self.node.publish_clock(begin_ns + round(tick_s * 1e9))


class PersonActor(FreeRunningActor):
    """Carries out the newest commands, whoever sends them, and needs no policy.

    Its time is simulated at every rate, so that recordings have an even cadence where simulating is slow.
    """

    def __init__(self, node: SimNode, signals: StopSignals):
        super().__init__(node, signals)
        self._simulated = True

    def reset(self, instruction: str) -> None:
        """Begin a scene. If a policy is there, it begins with an empty memory."""
        if self._reset.service_is_ready():
            try:
                super().reset(instruction)
                return
            except PolicyIsSilent as error:
                self.node.say(str(error))
        self._executed = np.zeros(self.node.spec.action_size, np.float32)
        self.node.publish_instruction(instruction)
        self._pace.restart()


class Episodes:
    """Runs the numbered initial states that the parameters of `node` ask for."""

    def __init__(self, node: SimNode, env: Env, signals: StopSignals):
        self._node, self._env = node, env
        kind = LockstepActor if node.parameters.lockstep else FreeRunningActor
        self.actor: LockstepActor | FreeRunningActor = kind(node, signals)
        self._actions: dict[str, Vector] = {}
        self._late: Actor = self.actor
        self._to_erase = False

    def run(self) -> TaskResult:
        """Run all episodes. Write result.json and actions.npz if the parameters ask for it."""
        parameters = self._node.parameters
        outcomes = tuple(self._run_one(index) for index in range(parameters.episodes))
        result = TaskResult(parameters.task, outcomes)
        if parameters.out:  # as `ttm evaluate` does, and all actions, to compare runs bit by bit
            evaluation = Evaluation(
                checkpoint="over ROS 2",
                sha256=None,
                first_seed=parameters.first_seed,
                max_ticks=parameters.max_ticks or None,
                tasks={parameters.task: result},
                environment=parameters.env,
                condition=parameters.condition,
            )
            evaluation.save(Path(parameters.out))
            np.savez(Path(parameters.out) / "actions.npz", **self._actions)  # type: ignore[arg-type]
        return result

    def _run_one(self, index: int) -> Outcome:
        parameters = self._node.parameters
        seed = parameters.first_seed + index
        self._late = delayed(self.actor, self._env, parameters.command_delay_s)
        recorder = _RecordingActor(self._late)
        self._to_erase = parameters.probe == "erase"
        film: AbstractContextManager[EpisodeVideo | None] = nullcontext()
        if parameters.video and index == 0:
            film = EpisodeVideo(Path(parameters.video), self._node.spec.rate_hz)
        with film as video:
            outcome = run_episode(
                self._env,
                recorder,
                spec=self._node.spec,
                task=parameters.task,
                seed=seed,
                max_ticks=parameters.max_ticks or None,
                on_tick=lambda seen, info: self._on_tick(seen, {**info, "seed": seed}, video),
                gap=parameters.condition.gap,
                vary=parameters.condition.levels,
            )
        self._actions[f"seed_{seed}"] = np.array(recorder.actions, dtype=np.float32)
        ended = "success" if outcome.success else "no success"
        number = f"episode {index + 1} of {parameters.episodes}"
        self._node.say(f"{number}: {ended} after {outcome.ticks} ticks")
        return outcome

    def _on_tick(
        self, observation: Observation, info: Mapping[str, Any], video: EpisodeVideo | None
    ) -> None:
        """Show the tick, and do to the memory what the probe says, before the policy acts."""
        if info["tick"] == 0:
            self._node.commands.resting = resting_action_of(self._env)
        self._show(info)
        if video:
            cameras = {camera.name: observation[camera.name] for camera in self._node.spec.cameras}
            video.add(np.asarray(self._env.render()), cameras)
        if self._to_erase and info.get("go"):
            self.actor.erase_memory()
            forget_commands(self._late)
            self._to_erase = False

    def _show(self, info: Mapping[str, Any]) -> None:
        """Publish how the episode stands, and print a line now and then."""
        self._node.publish_episode(info)
        if info["tick"] == 0:
            self._node.say(f"initial state {info['seed']}: {info['instruction']}")
            return
        period_s = 1.0 if self._node.parameters.episodes == 1 else 5.0  # of simulated time
        if info["tick"] % round(period_s * self._node.spec.rate_hz) == 0:
            tick, memory = f"  tick {info['tick']:4d}", self._node.describe_memory()
            self._node.say(f"{tick}  {info['time_s']:6.1f} s  {memory}")


class _RecordingActor:
    """Keeps the actions (A,) of another actor in `actions`."""

    def __init__(self, actor: Actor):
        self._actor = actor
        self.actions: list[Vector] = []

    def reset(self, instruction: str) -> None:
        self._actor.reset(instruction)

    def act(self, observation: Observation) -> Vector:
        self.actions.append(self._actor.act(observation))
        return self.actions[-1]

    def executed(self, action: Vector) -> None:
        self._actor.executed(action)


class Scenes:
    """Scenes that a person drives, one after the other, until the process ends.

    A scene ends when an episode was recorded: then comes the next one, or the same one from its start if the
    episode was not kept. The services `~/next_scene` and `~/same_scene` end it as well, and a text on the
    topic `~/scene` begins a scene that asks for it. `~/instructions` lists the texts.
    """

    def __init__(self, node: SimNode, env: Env, signals: StopSignals):
        self._node, self._env = node, env
        parameters = node.parameters
        self._actor = delayed(PersonActor(node, signals), env, parameters.command_delay_s)
        self._seed, self._tasks = parameters.first_seed, tasks_of(env)
        self._task, self._wanted = parameters.task, parameters.instruction
        self._over, self._scene = False, -1
        self._recorder: tuple[str, int] | None = None
        self._clock = Clock()
        if env.has_wrapper_attr("render_px"):
            env.set_wrapper_attr("render_px", 360)  # must not slow down the ticks
        self._overview = node.create_publisher(Image, OVERVIEW.topic, LATCHED)
        known = [text for texts in self._tasks.values() for text in texts]
        self._known = node.create_publisher(String, "~/instructions", LATCHED)
        self._known.publish(String(data=json.dumps(list(dict.fromkeys(known)))))
        node.create_service(Trigger, "~/next_scene", partial(self._serve, 1))
        node.create_service(Trigger, "~/same_scene", partial(self._serve, 0))
        node.create_subscription(String, "~/scene", self._on_scene, COMMAND)
        status = f"{parameters.recorder}/status"
        node.create_subscription(String, status, self._on_recorder, LATCHED)

    def run(self) -> None:
        """Run scenes until a signal, which raises `Interrupted`."""
        while True:
            self._run_scene()

    def _run_scene(self) -> None:
        options = reset_options(self._task, vary=self._node.parameters.condition.levels)
        if self._wanted:
            options["instruction"] = self._wanted
        observation, info = self._env.reset(seed=self._seed, options=options)
        self._over, self._node.commands.resting = False, resting_action_of(self._env)
        self._scene += 1
        self._node.say(f"initial state {self._seed}: {info['instruction']}")
        self._actor.reset(info["instruction"])
        for tick in count():
            self._show({"tick": tick, **info, "seed": self._seed, SCENE: self._scene})
            action = self._actor.act(observation)
            if self._over:
                return
            observation, info, _ = step(self._env, self._actor, action)

    def _show(self, info: Mapping[str, Any]) -> None:
        self._node.publish_episode(info)
        if self._overview.get_subscription_count():
            stamp = self._clock.now().to_msg()
            frame = np.asarray(self._env.render())
            self._overview.publish(frame_to_image(frame, OVERVIEW, stamp))

    def _on_scene(self, message: String) -> None:
        task = next((name for name, texts in self._tasks.items() if message.data in texts), None)
        if task is not None:
            self._task, self._wanted, self._over = task, message.data, True

    def _on_recorder(self, message: String) -> None:
        """Begin another scene after an episode. States may be missed, but no change of the count."""
        topic = f"{self._node.parameters.recorder}/status"
        status = read_json(self._node, topic, message, {"state": str, "episodes": int})
        if status is None:
            return
        state, kept = status["state"], status["episodes"]
        before, self._recorder = self._recorder, (state, kept)
        if before is None:
            return
        if kept > before[1]:
            self._seed, self._over = self._seed + 1, True
        elif state == State.READY.value != before[0]:
            self._over = True

    def _serve(self, step: int, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin another scene. step: 1 for the next one, 0 for the same one."""
        self._seed += step
        self._over = response.success = True
        response.message = promise(self._scene + 1, self._seed)
        return response
