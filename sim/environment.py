"""What evaluation and collection need of an environment, so that other simulators can be plugged in.

An environment is a `gymnasium.Env` that is registered with Gymnasium and has the members of
`PolicyEnv`. It is named by its Gymnasium ID, before which a module to import may stand, as in
"my_package.my_module:MyEnv-v0". Worker processes get that name and make their own environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np

from ttm.policy.errors import UserError, require_choice
from ttm.policy.spec import PolicySpec
from ttm.sim.condition import KITCHEN, CueName

ALL_TASKS = "all"
"""The value of an option that stands for every task of the environment."""
EACH = "each"
"""The name in `--vary` that stands for each dimension alone."""
WORDS = "words"
"""The name of a variation that gives instructions as `PolicyEnv.paraphrases`, kept for evaluation."""
EXECUTED = "executed_action"
"""The key of `info` that says what the robot did at the last tick; see `PolicyEnv`."""
HELD = "held"
"""The key of `info` that says whether the robot was held at the last tick; see `PolicyEnv`."""
ODOMETRY_FRAME = "odom"
"""The frame that stands still in the world and that the base moves in."""


class Expert(Protocol):
    """A scripted demonstrator, which may look into the simulator."""

    def action(self) -> np.ndarray:
        """Return what it would do in the present state, (A,) float32 in the units of the spec."""


class PolicyEnv(Protocol):
    """The members of an environment that evaluation and collection use.

    `reset` and `step` are Gymnasium's. Beyond what Gymnasium demands of them:

    - `reset(seed=n, options={"task": name})` starts the numbered initial state n of a task. The
      same number gives the same episode for the same actions, whatever was run before it.
    - Observations are dicts with the cameras and the proprioception of `policy_spec`, and may hold more.
      Actions are (A,) float32.
    - `info["instruction"]` says what the episode asks for, and `info["success"]` whether the simulator's
      state is now one that was asked for. `info["time_s"]`, the simulated time, is optional.
    - After a step `info["executed_action"]`, (A,) float32, says what the robot did in place of the given
      action, such as to stand still while it is held. The policy gets it as its previous action, and it
      is recorded. The key is optional, but an environment that ignores actions while it hides a cue needs
      it, or a policy can carry the cue through commands that had no effect. `info["held"]`, optional, says
      whether the action was ignored.
    - `step` returns `terminated` on success, and `truncated` at the time limit. It is called for a few
      more ticks after success, in which demonstrations show `terminate`: it must not reset itself then,
      and `expert()` must still answer.
    - With `render_mode="rgb_array"`, with which `make_env` makes it, `render()` returns a picture for
      videos, (H, W, 3) uint8 RGB.

    These members are optional:

    - `expert()` returns an `Expert` for the episode that `reset` has begun. Without it there are no
      demonstrations to collect.
    - `named_places()` returns where the cameras have what instructions name, whether or not they ask for it
      now, as a mapping of tasks to instructions to cameras to arrays (n, 3): for each of the n things that
      the instruction names, x to the right and y down in portions of the frame, and how far ahead it is in
      m, or NaN out of view. Vision learns from it to find what is named (`ttm study pointing`).
    - `robot_view()` returns a `RobotView`, with which the robot over ROS 2 shows itself to visualisers.
    - `resting_action()` returns the action (A,) that leaves the robot where it is, if that is not zeros.
    - `task_groups`, a mapping of names to tuples of tasks. Commands take the name of a group wherever
      they take that of a task. The group "all" is otherwise every task.
    - `paraphrases`, a mapping of instructions to tuples of other words for them, which no demonstration has.
      `info["instruction"]` is one of them if `WORDS` varies.
    - `variations`, the names of what can vary beside the initial state, such as "light". The options of
      `reset` may then hold `vary`, a dict of such names to levels from 0 (as without) to 3 (most). How
      much varies is drawn from the seed, and leaves what the task itself draws as it is.

    Memory tasks show a cue, hide it for a number of ticks, and then let the robot act. Other tasks have
    none of these keys:

    - The options of `reset` may hold `gap`, the number of ticks between the end of the cue and the
      first tick at which the robot may act, and `cue`, a `CueName`.
    - `info["gap"]` is the gap of the episode. `info["go"]` says whether the robot may act now; whether
      it is held until then is left to the environment.
    - `info["right_choice"]` is what the cue asks for. `info["choice"]` is what the robot has chosen
      so far, or None. Once set, it does not change.
    - `info["choices"]`, the names of all that can be chosen in this initial state, and `right_choice`
      among the options of `reset`, one of them, which changes the cue and nothing else, are optional.
      With them a memory can be exchanged with that of the same initial state under another cue.
    """

    policy_spec: PolicySpec
    """What a policy for this environment sees and commands."""

    @property
    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the tasks, and the instructions that each may give.

        Sentence embeddings of these are computed once for all worker processes, of others when they are met.
        """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]: ...

    def render(self) -> np.ndarray | None: ...

    def close(self) -> None: ...


