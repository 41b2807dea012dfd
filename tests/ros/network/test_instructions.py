"""Instructions that a checkpoint does not know are embedded in a process of their own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.policy import PolicyRunner, UserError, language
from ttm_policy.inference import Instructions

CAN, UNKNOWN = "pick up the red can", "knock over the elephant"


@pytest.fixture
def runner(checkpoint: Path) -> PolicyRunner:
    return PolicyRunner.from_checkpoint(checkpoint, engine="torch")


@pytest.fixture
def no_model_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> Any:
        raise AssertionError("the language model was loaded into this process")

    monkeypatch.setattr(language, "_sentence_model", refuse)


@pytest.mark.usefixtures("no_model_here")
def test_the_embedding_of_an_unknown_instruction_comes_from_another_process(
    runner: PolicyRunner, language_model: Path
) -> None:
    said: list[str] = []
    instructions = Instructions(said.append)
    instructions.reset(runner, CAN)
    assert not (language_model / "calls").exists()
    assert not said
    instructions.reset(runner, UNKNOWN)
    assert runner.instruction == UNKNOWN
    assert np.array_equal(runner.snapshot()["language"], np.full(384, 0.5, np.float32))
    instructions.reset(runner, UNKNOWN)
    assert (language_model / "calls").read_text() == f"{UNKNOWN}\n"  # the second time it is known
    warning, loading = said
    assert f"not trained on the instruction '{UNKNOWN}', and may do anything" in warning
    assert f"language model all-MiniLM-L6-v2 loads for '{UNKNOWN}'" in loading


@pytest.mark.usefixtures("no_model_here")
def test_a_failure_is_one_line_and_changes_nothing(
    runner: PolicyRunner, language_model: Path
) -> None:
    instructions = Instructions()
    instructions.reset(runner, CAN)
    (language_model / "fail").touch()
    with pytest.raises(UserError, match=f"no embedding of the instruction '{UNKNOWN}': .*broken"):
        instructions.reset(runner, UNKNOWN)
    assert runner.instruction == CAN


def test_closing_ends_a_model_that_is_at_work(runner: PolicyRunner, language_model: Path) -> None:
    (language_model / "wait").touch()
    instructions, errors = Instructions(), []

    def reset() -> None:
        try:
            instructions.reset(runner, UNKNOWN)
        except UserError as error:
            errors.append(str(error))

    thread = threading.Thread(target=reset)
    thread.start()
    instructions.close()
    thread.join(180.0)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert runner.instruction is None
