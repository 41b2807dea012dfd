"""What evaluation and collection need of an environment, so that other simulators can be plugged in.

An environment is a `gymnasium.Env` that is registered with Gymnasium and has the members of
`PolicyEnv`. It is named by its Gymnasium ID, before which a module to import may stand, as in
"my_package.my_module:MyEnv-v0". Worker processes get that name and make their own environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np

from ttm.policy.checks import require_choice
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

KITCHEN = "ttm/Kitchen-v0"
"""The simulated Fetch in its kitchen, which every command takes unless told otherwise."""
FIRST_DEMONSTRATION_SEED = 1_000_000
"""The first initial state that demonstrations are recorded from. Evaluation takes 0, 1, 2, …, so that
no evaluated state was ever trained on."""
ALL_TASKS = "all"
"""The value of an option that stands for every task of the environment."""


class Expert(Protocol):
    """A scripted demonstrator, which may look into the simulator."""

    def action(self) -> np.ndarray:
        """Return what it would do in the present state, (A,) float32 in the units of the spec."""


class PolicyEnv(Protocol):
    """The members of an environment that evaluation and collection use.

    `reset` and `step` are Gymnasium's. Beyond what Gymnasium demands of them:

    - `reset(seed=n, options={"task": name})` starts the numbered initial state n of a task. The
      same number gives the same episode for the same actions, whatever was run before it.
    - Observations are dicts with the cameras and the proprioception of `policy_spec`. They may hold
      more. Actions are (A,) float32.
    - `info["instruction"]` says what the episode asks for, and `info["success"]` whether the
      simulator's state is now one that was asked for. `info["time_s"]`, the simulated time, is
      optional: without it, time is counted in ticks of `policy_spec.control_dt_s`.
    - `step` returns `terminated` on success, and `truncated` at the time limit. It may be called for
      a few more ticks after success, in which demonstrations show `terminate`.

    An environment may also have a method `expert()`, which returns an `Expert` for the episode
    that `reset` has begun. Without it there are no demonstrations to collect. With `render_mode="rgb_array"`,
    with which `make_env` makes it, `render()` returns a picture for videos, (H, W, 3) uint8 RGB.
    """

    policy_spec: PolicySpec
    """What a policy for this environment sees and commands."""

    @property
    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the tasks, and the instructions that each may give.

        Sentence embeddings of these instructions are computed once for all worker processes.
        Others are computed when they are met.
        """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin an episode."""

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Execute one action for one tick."""

    def render(self) -> np.ndarray | None:
        """Return a picture of the scene for people."""

    def close(self) -> None:
        """Free what the environment holds."""


Env = gymnasium.Env[Any, Any]
"""An environment with the members of `PolicyEnv`, perhaps within wrappers."""


def make_env(name: str = KITCHEN, **options: Any) -> Env:
    """Return the environment of that Gymnasium ID, made with `options`.

    Raises `UserError` if there is no such environment, or if it lacks a member of `PolicyEnv`.
    """
    try:
        env = gymnasium.make(name, render_mode="rgb_array", **options)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(
            f"there is no environment '{name}' ({error}); give a Gymnasium ID, with the module that "
            "registers it if need be, such as my_package:MyEnv-v0"
        ) from error
    for member in ("policy_spec", "tasks"):
        if not env.has_wrapper_attr(member):
            env.close()
            raise UserError(
                f"environment '{name}' has no {member}; see ttm.sim.environment.PolicyEnv"
            )
    return env


def spec_of(env: Env) -> PolicySpec:
    """Return what a policy for the environment sees and commands."""
    spec: PolicySpec = env.get_wrapper_attr("policy_spec")
    return spec


def tasks_of(env: Env) -> dict[str, tuple[str, ...]]:
    """Return the names of the environment's tasks, and the instructions that each may give."""
    return {name: tuple(texts) for name, texts in env.get_wrapper_attr("tasks").items()}


def expert_of(env: Env) -> Expert:
    """Return the expert for the episode that was begun. The environment must have one."""
    expert: Expert = env.get_wrapper_attr("expert")()
    return expert


@dataclass(frozen=True)
class EnvFacts:
    """What an environment says of itself."""

    name: str
    """The Gymnasium ID that it was made with."""
    spec: PolicySpec
    tasks: Mapping[str, tuple[str, ...]]
    """The names of the tasks, and the instructions that each may give."""
    has_expert: bool

    def choose(self, tasks: str | Sequence[str]) -> list[str]:
        """Return the names of the tasks that `tasks` stands for: one, several, or "all".

        Raises `UserError` if the environment has no such task.
        """
        if tasks == ALL_TASKS:
            return list(self.tasks)
        names = [tasks] if isinstance(tasks, str) else list(tasks)
        for name in names:
            require_choice("task", name, [*self.tasks, ALL_TASKS])
        return names

    def require_expert(self) -> None:
        """Raise `UserError` if the environment has no expert."""
        if not self.has_expert:
            raise UserError(
                f"environment '{self.name}' has no expert, so that nothing can demonstrate its tasks; "
                "give it a method expert(), see ttm.sim.environment.PolicyEnv"
            )


def inspect_env(name: str) -> EnvFacts:
    """Make the environment of that Gymnasium ID, and return what it says of itself."""
    with closing(make_env(name)) as env:
        return EnvFacts(name, spec_of(env), tasks_of(env), env.has_wrapper_attr("expert"))


def same_environment(first: str, second: str) -> bool:
    """Return whether two names, with or without a module to import, mean the same environment."""
    return first.rpartition(":")[2] == second.rpartition(":")[2]


def require_same_environment(first: str, second: str) -> None:
    """Raise `UserError` if evaluations of the two environments cannot be compared."""
    if not same_environment(first, second):
        raise UserError(
            f"one evaluation is of the environment {first}, the other of {second}; "
            "only evaluations of the same environment can be compared"
        )