Env = gymnasium.Env[Any, Any]
"""An environment with the members of `PolicyEnv`, perhaps within wrappers."""


def make_env(name: str = KITCHEN, **options: Any) -> Env:
    """Return the environment of that Gymnasium ID, made with `options`.

    Raises `UserError` if there is no such environment, or if it lacks a member of `PolicyEnv`.
    """
    try:
        env = gymnasium.make(name, render_mode="rgb_array", **options)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        example = "a Gymnasium ID, perhaps with its module, such as my_package:MyEnv-v0"
        raise UserError(f"there is no environment '{name}' ({error}); give {example}") from error
    for member in ("policy_spec", "tasks"):
        if not env.has_wrapper_attr(member):
            env.close()
            raise UserError(f"environment '{name}' has no {member}; see ttm.sim.PolicyEnv")
    return env


def spec_of(env: Env) -> PolicySpec:
    """Return what a policy for the environment sees and commands."""
    return env.get_wrapper_attr("policy_spec")


def tasks_of(env: Env) -> dict[str, tuple[str, ...]]:
    """Return the names of the environment's tasks, and the instructions that each may give."""
    return {name: tuple(texts) for name, texts in env.get_wrapper_attr("tasks").items()}


def expert_of(env: Env) -> Expert:
    """Return the expert for the episode that was begun. The environment must have one."""
    return env.get_wrapper_attr("expert")()


def resting_action_of(env: Env) -> np.ndarray:
    """Return the action (A,) float32 that leaves the robot where it is now: zeros if `env` has none."""
    if not env.has_wrapper_attr("resting_action"):
        return np.zeros(spec_of(env).action_size, np.float32)
    return np.asarray(env.get_wrapper_attr("resting_action")(), np.float32)


