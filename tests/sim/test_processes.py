"""Jobs shared among worker processes."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from ttm.policy.errors import UserError
from ttm.sim.processes import WorkerPool


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker's class. Worker processes inherit the path on which it is found."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return import_module("adder_worker").Adder


def test_one_worker_is_this_process(adder: Any) -> None:
    threads = torch.get_num_threads()
    with WorkerPool(adder, (10,), workers=1) as pool:
        results = dict(pool.run([1, 2, 3]))
        assert results == {i: (11 + i, os.getpid(), 1) for i in range(3)}
    assert torch.get_num_threads() == threads


def test_two_workers_give_the_same_results_and_take_more_jobs_later(adder: Any) -> None:
    with WorkerPool(adder, (10,), workers=2) as pool:
        results = dict(pool.run([1, 2, 3]))
        assert [results[i][0] for i in range(3)] == [11, 12, 13]
        assert os.getpid() not in {process for _, process, _ in results.values()}
        assert {threads for *_, threads in results.values()} == {1}
        assert [result[0] for _, result in pool.run([5])] == [15]


def test_a_process_that_dies_is_an_error_that_says_what_to_do(adder: Any) -> None:
    pool = WorkerPool(adder, (0,), workers=2, advice="; go on")
    with pytest.raises(UserError, match=r"try fewer: --workers 1; go on"), pool:
        list(pool.run([-1, 1]))
