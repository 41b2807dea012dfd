"""Puts instructions into force without loading the language model into the node.

Loading it takes seconds, for which it would keep Python's interpreter lock up to a second at a time:
no thread of this process could answer the emergency stop. It runs in a process of its own instead.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.network.language import not_trained_on
from ttm.policy.network.policy import Policy
from ttm.policy.run.runner import PolicyRunner

COMMAND = (sys.executable, "-m", "ttm_policy.network.embedding_process")


class Instructions:
    """Resets a runner under instructions, and computes embeddings that its checkpoint lacks.

    say: gets a line for each instruction that the policy was not trained on, at its first time, and one
    while the language model loads.
    """

    def __init__(self, say: Callable[[str], object] = lambda _: None) -> None:
        self._say = say
        self._embed = lru_cache(maxsize=1024)(self._compute)
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def reset(self, runner: PolicyRunner, text: str) -> None:
        """Empty the memory of `runner`, and put an instruction into force.

        This blocks for seconds if the language model is needed. Raises `UserError`, and changes
        nothing, if there is no embedding of the text.
        """
        embedding = None
        if text not in runner.policy.known_instructions:
            embedding = self._embed(text, runner.policy)
        runner.reset(text, embedding=embedding)

    def close(self) -> None:
        """End a language model that is at work. `reset` then raises `UserError`."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def _compute(self, text: str, policy: Policy) -> npt.NDArray[np.float32]:
        """Return the embedding (L,) of `text`."""
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
            told = errors.strip().splitlines() or ["it was ended"]
            raise UserError(f"no embedding of the instruction '{text}': {told[-1]}")
        return np.array(json.loads(output.splitlines()[-1]), np.float32)
