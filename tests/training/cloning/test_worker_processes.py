"""Batches made by worker processes: the same ones, in their order, and clear ends."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections import namedtuple
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import pytest
import torch
import torch.utils.data._utils as data_utils

from ttm.datasets import WindowDataset
from ttm.policy import UserError, load_checkpoint
from ttm.training import batches as worker_processes
from ttm.training.batches import (
    AfterBurnIn,
    BatchSource,
    default_workers,
    made_by_workers,
    require_room,
)
from ttm.training.data import open_all, split
from ttm.training.options import AugmentationConfig
from ttm.training.train import TrainCommand

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _quick_look_for_dead_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)


def source(episodes: Path, workers: int, apart: int | None) -> BatchSource:
    data = split(open_all([str(episodes)]), "train")
    windows = WindowDataset(data, 3, cache="none" if workers else "ram")
    changes, memory = AugmentationConfig(), AfterBurnIn(1, apart)
    return BatchSource(windows, 4, 1, augmentation=changes, memory=memory, workers=workers)


@pytest.mark.parametrize(("first_step", "apart"), [(0, None), (5, None), (3, 2)])
def test_workers_make_the_batches_that_a_thread_makes(
    episodes: Path, first_step: int, apart: int | None
) -> None:
    one, two = (source(episodes, workers, apart).batches(first_step) for workers in (0, 2))
    for _, mine, others in zip(range(6), one, two, strict=False):
        assert torch.equal(mine.actions, others.actions)
        assert torch.equal(mine.memory_reset, others.memory_reset)
        assert torch.equal(mine.inputs.previous_action_valid, others.inputs.previous_action_valid)
        for name, images in mine.inputs.images.items():
            assert torch.equal(images, others.inputs.images[name])


def test_the_work_is_done_in_other_processes() -> None:
    made = made_by_workers(lambda order: (order, os.getpid()), count(), 2)
    results = [next(made) for _ in range(6)]
    assert [order for order, _ in results] == list(range(6))
    assert len({process for _, process in results} - {os.getpid()}) == 2


def test_a_worker_leaves_the_garbage_of_the_training_alone(tmp_path: Path) -> None:
    """A file or a graphics context that is finalized in a forked process may end it."""

    class Garbage:
        itself: Garbage

    def make(order: int) -> int:
        gc.collect()
        return order

    garbage, finalized = Garbage(), tmp_path / "finalized"
    garbage.itself = garbage
    weakref.finalize(garbage, finalized.touch)
    gc.disable()
    try:
        del garbage
        assert list(islice(made_by_workers(make, count(), 1), 3)) == [0, 1, 2]
        assert not finalized.exists()
    finally:
        gc.enable()
    gc.collect()
    assert finalized.exists()


def test_an_error_of_the_user_comes_back_as_it_is() -> None:
    def make(order: int) -> int:
        if order == 3:
            raise UserError("episode_3.hdf5 is damaged")
        return order

    made = made_by_workers(make, count(), 2)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match=r"^episode_3.hdf5 is damaged$"):
        next(made)


def test_another_error_keeps_its_type_and_where_it_was() -> None:
    made = made_by_workers(lambda order: [][order], count(), 1)
    with pytest.raises(IndexError, match="list index out of range"):
        next(made)


def test_a_killed_worker_ends_the_training_in_one_line() -> None:
    made = made_by_workers(lambda order: os.getpid(), count(), 1)
    os.kill(next(made), signal.SIGKILL)
    with pytest.raises(UserError, match=r"worker process .* has ended .*--resume"):
        list(islice(made, 50))


def test_interrupts_are_left_to_the_training() -> None:
    made = made_by_workers(lambda order: os.getpid(), count(), 1)
    worker = next(made)
    os.kill(worker, signal.SIGINT)
    assert [next(made) for _ in range(8)] == [worker] * 8


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 MiB of shared memory and 32 cores."""
    usage = Usage(64 << 20, 0, 64 << 20)
    monkeypatch.setattr(worker_processes.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(worker_processes, "usable_cores", lambda: 32)


@pytest.mark.usefixtures("shared_memory")
def test_as_many_workers_are_taken_as_the_shared_memory_has_room_for() -> None:
    assert default_workers(1 << 20) == 8
    assert default_workers(8 << 20) == 3
    assert default_workers(64 << 20) == 0
    assert [default_workers(8 << 20, apart=apart) for apart in (24, 8)] == [3, 2]
    require_room(3, 8 << 20)
    with pytest.raises(UserError, match=r"--workers 4 need 72 MiB .*has 64; .*--shm-size"):
        require_room(4, 8 << 20)


def test_without_shared_memory_no_worker_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "SHARED_MEMORY", tmp_path / "shm")
    assert default_workers(1) == 0
    require_room(0, 1)
    with pytest.raises(UserError, match=r"--workers 1 need .*shm, which has 0;"):
        require_room(1, 1)


def test_a_training_with_workers_equals_one_without_also_when_resumed(
    command: Callable[..., TrainCommand],
    interrupted: Callable[[TrainCommand, int], None],
    tmp_path: Path,
) -> None:
    def training(out: str, **changes: object) -> TrainCommand:
        return command(out=tmp_path / out, steps=4, **changes)

    assert training("alone").run() == 0
    interrupted(training("halved", workers=1), 2)
    assert training("halved", workers=2, resume=True).run() == 0
    alone, resumed = (
        load_checkpoint(tmp_path / out / "last.safetensors")[0].state_dict()
        for out in ("alone", "halved")
    )
    assert alone.keys() == resumed.keys()
    assert all(torch.equal(alone[name], resumed[name]) for name in alone)


def test_workers_without_frames_are_refused(command: Callable[..., TrainCommand]) -> None:
    training = command(init="shipped", freeze_vision=True, workers=2)
    with pytest.raises(UserError, match=r"--workers is 2, but --freeze-vision"):
        training.run()
