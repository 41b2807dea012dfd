"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

# PyTorch reads them when it is imported, here and in the programs that tests start. Several processes share
# the cores; with a thread for each core in each of them, threads would mostly wait for one another. A
# training has as many all the same, and while they wait, others shall compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Shells have what they run in the background ignore Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the collector of garbage the half million objects of what was imported."""
    gc.freeze()


class _Sentences:
    """Another direction for each text, like and unlike ones."""

    def encode(self, text: str, **_: object) -> Any:
        normal = import_module("numpy").random.default_rng([*text.encode()]).normal(size=384)
        return normal / (normal @ normal) ** 0.5


@pytest.fixture(autouse=True, scope="session")
def load_sentence_model() -> Iterator[Callable[[str], Any]]:
    """Give the loader of the language model, without which all but its own test do.

    To load it takes each process as long as a hundred tests.
    """
    loader = import_module("ttm.policy.language")._sentence_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ttm.policy.language._sentence_model", lambda name: _Sentences())
        yield loader


def _begin_alike() -> None:
    """Seed PyTorch, and take back the settings of the process that a test before may have changed."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True, scope="module")
def _same_numbers_for_the_fixtures_of_a_file() -> None:
    """See `_same_numbers_for_each_test`."""
    _begin_alike()


@pytest.fixture(autouse=True)
def _same_numbers_for_each_test(_same_numbers_for_the_fixtures_of_a_file: None) -> None:
    """Let PyTorch draw the same numbers in every run.

    Otherwise they depend on what ran before in the same process, and with several processes that depends on
    time.
    """
    _begin_alike()
