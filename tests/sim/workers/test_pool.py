"""Jobs shared among workers of this machine; machines that share a result have the same software."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ttm.policy import UserError
from ttm.sim import workers as pool
from ttm.sim import workers as software
from ttm.sim.workers import WorkerPool, require_same_software


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the worker. Worker processes inherit the path on which it is found."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return import_module("adder_worker")


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    (tmp_path / "ten.txt").write_text("10")
    return tmp_path / "ten.txt"


def test_one_worker_is_this_process(adder: ModuleType, ten: Path) -> None:
    torch.set_num_threads(2)
    with WorkerPool(adder.Adder, (ten,), workers=1) as shared:
        results = dict(shared.run([adder.Sum(number) for number in (1, 2, 3)]))
        assert results == {i: (11 + i, os.getpid(), 1) for i in range(3)}
    assert torch.get_num_threads() == 2


def test_the_number_of_workers_is_that_of_the_cores_that_may_be_used(
    adder: ModuleType, ten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3})
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with WorkerPool(adder.Adder, (ten,)) as shared:
        assert dict(shared.run([adder.Sum(1), adder.Sum(2)]))[1][1] == os.getpid()


def test_torch_has_its_threads_again_after_a_worker_that_cannot_be_made(
    adder: ModuleType, tmp_path: Path
) -> None:
    torch.set_num_threads(2)
    with pytest.raises(FileNotFoundError), WorkerPool(adder.Adder, (tmp_path / "none",), workers=1):
        pass
    assert torch.get_num_threads() == 2


def test_two_workers_give_the_same_results_and_take_more_jobs_later(
    adder: ModuleType, ten: Path
) -> None:
    with WorkerPool(adder.Adder, (ten,), workers=2) as shared:
        results = dict(shared.run([adder.Sum(number) for number in range(1, 8)]))
        assert [results[i][0] for i in range(7)] == list(range(11, 18))
        assert os.getpid() not in {process for _, process, _ in results.values()}
        assert {threads for *_, threads in results.values()} == {1}
        assert [result[0] for _, result in shared.run([adder.Sum(5)])] == [15]


def test_no_more_processes_than_jobs(adder: ModuleType, ten: Path) -> None:
    with WorkerPool(adder.Adder, (ten,), workers=4, most=1) as shared:
        assert dict(shared.run([adder.Sum(1)])) == {0: (11, os.getpid(), 1)}


def test_a_process_that_dies_is_an_error_that_says_what_to_do(adder: ModuleType, ten: Path) -> None:
    shared = WorkerPool(adder.Adder, (ten,), workers=2, advice="; go on")
    with pytest.raises(UserError, match=r"try fewer: --workers 1; go on"), shared:
        list(shared.run([adder.Sum(0, kills=True), adder.Sum(1)]))


def test_ray_that_is_not_installed_is_an_error(
    adder: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "ttm-policy-stack\[cluster\]"$'):
        WorkerPool(adder.Adder, (), ray="auto")


def test_a_machine_is_like_itself() -> None:
    require_same_software(software.software())


def test_the_first_difference_is_named() -> None:
    wanted = {**software.software(), "mujoco": "3.0.0"}
    with pytest.raises(
        UserError, match=r"^mujoco is [\d.]+ there, but 3\.0\.0 where [^\n]*same on both$"
    ):
        require_same_software(wanted)


@pytest.mark.parametrize("name", ["module.py", "scene.xml"])
def test_other_code_or_another_scene_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    monkeypatch.setattr(software, "CODE", (*software.CODE, tmp_path.name))
    before = software._code()
    (tmp_path / name).write_text("")
    assert software._code() != before
