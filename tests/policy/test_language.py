"""The embeddings of instructions."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ttm.policy import UserError, embed_instruction, language
from ttm.policy.language import EMBEDDING_SIZE, not_trained_on


@pytest.fixture(autouse=True)
def _real(
    load_sentence_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What is cached of the tests' own stand-in is no embedding of the model, nor the reverse."""
    monkeypatch.setattr(language, "_sentence_model", load_sentence_model)
    embed_instruction.cache_clear()
    yield
    embed_instruction.cache_clear()


def test_embeds_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    red, same, other = (
        embed_instruction(text)
        for text in ("pick up the red mug", "grasp the red mug", "open the top drawer")
    )
    assert red.shape == (EMBEDDING_SIZE,)
    assert red.dtype == np.float32
    assert np.linalg.norm(red) == pytest.approx(1, abs=1e-5)
    assert red @ same > red @ other + 0.2


def test_is_computed_once_and_cannot_be_spoilt() -> None:
    first = embed_instruction("open the top drawer")
    assert embed_instruction("open the top drawer") is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_an_instruction_that_was_not_trained_is_told_beside_the_one_most_like_it() -> None:
    known = ["open the top drawer", "pick up the red can"]
    assert not not_trained_on(known[1], known)
    assert not not_trained_on("dance", [])
    told = not_trained_on("pick up the\nred cann", known)
    assert told.endswith("it knows 2, such as 'pick up the red can'")
    assert "\n" not in told
    assert "'open the top drawer'" in not_trained_on("dance", known)


def test_an_empty_instruction_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        embed_instruction("  ")
