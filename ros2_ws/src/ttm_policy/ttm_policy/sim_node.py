"""A simulated robot behind the same topics as a real one, with /clock.

Time runs on, as on a robot. In lockstep the node instead publishes an observation, waits for the
complete command for it, and steps: however slow either process is, every episode equals the one that
`ttm evaluate` runs. With `driver:=person` it waits for no policy, and changes the scene when it is asked.

    ros2 run ttm_policy sim_node --ros-args -p instruction:="open the top drawer"
    python -m ttm_policy sim_node --ros-args -p task:=pick            (the same without a ROS install)
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

import gymnasium

from ttm.sim.environment import choose_task, inspect_env, make_env, require_memory_tasks, tasks_of
from ttm_policy.programs import StopSignals, run_with_ros
from ttm_policy.simulator.episodes import Episodes, Interrupted, PolicyIsSilent, Scenes
from ttm_policy.simulator.robot import SimNode

END_WITHIN_S = 8.0
"""After a signal the node ends the scene, and a video, within this time, or is ended."""


class _OnlyInstruction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Restricts the initial states to those that ask for one instruction."""

    def __init__(self, env: gymnasium.Env[Any, Any], instruction: str):
        super().__init__(env)
        self._instruction = instruction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(
            seed=seed, options={**(options or {}), "instruction": self._instruction}
        )


def _run() -> int:
    with ExitStack() as stack:
        node = SimNode()
        stack.callback(node.destroy_node)
        signals, given = StopSignals(END_WITHIN_S), node.parameters
        env = make_env(given.env)
        stack.callback(env.close)
        task = choose_task(given.env, tasks_of(env), given.task, given.instruction)
        vary = inspect_env(given.env).variant(given.vary.split()) if given.vary else ""
        node.parameters = given = replace(given, task=task, vary=vary)
        if option := given.condition.needs_memory_task:
            require_memory_tasks(given.env, [task], option)
        person = given.driver == "person"
        driven = (
            env if person or not given.instruction else _OnlyInstruction(env, given.instruction)
        )
        try:
            node.connect(driven)
            if person:
                Scenes(node, driven, signals).run()
            else:
                node.say(str(Episodes(node, driven, signals).run()))
            return 0
        except PolicyIsSilent as error:
            driven.step(node.commands.standing_still())
            print(f"sim_node: {error}; the simulated robot is stopped", file=sys.stderr, flush=True)
            return 1
        except Interrupted:
            node.say("interrupted")
            return 130


def main() -> NoReturn:
    """Run all episodes. The exit code is 1 if the policy gave no commands, and 130 after a signal."""
    run_with_ros("sim_node", _run)
