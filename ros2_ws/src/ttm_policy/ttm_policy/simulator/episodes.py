"""What a simulated robot goes through: numbered episodes of a policy, or scenes that a person drives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.clock import Clock
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.sim.environment import Env, reset_options, resting_action_of, tasks_of
from ttm.sim.results import Evaluation, TaskResult
from ttm.sim.rollout import Actor, Outcome, delayed, forget_commands, run_episode, step
from ttm.sim.video import EpisodeVideo
from ttm_policy.contract import ImageSource
from ttm_policy.inputs import read_json
from ttm_policy.messages import frame_to_image
from ttm_policy.programs import StopSignals
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.recording.recorder import SCENE, promise
from ttm_policy.recording.session import State
from ttm_policy.simulator.actors import FreeRunningActor, LockstepActor, PolicyIsSilent
from ttm_policy.simulator.robot import SimNode


class Episodes:
    """Runs the numbered initial states that the parameters of `node` ask for."""

    def __init__(self, node: SimNode, env: Env, signals: StopSignals):
        self._node, self._env = node, env
        kind = LockstepActor if node.parameters.lockstep else FreeRunningActor
        self.actor: LockstepActor | FreeRunningActor = kind(node, signals)
        self._actions: dict[str, np.ndarray] = {}
        self._late: Actor = self.actor
        self._to_erase = False

    def run(self) -> TaskResult:
        """Run all episodes. Write result.json and actions.npz if the parameters ask for it."""
        parameters = self._node.parameters
        result = TaskResult(
            parameters.task, tuple(self._run_one(index) for index in range(parameters.episodes))
        )
        if parameters.out:
            self._save(Path(parameters.out), result)
        return result

    def _save(self, folder: Path, result: TaskResult) -> None:
        """Write the result as `ttm evaluate` does, and all actions, to compare runs bit by bit."""
        parameters = self._node.parameters
        Evaluation(
            checkpoint="over ROS 2",
            sha256=None,
            first_seed=parameters.first_seed,
            max_ticks=parameters.max_ticks or None,
            tasks={parameters.task: result},
            environment=parameters.env,
            condition=parameters.condition,
        ).save(folder)
        np.savez(folder / "actions.npz", **self._actions)  # type: ignore[arg-type]

    def _run_one(self, index: int) -> Outcome:
        parameters = self._node.parameters
        seed = parameters.first_seed + index
        self._late = delayed(self.actor, self._env, parameters.command_delay_s)
        recorder = _RecordingActor(self._late)
        self._to_erase = parameters.probe == "erase"
        with ExitStack() as stack:
            video = None
            if parameters.video and index == 0:
                film = EpisodeVideo(Path(parameters.video), self._node.spec.rate_hz)
                video = stack.enter_context(film)
            outcome = run_episode(
                self._env,
                recorder,
                spec=self._node.spec,
                task=parameters.task,
                seed=seed,
                max_ticks=parameters.max_ticks or None,
                on_tick=lambda observation, info: self._on_tick(observation, info, seed, video),
                gap=parameters.condition.gap,
            )
        self._actions[f"seed_{seed}"] = np.array(recorder.actions, dtype=np.float32)
        ended = "success" if outcome.success else "no success"
        speed = ""
        if isinstance(self.actor, FreeRunningActor):
            speed = f", {self.actor.speed():.3f} simulated seconds per second"
        self._node.say(
            f"episode {index + 1} of {parameters.episodes}: {ended} after {outcome.ticks} ticks{speed}"
        )
        return outcome

    def _on_tick(
        self,
        observation: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
        seed: int,
        video: EpisodeVideo | None,
    ) -> None:
        """Show the tick, and do to the memory what the probe says, before the policy acts."""
        if info["tick"] == 0:
            self._node.commands.resting = resting_action_of(self._env)
        self._show(info, seed)
        if video:
            cameras = {camera.name: observation[camera.name] for camera in self._node.spec.cameras}
            video.add(np.asarray(self._env.render()), cameras, info)
        if self._to_erase and info.get("go"):
            self.actor.erase_memory()
            forget_commands(self._late)
            self._to_erase = False

    def _show(self, info: Mapping[str, Any], seed: int) -> None:
        """Publish how the episode stands, and print a line now and then."""
        self._node.publish_episode({**info, "seed": seed})
        if info["tick"] == 0:
            self._node.say(f"initial state {seed}: {info['instruction']}")
            return
        period_s = 1.0 if self._node.parameters.episodes == 1 else 5.0  # of simulated time
        if info["tick"] % round(period_s * self._node.spec.rate_hz) == 0:
            self._node.say(
                f"  tick {info['tick']:4d}  {info['time_s']:6.1f} s  {self._node.describe_memory()}"
            )


class _RecordingActor:
    """Keeps the actions (A,) of another actor in `actions`."""

    def __init__(self, actor: Actor):
        self._actor = actor
        self.actions: list[np.ndarray] = []

    def reset(self, instruction: str) -> None:
        self._actor.reset(instruction)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        self.actions.append(self._actor.act(observation))
        return self.actions[-1]

    def executed(self, action: np.ndarray) -> None:
        self._actor.executed(action)


OVERVIEW = ImageSource("overview", "~/overview", "sensor_msgs/Image")
"""The scene from outside, for people. No policy sees it."""


class PersonActor(FreeRunningActor):
    """Carries out the newest commands, whoever sends them, and needs no policy.

    Stamps and `/clock` are simulated time at every rate, so that what is recorded has an even cadence
    even where simulating takes longer than a tick.
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
        options = reset_options(self._task)
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
