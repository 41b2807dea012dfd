"""The simulated kitchen robot behind the same topics as a real one, with /clock.

In lockstep (the default) it publishes an observation, waits for the complete command for it, and steps: however
slow either side is, every episode is the one that `ttm evaluate` sees. Otherwise time runs on, as on a robot.

    python -m ttm_policy.sim_node --ros-args -p task:=pick -p episodes:=20 -p out:=results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float32MultiArray, String

from ttm.policy.errors import UserError
from ttm.sim.evaluation.result import Evaluation, TaskResult
from ttm.sim.evaluation.rollout import Actor, Outcome, run_episode
from ttm.sim.evaluation.video import EpisodeVideo
from ttm_policy.commands import CommandCodec
from ttm_policy.contract import ImageSource, VectorSource, load_contract
from ttm_policy.conversions import (
    MESSAGE_TYPES,
    check_fields,
    frame_to_image,
    ns_to_stamp,
    write_vector,
)
from ttm_policy.quality import LATCHED
from ttm_policy.received_commands import ReceivedCommands
from ttm_policy.settings import SimSettings, declare_settings, read_settings
from ttm_policy.sim_actors import FreeRunningActor, Interrupted, LockstepActor, PolicyIsSilent
from ttm_policy.stop_signals import StopSignals

MakeEnv = Callable[[str], gymnasium.Env[Any, Any]]


class SimNode(Node):
    """Publishes observations under the contract's topics and collects the commands."""

    def __init__(self) -> None:
        super().__init__("sim_node")
        declare_settings(self, SimSettings)
        self.settings = read_settings(self, SimSettings)
        self.time_ns = 1_000_000_000  # not 0, which ROS takes for "no time yet"
        self.memory = np.zeros(0, dtype=np.float32)

    def connect(self, env: gymnasium.Env[Any, Any]) -> None:
        """Create all topics for `env`, which has a `policy_spec`. Raises `UserError` if the contract does not fit."""
        self.spec = env.get_wrapper_attr("policy_spec")
        contract = load_contract(self.settings.contract)
        check_fields(contract)
        contract.check(self.spec, whose="the simulator")
        self._sources: tuple[ImageSource | VectorSource, ...] = (
            *contract.images,
            *contract.vectors,
        )
        self._sensors = {
            s.name: self.create_publisher(MESSAGE_TYPES[s.type], s.topic, LATCHED)
            for s in self._sources
        }
        codec = CommandCodec(contract, self.spec, cmd_vel_stamped=self.settings.cmd_vel_stamped)
        self.commands = ReceivedCommands(self, codec, lockstep=self.settings.lockstep)
        self._clock = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)
        self._episode = self.create_publisher(String, "~/episode", LATCHED)
        self.create_subscription(
            Float32MultiArray, f"{self.settings.policy_node}/memory", self._on_memory, LATCHED
        )

    def _on_memory(self, message: Float32MultiArray) -> None:
        self.memory = np.array(message.data, dtype=np.float32)

    def describe_memory(self) -> str:
        """How often the policy wrote its memory in this episode, and the norm of all of it."""
        writes, norm = (
            (self.memory[0], np.linalg.norm(self.memory[1:])) if self.memory.size else (0, 0)
        )
        return f"memory writes {writes:4.0f}  norm {norm:8.3f}"

    def publish_clock(self, time_ns: int) -> None:
        """Simulated time."""
        self._clock.publish(Clock(clock=ns_to_stamp(time_ns)))

    def publish_observation(self, observation: Mapping[str, np.ndarray]) -> int:
        """All inputs with one stamp, a tick after the last; returns that stamp in nanoseconds."""
        self.time_ns += round(self.spec.control_dt_s * 1e9)
        stamp = ns_to_stamp(self.time_ns)
        self.commands.now_s = self.time_ns * 1e-9
        for source in self._sources:
            if isinstance(source, ImageSource):
                message = frame_to_image(observation[source.name], source, stamp)
            else:
                message = MESSAGE_TYPES[source.type]()
                message.header.stamp = stamp
                write_vector(message, source, observation[source.name])
            self._sensors[source.name].publish(message)
        # Last, since it is what makes the policy's timer tick: the tick then sees this observation, not the one before.
        self.publish_clock(self.time_ns)
        return self.time_ns

    def publish_instruction(self, text: str) -> None:
        """Kept for who joins late."""
        self._instruction.publish(String(data=text))

    def publish_episode(self, info: Mapping[str, Any]) -> None:
        """What is going on, as JSON on `~/episode`."""
        self._episode.publish(String(data=json.dumps(dict(info))))

    def say(self, text: str) -> None:
        """A line for people, at once."""
        print(text, flush=True)


