"""Runs what takes long beside the thread of the node: the network, the language model, files."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node

from ttm.datasets.dataset import read_spec
from ttm.policy.actor import Runner, load_runner
from ttm.policy.errors import UserError, require_instruction
from ttm.policy.language import not_trained_on
from ttm.policy.policy import Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import SHIPPED, default_checkpoint
from ttm_policy.contract import load_contract
from ttm_policy.limits import SafetyLimits
from ttm_policy.messages import CommandCodec, check_fields
from ttm_policy.parameters import PolicyParameters
from ttm_policy.programs import steady_timer

Result = TypeVar("Result")
Then = Callable[["Future[Any]"], object]
LOOK_S = 0.1
"""Time between two looks for results whose wake-up was lost: with Fast DDS a guard condition that is
triggered just when a wait has ended may not end the next one."""


class Worker:
    """Runs calls in their order on its thread, and hands their results to the node's thread."""

    def __init__(self, node: Node, name: str) -> None:
        """Start the thread. name: of the thread, for debuggers and `top -H`."""
        self._node = node
        self.on_idle: Callable[[], object] = lambda: None
        """Called by the thread that spins the node when all results have been handed over."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any], Then] | None] = (
            queue.SimpleQueue()
        )
        self._finished: deque[tuple[Future[Any], Then]] = deque()
        self._pending = 0
        self._lock = threading.Lock()
        self._guard: GuardCondition | None = node.create_guard_condition(self.deliver)
        self._timer = steady_timer(node, LOOK_S, self.deliver)
        # A daemon, since a process that is told to end does not wait for a language model.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the results of all calls have been handed over."""
        return self._pending == 0

    def submit(
        self, call: Callable[[], Result], then: Callable[[Future[Result]], object] = Future.result
    ) -> Future[Result]:
        """Run `call` after all earlier ones. then: gets the future in the node's thread."""
        future: Future[Result] = Future()
        self._pending += 1
        self._calls.put((future, call, then))
        return future

    def deliver(self) -> None:
        """Hand over the results that are there. The thread that spins the node does so by itself."""
        delivered = False
        while self._finished:
            future, then = self._finished.popleft()
            self._pending -= 1
            delivered = True
            then(future)
        if delivered and self.idle:
            self.on_idle()

    def close(self, timeout_s: float = 0.5) -> bool:
        """Drop the calls that have not begun, and end the thread; return whether it has ended in time."""
        with suppress(queue.Empty):  # the thread may take a call at the same time
            while True:
                self._calls.get_nowait()
        self._calls.put(None)
        self._thread.join(timeout_s)
        with self._lock:
            if self._guard is not None:
                self._node.destroy_guard_condition(self._guard)
                self._node.destroy_timer(self._timer)
            self._guard = None
        self._finished.clear()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call, then = item
            try:
                future.set_result(call())
            except BaseException as error:  # raised again where the result is asked for
                future.set_exception(error)
            self._finished.append((future, then))
            with self._lock:
                if self._guard is not None:
                    self._guard.trigger()


COMMAND = (sys.executable, "-m", "ttm_policy.embedding_process")


class Instructions:
    """Resets a runner under instructions, and computes embeddings that its checkpoint lacks.

    The language model runs in a process of its own. While it loads, it would keep Python's interpreter lock
    up to a second at a time, and no thread of this process could answer the emergency stop.
    """

    def __init__(self, say: Callable[[str], object] = lambda _: None) -> None:
        """say: gets a line when the policy was not trained on a text, and when the language model loads."""
        self._say = say
        self._embed = lru_cache(maxsize=1024)(self._compute)
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def reset(self, runner: Runner, text: str) -> None:
        """Empty the memory under an instruction. Without an embedding: `UserError`, and no change."""
        embedding = None
        if isinstance(runner, PolicyRunner) and text not in runner.policy.known_instructions:
            embedding = self._embed(text, runner.policy)
        runner.reset(text, embedding=embedding)

    def close(self) -> None:
        """End a language model that is at work. `reset` then raises `UserError`."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def _compute(self, text: str, policy: Policy) -> npt.NDArray[np.float32]:
        model = policy.config.language_model
        if warning := not_trained_on(text, policy.known_instructions):
            self._say(warning)
        self._say(f"the language model {model} loads for {text!r}, which takes seconds")
        self._process = subprocess.Popen(
            [*COMMAND, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the node, which ends this process itself
        )
        if self._closed:
            self._process.kill()
        output, errors = self._process.communicate(text)
        if self._process.returncode != 0:
            lines = errors.strip().splitlines() or ["it was ended"]
            raise UserError(f"no embedding of the instruction '{text}': {lines[-1]}")
        return np.array(json.loads(output.splitlines()[-1]), np.float32)


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy with what the contract of its robot says."""

    runner: Runner
    codec: CommandCodec
    limits: SafetyLimits
    instructions: Instructions


def load_policy(parameters: PolicyParameters, instructions: Instructions) -> LoadedPolicy:
    """Load contract and checkpoint, and compute the embedding of the instruction, which takes seconds.

    Call it in the thread that runs the ticks, since the number of threads of the network is set here. Every
    mistake in the files is found here and raised as `UserError`.
    """
    instruction = require_instruction(parameters.instruction, "instruction")
    torch.set_num_threads(parameters.threads)
    contract = load_contract(parameters.contract)
    check_fields(contract)
    runner = _load_runner(parameters)
    whose = "this actor" if parameters.actor else "this checkpoint"
    contract = contract.for_policy(runner.spec, whose=whose)
    if parameters.recovery_path and not runner.remembers:
        raise UserError("recovery_path: the actor has no snapshot() and restore(); leave it out")
    ticks = 1.0 if parameters.lockstep else parameters.lifespan_ticks
    lasts_s = ticks * runner.spec.control_dt_s
    limits = SafetyLimits(contract, runner.spec, parameters.limits, lasts_s=lasts_s)
    if instruction:
        instructions.reset(runner, instruction)
    codec = CommandCodec(contract, runner.spec, cmd_vel_stamped=parameters.cmd_vel_stamped)
    return LoadedPolicy(runner, codec, limits, instructions)


def _load_runner(parameters: PolicyParameters) -> Runner:
    """Return what runs the checkpoint, or the actor that stands in its place."""
    if parameters.actor:
        if parameters.checkpoint:
            raise UserError("checkpoint and actor are two policies; leave one out")
        # Without a spec, the topics alone of another robot are known: the actor has to know its own.
        source = parameters.spec or ("" if parameters.contract else SHIPPED)
        spec = read_spec(source) if source else None
        return load_runner(parameters.actor, spec, timeout_s=parameters.max_age_s)
    if parameters.spec:
        raise UserError("spec is for an actor; a checkpoint has its own")
    return PolicyRunner.from_checkpoint(
        parameters.checkpoint or default_checkpoint(),
        device=parameters.device,
        engine=parameters.engine,
        precision=parameters.precision,
        execution=parameters.execution,
    )
