"""Frames that windows have in common: the same as in the files, and read from them a few times."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from ttm.datasets import EpisodeDataset, WindowDataset, WindowSampler, open_dataset
from ttm.datasets import windows as frame_store
from ttm.datasets.samplers import SECTION
from ttm.datasets.windows import RecentFrames
from ttm.policy import CameraSpec

WINDOW, APART, SIZE = 8, 2, 3
OPEN_TICKS = APART * SIZE * (SECTION - 1 + WINDOW)


@pytest.fixture
def windows(tmp_path, record):
    """Eight times two episodes of 20 and 30 ticks, of which frames are read as of sixteen."""
    for number, ticks in enumerate((20, 30)):
        record(tmp_path / f"{number}.hdf5", ticks=ticks, seed=number, embedding=np.ones(384))
    episodes = open_dataset(tmp_path)
    many = EpisodeDataset(list(episodes) * 8, episodes.spec, source="many")
    return WindowDataset(many, WINDOW, pad="both", cache="none", resize_to={"head": (6, 8)})


@pytest.fixture
def read(windows, monkeypatch):
    """The number of frames of each call that reads some."""
    counts = []
    whole = windows.frames._read

    def counted(camera, first, stop):
        counts.append(stop - first)
        return whole(camera, first, stop)

    monkeypatch.setattr(windows.frames, "_read", counted)
    return counts


def batches(windows):
    sampler = WindowSampler(len(windows), SIZE, seed=1, sections=windows.sections(APART))
    return [windows.places(batch) for batch in islice(sampler, sampler.batches_per_pass)]


@pytest.mark.parametrize(
    ("ticks", "portion"), [(OPEN_TICKS, 1.0), (OPEN_TICKS // 2, 0.5), (3, 1.0), (0, 0.0)]
)
def test_windows_are_the_same_with_whatever_room(windows, ticks, portion):
    recent = RecentFrames(ticks, portion)
    for places in batches(windows)[:20]:
        plain = windows.gather_at(places, burn_in=1)["images"]
        kept = windows.gather_at(places, burn_in=1, recent=recent)["images"]
        assert all(torch.equal(plain[name], kept[name]) for name in plain)


def frames_a_window(windows, read, recent):
    for places in batches(windows):
        windows.gather_at(places, recent=recent)
    return sum(read) / (len(windows) // SIZE * SIZE) / len(windows.spec.cameras)


def test_most_frames_are_read_once_and_less_room_reads_more(windows, read):
    whole = frames_a_window(windows, read, RecentFrames(OPEN_TICKS))
    assert whole < 1.6
    read.clear()
    half = frames_a_window(windows, read, RecentFrames(OPEN_TICKS // 2, 0.5))
    assert whole < half < (whole + WINDOW) / 2 + 0.3


def test_no_more_is_kept_than_memory_has_room_for(windows, monkeypatch):
    needed = 10 * windows.frames.tick_bytes
    monkeypatch.setattr(frame_store, "available_memory_bytes", lambda: 2 * 3 * needed)
    recent = windows.frames.recent(40, processes=3)
    assert (recent.ticks, recent.portion) == (10, 0.25)
    assert windows.frames.recent(10, processes=3).portion == 1


def test_the_frames_that_were_used_last_are_kept():
    """Not those that were read last: a window that is needed again keeps its frames."""
    camera, asked = CameraSpec("head", 2, 2), []

    def read(first, stop):
        asked.append((first, stop))
        return np.full((stop - first, 2, 2, 3), first, np.uint8)

    recent = RecentFrames(4)
    for first, stop in ((0, 4), (0, 2), (4, 6), (0, 2)):
        recent.between(camera, first, stop, read)
    assert asked == [(0, 4), (4, 6)]