class Episodes:
    """Runs the numbered initial states one after the other, and tells of them."""

    def __init__(self, node: SimNode, env: gymnasium.Env[Any, Any], signals: StopSignals):
        self._node, self._env = node, env
        kind = LockstepActor if node.settings.lockstep else FreeRunningActor
        self.actor: LockstepActor | FreeRunningActor = kind(node, signals)
        self._actions: dict[str, np.ndarray] = {}

    def run(self) -> TaskResult:
        """All of them; writes result.json where that was asked for."""
        settings = self._node.settings
        result = TaskResult(
            settings.task, tuple(self._run_one(index) for index in range(settings.episodes))
        )
        if settings.out:
            self._save(Path(settings.out), result)
        return result

    def _save(self, folder: Path, result: TaskResult) -> None:
        """The format of `ttm evaluate`; and every action that was carried out, so that runs can be compared by bits."""
        settings = self._node.settings
        tasks = {settings.task: result}
        Evaluation("over ROS 2", None, settings.first_seed, settings.max_ticks or None, tasks).save(
            folder
        )
        np.savez(folder / "actions.npz", **self._actions)  # type: ignore[arg-type]

    def _run_one(self, index: int) -> Outcome:
        settings = self._node.settings
        seed, recorder = settings.first_seed + index, _Recorder(self.actor)
        with ExitStack() as stack:
            video = None
            if settings.video and index == 0:
                video = stack.enter_context(
                    EpisodeVideo(Path(settings.video), self._node.spec.rate_hz)
                )
            outcome = run_episode(
                self._env,
                recorder,
                spec=self._node.spec,
                task=settings.task,
                seed=seed,
                max_ticks=settings.max_ticks or None,
                on_tick=lambda observation, info: self._show(observation, info, seed, video),
            )
        self._actions[f"seed_{seed}"] = np.array(recorder.actions, dtype=np.float32)
        ended = "success" if outcome.success else "no success"
        self._node.say(
            f"episode {index + 1} of {settings.episodes}: {ended} after {outcome.ticks} ticks"
        )
        return outcome

    def _show(
        self,
        observation: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
        seed: int,
        video: EpisodeVideo | None,
    ) -> None:
        self._node.publish_episode({**info, "seed": seed})
        if info["tick"] == 0:
            self._node.say(f"initial state {seed}: {info['instruction']}")
        elif info["tick"] % round(self._period_s() * self._node.spec.rate_hz) == 0:
            self._node.say(
                f"  tick {info['tick']:4d}  {info['time_s']:6.1f} s  {self._node.describe_memory()}"
            )
        if video:
            cameras = {camera.name: observation[camera.name] for camera in self._node.spec.cameras}
            video.add(np.asarray(self._env.render()), cameras, info)

    def _period_s(self) -> float:
        """Simulated seconds between two lines about an episode; a long run would drown in them."""
        return 1.0 if self._node.settings.episodes == 1 else 5.0


class _Recorder:
    """An actor that keeps what another one does: `actions`, (A,) each."""

    def __init__(self, actor: Actor):
        self._actor = actor
        self.actions: list[np.ndarray] = []

    def reset(self, instruction: str) -> None:
        self._actor.reset(instruction)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        self.actions.append(self._actor.act(observation))
        return self.actions[-1]


class _OnlyInstruction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every initial state asks for one given instruction."""

    def __init__(self, env: gymnasium.Env[Any, Any], instruction: str):
        super().__init__(env)
        self._instruction = instruction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(
            seed=seed, options={**(options or {}), "instruction": self._instruction}
        )


def make_kitchen(task: str) -> gymnasium.Env[Any, Any]:
    """The simulated Fetch in its kitchen."""
    from ttm.sim.kitchen.env import KitchenEnv

    return KitchenEnv(task)


def _serve(node: SimNode, make_env: MakeEnv) -> int:
    signals, settings = StopSignals(), node.settings
    env = make_env(settings.task)
    if settings.instruction:
        env = _OnlyInstruction(env, settings.instruction)
    try:
        node.connect(env)
        episodes = Episodes(node, env, signals)
        node.say(str(episodes.run()))
        return 0
    except PolicyIsSilent as error:
        env.step(episodes.actor.stop_action())
        print(f"sim_node: {error}; the simulated robot is stopped", file=sys.stderr, flush=True)
        return 1
    except Interrupted:
        node.say("interrupted")
        return 130
    finally:
        env.close()


def main(make_env: MakeEnv = make_kitchen) -> int:
    """Run all episodes. Exit code 0: all ran, 1: the policy fell silent, 2: bad parameters, 130: interrupted."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = SimNode()
    try:
        return _serve(node, make_env)
    except UserError as error:
        print(f"sim_node: error: {error}", file=sys.stderr, flush=True)
        return 2
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
