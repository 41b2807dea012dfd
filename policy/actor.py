"""What drives a robot or an environment: a policy of any maker, behind one interface.

`Runner` is what the evaluator and the ROS node drive. `PolicyRunner` is that of a checkpoint, `ActorRunner`
that of any object with `reset` and `act`, and `RemoteRunner` that of a policy on another machine.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ttm.policy.errors import MalformedObservation, UserError, first_line
from ttm.policy.snapshot import array_to_text, require_restorable, text_to_array
from ttm.policy.spec import Action, Array, Observation, PolicySpec

STATE = "state."
"""The prefix of what the policy remembers, in a snapshot."""


class Actor(Protocol):
    """The least that a policy must offer.

    An attribute `spec`, a `PolicySpec`, says what it was made for; without it, the spec of the environment or
    the robot counts. `snapshot()`, which returns all that it remembers as a dict of arrays, and
    `restore(snapshot)` are optional. With them its memory can be probed, saved and restored.
    `executed(action)`, too, is optional: it hears what the robot did, (A,), in place of the last action.
    """

    def reset(self, instruction: str) -> None:
        """Begin an episode and forget the last one."""

    def act(self, observation: Observation) -> npt.ArrayLike:
        """Return this tick's command, (A,), in the units of the spec. It is called once a tick.

        Binary values count as the higher of their two commands from half-way between them on.
        """


class Runner(ABC):
    """A policy with what it remembers, one episode at a time."""

    longest_delay_s = 0.0
    """The longest delay of a command that the policy takes into account, in seconds."""
    remembers = True
    """Whether `snapshot` and `restore` can be called."""
    instruction: str | None = None
    tick = 0
    """The number of ticks, and so of memory writes, since the last reset of the memory."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self._binary, self._thresholds = spec.binary_mask, spec.thresholds
        self._low, self._high = spec.action_limits
        self._previous_action = np.zeros(spec.action_size, np.float32)

    @property
    def previous_action(self) -> Array:
        """What the next `step` takes as the previous action, (A,). Zeros before the first one."""
        return self._previous_action.copy()

    @property
    def memory_norms(self) -> npt.NDArray[np.float32]:
        """The norms of the vectors of the memory, (m,); none if they are not known."""
        return np.zeros(0, np.float32)

    @abstractmethod
    def reset(self, instruction: str, *, embedding: Array | None = None) -> None:
        """Start an episode. embedding: of the instruction, (L,), for policies that take one."""

    @abstractmethod
    def step(self, observation: Observation, *, delay_s: float = 0.0) -> Action:
        """Run one tick. delay_s: the time from the observation until the command will be in force.

        Raises an `ObservationError` if the robot must not act on the observation.
        """

    @abstractmethod
    def erase_memory(self) -> None:
        """Empty the memory alone: instruction, tick count and previous action stay."""

    @abstractmethod
    def snapshot(self) -> dict[str, Array]:
        """Return all that the next action depends on beside weights and observation, as plain arrays."""

    @abstractmethod
    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Continue from `snapshot`."""

    def executed(self, action: npt.ArrayLike) -> None:
        """Set what the robot did at the last tick, if limits cut the command or something held the robot.

        The next `step` takes it as the previous action. action: (A,), finite, in the spec's units; it may
        exceed the spec's limits. Raises `MalformedObservation`, and changes nothing, for anything else, and
        `UserError` before the first `step` of an episode.
        """
        if self.tick == 0:
            raise UserError("executed before step; call it after the step that was carried out")
        try:
            values = np.array(action, np.float32)
            if values.shape != (self.spec.action_size,) or not np.isfinite(values).all():
                raise ValueError(f"it has shape {values.shape}, or is not finite")
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedObservation(
                f"the executed action is no vector of numbers ({error}); give "
                f"{self.spec.action_size} finite values in the spec's units"
            ) from error
        self._previous_action = values

    def _begin(self, instruction: str | None) -> None:
        self.instruction, self.tick = instruction, 0
        self._previous_action = np.zeros(self.spec.action_size, np.float32)

    def _require_episode(self) -> None:
        if self.instruction is None:
            raise UserError("step before reset; call reset(instruction) at the start of an episode")

    def _chosen(self, decoded: Array) -> tuple[Array, Array]:
        """Return an action (A,) with binary parts decided, and the probabilities of these."""
        values, probabilities = decoded.copy(), decoded.copy()
        low, high, binary = self._low[self._binary], self._high[self._binary], decoded[self._binary]
        values[self._binary] = np.where(binary >= self._thresholds[self._binary], high, low)
        probabilities[self._binary] = (binary - low) / (high - low)
        return values, probabilities

    def _ticked(self, values: Array, probabilities: Array) -> Action:
        """Count a tick that gave these `values`, (A,)."""
        self._previous_action = values
        self.tick += 1
        return Action(self.spec, values.copy(), probabilities)


class ActorRunner(Runner):
    """Runs an `Actor`, and checks what goes in and what comes out.

    PyTorch's generator is seeded when an episode begins, so that policies that draw random numbers act alike
    in every run, in process and over ROS 2.
    """

    def __init__(self, actor: Actor, spec: PolicySpec | None) -> None:
        """spec: of the environment or the robot; None if the actor has to know it.

        Raises `UserError` if it is no actor, or was made for another robot.
        """
        self.actor: Any = actor
        missing = [name for name in ("reset", "act") if not callable(getattr(actor, name, None))]
        if missing:
            raise UserError(f"{actor!r} has no {' and no '.join(missing)}; see ttm.policy.Actor")
        own: PolicySpec | None = getattr(actor, "spec", None)
        if own is not None and spec is not None:
            own.require_robot(spec, ours="the actor")
        if (known := own or spec) is None:
            raise UserError(
                "only the robot's topics are known; give spec, or the actor an attribute spec"
            )
        super().__init__(known)
        self.remembers = all(hasattr(actor, name) for name in ("snapshot", "restore"))

    def reset(self, instruction: str, *, embedding: Array | None = None) -> None:
        """See `Runner`. The embedding is not passed on."""
        self._begin(instruction)
        self.erase_memory()

    def erase_memory(self) -> None:
        """See `Runner`: the actor begins another episode under the same instruction."""
        torch.manual_seed(0)
        self.actor.reset(self.instruction)

    def step(self, observation: Observation, *, delay_s: float = 0.0) -> Action:
        """See `Runner`. Raises `UserError` if the actor gives no action.

        An action that is not finite raises `MalformedObservation`, after the actor has seen the observation.
        """
        self._require_episode()
        observation = self.spec.seen(observation)
        given = self.actor.act(observation)
        try:
            action = np.asarray(given, np.float32)
        except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor with gradients
            raise UserError(f"the actor gave no array ({first_line(error)})") from error
        if action.shape != (self.spec.action_size,):
            wanted = f"give ({self.spec.action_size},), as its spec says"
            raise UserError(f"the actor gave an action of shape {action.shape}; {wanted}")
        if not np.isfinite(action).all():
            raise MalformedObservation("the actor's action is not finite; check weights and input")
        return self._ticked(*self._chosen(action))

    def executed(self, action: npt.ArrayLike) -> None:
        super().executed(action)
        if hasattr(self.actor, "executed"):
            self.actor.executed(self.previous_action)

    def snapshot(self) -> dict[str, Array]:
        """See `Runner`. Raises `UserError` if the actor has no snapshot."""
        self._require_memory()
        self._require_episode()
        own = {STATE + name: np.array(value) for name, value in self.actor.snapshot().items()}
        return {
            "spec": text_to_array(self.spec.to_json()),
            "instruction": text_to_array(self.instruction or ""),
            "tick": np.array(self.tick, np.int64),
            "previous_action": self.previous_action,
            **own,
        }

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """See `Runner`. Raises `UserError` if the actor cannot restore one."""
        self._require_memory()
        require_restorable(snapshot, self.spec, {"previous_action": self._previous_action})
        own = {name: value for name, value in snapshot.items() if name.startswith(STATE)}
        self.actor.restore({name[len(STATE) :]: np.array(value) for name, value in own.items()})
        self.tick, self.instruction = int(snapshot["tick"]), array_to_text(snapshot["instruction"])
        self._previous_action = np.array(snapshot["previous_action"], np.float32)

    def _require_memory(self) -> None:
        if not self.remembers:
            raise UserError("the actor's memory cannot be read; give it snapshot() and restore()")


KINDS = {
    "ws": "ttm.policy.remote:RemoteRunner",
    "lerobot": "ttm.policy.peers:LerobotActor",
    "robomimic": "ttm.policy.peers:RobomimicActor",
}
"""First word of an actor's name -> the class that is made of the name and a spec."""


