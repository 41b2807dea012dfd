"""The public names of `ttm.policy`, and what importing the package and its light modules loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ttm.policy
from ttm.policy.runner import PolicyRunner


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
