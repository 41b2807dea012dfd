"""The public names of `ttm.policy`, what light modules load, and the embeddings of instructions."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import pytest

import ttm.policy
from ttm.policy import PolicyRunner, UserError, embed_instruction
from ttm.policy.language import EMBEDDING_SIZE, not_trained_on


@pytest.mark.parametrize("name", ttm.policy.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(ttm.policy, name) is not None


def test_names_are_listed_and_unknown_ones_are_told() -> None:
    assert set(ttm.policy.__all__) <= set(dir(ttm.policy))
    assert ttm.policy.PolicyRunner is PolicyRunner
    with pytest.raises(AttributeError, match="TTMPolicy"):
        ttm.policy.TTMPolicy  # noqa: B018


@pytest.mark.parametrize(
    "module",
    [
        "ttm.policy",
        "ttm.policy.errors",
        "ttm.policy.cores.registry",
        "ttm.policy.config",
        "ttm.policy.language",
        "ttm.policy.spec",
    ],
)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    """Options of commands are made from these, and `ttm --help` has to be quick."""
    heavy = {"torch", "openvino", "efficientnet_pytorch", "sentence_transformers"}
    code = f"import sys, {module}; assert not {heavy} & set(sys.modules), set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


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