def load_runner(actor: str | Actor, spec: PolicySpec | None, *, timeout_s: float = 30.0) -> Runner:
    """Return what runs an actor: an object, or the name of one as `ttm.policy.config.ACTOR_HELP` says.

    spec: of the environment or the robot, or None. timeout_s: the longest wait for a policy on another
    machine. Modules are searched in the current folder, too. Raises `UserError` if there is no such actor.
    """
    if not isinstance(actor, str):
        return ActorRunner(actor, spec)
    kind, _, rest = actor.partition(":")
    if kind == "ws":
        remedy = 'run: pip install "ttm-policy-stack[serve]"'
        runner: Runner = _imported(KINDS["ws"], remedy)(actor, spec, timeout_s)
        return runner
    make = _imported(KINDS.get(kind, actor))
    needed = [rest, spec] if kind in KINDS else [spec] if signature(make).parameters else []
    if needed and spec is None:
        raise UserError(f"{actor} does not know the robot; give spec, such as its episodes")
    return ActorRunner(make(*needed), spec)


def _imported(named: str, remedy: str = "give such as MODULE:MAKE") -> Callable[..., Any]:
    """Return what stands at "module:name". remedy: for the message if there is nothing."""
    module, _, name = named.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., Any] = getattr(import_module(module or "?"), name)
        if not callable(found):
            raise AttributeError("it cannot be called")
    except (ImportError, AttributeError) as error:
        raise UserError(f"there is no actor {named} ({first_line(error)}); {remedy}") from error
    return found