def reset_options(
    task: str,
    gap: int | None = None,
    cue: CueName = "hidden",
    right_choice: str | None = None,
    vary: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the options of `reset` for a task. A gap or a right choice of None is left to the task."""
    given: dict[str, Any] = {"gap": gap, "cue": None if cue == "hidden" else cue}
    given |= {"right_choice": right_choice, "vary": vary or None}
    return {"task": task, **{name: value for name, value in given.items() if value is not None}}


@dataclass(frozen=True)
class EnvFacts:
    """What an environment says of itself."""

    name: str
    spec: PolicySpec
    tasks: Mapping[str, tuple[str, ...]]
    has_expert: bool
    task_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variations: tuple[str, ...] = ()
    paraphrases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def choose(self, tasks: str | Sequence[str]) -> list[str]:
        """Return the tasks that the name of a task or of a group, several of them, or "all" stand for.

        No task is returned twice. Raises `UserError` if there is no such task or group.
        """
        groups = {ALL_TASKS: tuple(self.tasks), **self.task_groups}
        names = [tasks] if isinstance(tasks, str) else list(tasks)
        for name in names:
            require_choice("task", name, dict.fromkeys([*self.tasks, *groups]))
        return list(dict.fromkeys(task for name in names for task in groups.get(name, (name,))))

    def variants(self, texts: Sequence[str]) -> list[str]:
        """Return the variations that the texts of `--vary` ask for, such as "camera=1 light=2".

        It is one, or with "each=LEVEL" first what the other texts ask for, and then the same with each
        dimension alone at that level. A level alone is for all but `WORDS`. Raises `UserError` if the
        environment does not know a dimension.
        """
        common, each = dict[str, int](), 0
        for text in texts:
            name, _, level = text.rpartition("=")
            if not self.variations:
                raise UserError(
                    f"--vary {text}: environment '{self.name}' has no member variations"
                )
            if name:
                require_choice(f"--vary {text}: the name", name, (*self.variations, EACH))
            require_choice(f"--vary {text}: the level", level, "0123")
            if name == EACH:
                each = int(level)
            else:
                those = [name] if name else [n for n in self.variations if n != WORDS]
                common |= dict.fromkeys(those, int(level))
        found = [common] + [common | {name: each} for name in self.variations if each]
        ordered = [[(n, levels[n]) for n in self.variations if levels.get(n)] for levels in found]
        words = (" ".join(f"{name}={level}" for name, level in pairs) for pairs in ordered)
        return list(dict.fromkeys(words))

    def variant(self, texts: Sequence[str]) -> str:
        """Return the one variation that the texts ask for. Raises `UserError` also if it is several."""
        varied, *others = self.variants(texts)
        if others:
            raise UserError(
                f"--vary {' '.join(texts)}: {EACH} is for ttm evaluate; name dimensions"
            )
        return varied

    def require_expert(self) -> None:
        """Raise `UserError` if the environment has no expert."""
        if not self.has_expert:
            raise UserError(f"environment '{self.name}' has no expert; give it a method expert()")


def inspect_env(name: str) -> EnvFacts:
    """Make the environment of that Gymnasium ID, and return what it says of itself."""
    with closing(make_env(name)) as env:

        def optional(member: str) -> Any:
            return env.get_wrapper_attr(member) if env.has_wrapper_attr(member) else {}

        groups = {group: tuple(tasks) for group, tasks in optional("task_groups").items()}
        has_expert, variations = env.has_wrapper_attr("expert"), tuple(optional("variations"))
        facts = name, spec_of(env), tasks_of(env), has_expert, groups, variations
        return EnvFacts(*facts, optional("paraphrases"))


def choose_task(
    env: str,
    tasks: Mapping[str, tuple[str, ...]],
    named: str,
    instruction: str,
    label: str = "task",
) -> str:
    """Return the task that is `named`, else the one that gives the instruction, else the first one.

    env: the name of the environment; tasks: those that it has, with the instructions of each. Raises
    `UserError` if there is no such task or instruction, or if the named task does not give it.
    """
    if named:
        require_choice(label, named, tasks)
    candidates = [named] if named else list(tasks)
    if not instruction:
        return candidates[0]
    for task in candidates:
        if instruction in tasks[task]:
            return task
    known = ", ".join(f"'{text}'" for task in candidates for text in tasks[task])
    whose = f"task '{named}' of {env}" if named else env
    raise UserError(f"{whose} does not know the instruction '{instruction}'; it knows: {known}")


def require_memory_tasks(name: str, tasks: Sequence[str], option: str | None) -> None:
    """Raise `UserError` unless all `tasks` of the environment `name` are memory tasks.

    option: what the user gave that only memory tasks understand, for the message; None for nothing.
    """
    if option is None:
        return
    with closing(make_env(name)) as env:
        for task in tasks:
            _, info = env.reset(seed=0, options=reset_options(task))
            if "go" not in info:
                raise UserError(f"{option} needs a memory task, and '{task}' is none; name others")


def same_environment(first: str, second: str) -> bool:
    """Return whether two names, with or without a module, mean the same environment."""
    return first.rpartition(":")[2] == second.rpartition(":")[2]


def require_same_environment(first: str, second: str) -> None:
    """Raise `UserError` if evaluations of the two environments cannot be compared."""
    if not same_environment(first, second):
        both = f"{first} and {second}"
        raise UserError(f"only evaluations of the same environment can be compared, not {both}")


@dataclass(frozen=True)
class Pose:
    """Where a frame is: a position (3,) and a quaternion (4,)."""

    position_m: np.ndarray
    quaternion_xyzw: np.ndarray


@dataclass(frozen=True)
class Frame:
    """A frame of the robot, the frame that it is attached to, and whether it moves in that."""

    name: str
    parent: str
    moves: bool


class RobotView(Protocol):
    """What visualisers need of the robot of the present episode. After a reset there is another one."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All frames. The first is the base, whose parent is `ODOMETRY_FRAME`."""

    @property
    def camera_fov_rad(self) -> Mapping[str, float]:
        """The vertical angle of view of each camera of the policy's spec, whose frame is `camera_frame`."""

    def description(self) -> str:
        """Return the robot as URDF. Its links are named as the frames."""

    def poses(self) -> dict[str, Pose]:
        """Return where each frame is in its parent now."""


def camera_frame(camera: str) -> str:
    """Return the name of a camera's optical frame: x to the right, y down, z forward (REP 103)."""
    return f"{camera}_optical_frame"


def robot_view_of(env: Env) -> RobotView | None:
    """Return the view of the present episode's robot, or None if the environment has none."""
    return env.get_wrapper_attr("robot_view")() if env.has_wrapper_attr("robot_view") else None
