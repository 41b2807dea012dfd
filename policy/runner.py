"""PolicyRunner: maps observations to actions, and holds the memory between ticks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.actor import STATE, Runner
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.config import EngineName, Precision
from ttm.policy.cores.core import CoreState
from ttm.policy.engines import make_engine, to_numpy
from ttm.policy.errors import (
    MalformedObservation,
    StaleObservation,
    UserError,
    require_above_0,
)
from ttm.policy.execution import NEWEST, make_execution
from ttm.policy.inputs import PolicyInputs
from ttm.policy.language import embed_instruction
from ttm.policy.policy import Policy
from ttm.policy.snapshot import (
    array_to_text,
    plan_entries,
    plan_of,
    require_fresh,
    require_restorable,
    text_to_array,
)
from ttm.policy.spec import Action, Array, Observation, PolicySpec


class PolicyRunner(Runner):
    """Run one policy in closed loop, one episode at a time, at constant cost and memory per tick.

    It is the only place that holds a memory. Each `step` writes to the memory exactly once, from the given
    observation, or raises an `ObservationError` and changes nothing. The previous action is an input of
    the network as well: it is the last command, unless `executed` says that the robot did something else.

    Unless `engine.name` is "torch", `engine` runs a compiled copy of `policy` from the time of construction;
    later hooks on `policy` and changes of it then have no effect.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_age_s: float | None = None,
        device: torch.device | str = "cpu",
        engine: EngineName = "auto",
        precision: Precision = "float32",
        execution: str = NEWEST,
    ) -> None:
        """Move `policy` to `device`, set it to evaluation mode, and prepare the engine.

        max_age_s: the greatest age of an observation, in seconds; None to accept any age.
        engine and precision: see `make_engine`; on a CPU `torch.get_num_threads()` threads run the ticks.
        execution: see `execute_by`.
        """
        require_above_0({"max_age_s": max_age_s})
        super().__init__(policy.spec)
        self.policy = policy.to(device).eval()
        self.longest_delay_s = policy.config.longest_delay_s
        self.max_age_s = max_age_s
        self.device = torch.device(device)
        self.execute_by(execution)
        self.engine = make_engine(self.policy, self.device, engine, precision)
        self._state: CoreState = {}
        self._language: Tensor = torch.zeros(1, policy.config.embedding_size, device=self.device)
        self.erase_memory()

    @classmethod
    def from_checkpoint(
        cls, path: Path | str, *, spec: PolicySpec | None = None, **options: Any
    ) -> PolicyRunner:
        """Load a checkpoint, and pass `options` on to `PolicyRunner`.

        Raises `UserError` if a robot of `spec` lacks one of its inputs, or takes other actions.
        """
        policy, _ = load_checkpoint(path, options.get("device", "cpu"))
        if spec is not None:
            policy.spec.require_robot(spec, ours=str(path))
        return cls(policy, **options)

    @property
    def memory_norms(self) -> npt.NDArray[np.float32]:
        """The norms of the vectors of the memory, such as the m tokens; see `TemporalCore.memory_norms`."""
        return to_numpy(self.policy.core.memory_norms(self._state)[0]).astype(np.float32)

    def execute_by(self, execution: str) -> None:
        """Choose which actions of a policy that predicts chunks are carried out, from the next tick on.

        execution: "receding:N" or "ensemble:M"; see `make_execution`. What was planned is forgotten.
        """
        self.execution = make_execution(execution, self.policy.config.chunk, self.policy.plan_size)
        self._plan = self.execution.initial_plan()

    def reset(
        self, instruction: str, *, embedding: Array | None = None, keep_memory: bool = False
    ) -> None:
        """Start an episode, and forget the actions that were planned.

        embedding: of the instruction, (L,). None to take it from the checkpoint, or else to compute it
        by the language model. keep_memory: keep memory, tick count and previous action.
        """
        language = self._embed(instruction, embedding)
        if not keep_memory:
            self.erase_memory()
            self._begin(instruction)
        self._plan = self.execution.initial_plan()
        self.instruction = instruction
        self._language = torch.from_numpy(language[None]).to(self.device)  # (1, L)

    def erase_memory(self) -> None:
        """Set the memory to the initial one, and forget the actions that were planned with it."""
        with torch.no_grad():
            self._state = self.policy.initial_state(1)
        self._plan = self.execution.initial_plan()

    def step(
        self,
        observation: Observation,
        *,
        stamp_s: float | None = None,
        now_s: float | None = None,
        delay_s: float = 0.0,
    ) -> Action:
        """Run one tick.

        stamp_s and now_s: the time of capture and the current time, in seconds of the same clock.
        delay_s: the time from the observation until its command will be in force, which only policies
        that were trained with delays take into account. Raises an `ObservationError` for an observation
        that must not enter the memory; the runner is then as it was before the call.
        """
        self._require_episode()
        if np.isnan(delay_s):
            raise UserError("delay_s is NaN; give the seconds until the command will be in force")
        if self.max_age_s is not None:
            if stamp_s is None:
                raise StaleObservation("the observation has no time stamp; give stamp_s")
            age_s = (time.time() if now_s is None else now_s) - stamp_s
            require_fresh(age_s, self.max_age_s)
        observation = self.spec.seen(observation)
        inputs = self._inputs(observation, delay_s)
        actions, state = self.engine.step(inputs, self._state)
        chunk = to_numpy(actions[0])  # (K, P)
        if not np.isfinite(chunk).all():
            raise MalformedObservation(
                "the network's action is not finite; check the observation's values, and the checkpoint"
            )
        planned, plan = self.execution.next(chunk, self._plan)
        values, probabilities = self._chosen(self._command(planned, inputs))
        self._state, self._plan = state, plan
        return self._ticked(values, probabilities)

    def snapshot(self) -> dict[str, Array]:
        """Return all that the next action depends on beside weights and observation, as plain arrays."""
        if self.instruction is None:
            raise UserError("there is nothing to save before reset(instruction)")
        return {
            "spec": text_to_array(self.spec.to_json()),
            "instruction": text_to_array(self.instruction),
            "tick": np.array(self.tick, np.int64),
            **self._numbers(),
            **plan_entries(self.execution, self._plan),
        }

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Continue from `snapshot`, without its plan if a runner with another `execution` took it.

        On the same machine, the next actions are bit-identical.
        """
        require_restorable(snapshot, self.spec, self._numbers())
        self._plan = plan_of(snapshot, self.execution)

        def tensor(name: str, like: Tensor) -> Tensor:
            return torch.tensor(np.asarray(snapshot[name])).to(like)[None]

        self._state = {name: tensor(STATE + name, now) for name, now in self._state.items()}
        self._language = tensor("language", self._language)
        self._previous_action = np.array(snapshot["previous_action"], np.float32)
        self.tick = int(snapshot["tick"])
        self.instruction = array_to_text(snapshot["instruction"])

    def _command(self, planned: Array, inputs: PolicyInputs) -> Array:
        """Return the command that a plan for this tick means now, (A,), with decoded binary parts."""
        if not self.policy.relative:
            return planned
        on_device = torch.from_numpy(planned)[None, None].to(self.device)
        previous = inputs.previous_action if self.tick else None
        return to_numpy(self.policy.command(on_device, inputs.proprioception, previous)[0, 0])

    def _embed(self, instruction: str, embedding: Array | None) -> npt.NDArray[np.float32]:
        config = self.policy.config
        if embedding is None:
            embedding = self.policy.known_instructions.get(instruction)
        if embedding is None:
            embedding = embed_instruction(instruction, config.language_model)
        language = np.array(embedding, np.float32)
        if language.shape != (config.embedding_size,) or not np.isfinite(language).all():
            raise UserError(
                f"the instruction's embedding has shape {language.shape}, or is not finite; "
                f"this policy takes ({config.embedding_size},) finite values of {config.language_model}"
            )
        return language

    def _inputs(self, observation: Observation, delay_s: float) -> PolicyInputs:
        """Return the inputs of one tick of one robot, (1, 1, ...), on the device."""

        # NumPy copies, since frames may be read-only or flipped, and PyTorch would wake its threads.
        def copied(name: str, dtype: type[np.generic]) -> Tensor:
            return torch.from_numpy(np.array(observation[name], dtype))[None, None]

        cameras, vectors = self.spec.cameras, self.spec.proprioception
        longest_s = self.policy.config.longest_delay_s
        return PolicyInputs(
            images={c.name: copied(c.name, np.uint8).permute(0, 1, 4, 2, 3) for c in cameras},
            proprioception={v.name: copied(v.name, np.float32) for v in vectors},
            previous_action=torch.tensor(self._previous_action)[None, None],
            previous_action_valid=torch.tensor([[self.tick > 0]]),
            language=self._language,
            delay_s=torch.tensor([[min(max(delay_s, 0.0), longest_s)]]) if longest_s else None,
        ).to(self.device)

    def _numbers(self) -> dict[str, Array]:
        return {
            "language": to_numpy(self._language[0]),
            "previous_action": self._previous_action.copy(),
            **{STATE + name: to_numpy(value[0]) for name, value in self._state.items()},
        }
