"""Packed data sets: the same training, from frames that need neither decoding nor resizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ttm.datasets import WindowDataset, check_dataset, open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.formats.hdf5 import recording_of
from ttm.datasets.tools.pack import DataPackCommand, pack_dataset
from ttm.policy import UserError
from ttm.training.cli import main

EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)
SIZES = {"head": (10, 10)}
"""Of the cameras whose frames are reduced to 10 pixels: those of the wrist are smaller."""


@pytest.fixture(params=[None, 90], ids=["raw", "jpeg"])
def demos(request, tmp_path, record):
    """Three episodes of 4 to 6 ticks, the last one held out."""
    for i in range(3):
        facts = {"split": "valid" if i == 2 else "train", "task": f"task {i}", "success": i == 1}
        facts |= {"embedding": EMBEDDING, "instruction": f"do {i}", "jpeg_quality": request.param}
        facts |= {"drivers": i == 1, "variation": f"light={i} frames=1"}
        record(tmp_path / "demos" / f"{i}.hdf5", ticks=4 + i, seed=i, **facts)
    return tmp_path / "demos"


def pack(source: Path, *words: Any, **options: Any) -> tuple[int, int, int]:
    """Return the numbers of episodes, ticks and files that were written."""
    return pack_dataset(DataPackCommand(str(source), *words, **options))


def test_a_training_on_packed_episodes_gets_the_same_windows(demos, tmp_path):
    assert pack(demos, tmp_path / "packed", 10) == (3, 15, 1)
    original, packed = open_dataset(demos), open_dataset(tmp_path / "packed")
    assert packed.filter("valid")[0].task == "task 2"
    one = WindowDataset(original, 3, resize_to=SIZES)
    two = WindowDataset(packed, 3, cache="none")
    assert two.spec == one.spec
    mine, other = (windows.gather(list(range(len(one)))) for windows in (one, two))
    for name in SIZES:
        assert torch.equal(mine["images"][name], other["images"][name])
    for name in ("actions", "previous_action", "language", "valid", "tick"):
        assert torch.equal(mine[name], other[name])
    for before, after in zip(original, packed, strict=True):
        for fact in ("instruction", "task", "success", "seed", "masks", "num_samples"):
            assert getattr(before, fact) == getattr(after, fact)
        assert recording_of(after).variation == recording_of(before).variation != ""
        assert np.array_equal(before.timestamps, after.timestamps)
        assert np.array_equal(before.interventions, after.interventions)
    assert check_dataset(tmp_path / "packed").num_errors == 0


def test_frames_lie_uncompressed_one_after_another(demos, tmp_path):
    pack(demos, tmp_path / "packed", 10)
    with h5py.File(tmp_path / "packed" / "part_00000.hdf5") as file:
        stored = file["data/demo_2/obs/head"]
        assert (stored.shape, stored.chunks, stored.compression) == ((6, 10, 10, 3), None, None)
        assert file["data"].attrs["total"] == 15


def test_a_new_file_is_begun_when_one_is_full(demos, tmp_path):
    gib = 2 * 10 * 10 * 3 * 5 / 2**30  # five ticks of two cameras
    assert pack(demos, tmp_path / "packed", 10, file_gib=gib)[2] == 3 - 1
    names = [episode.path.name for episode in open_dataset(tmp_path / "packed")]
    assert names == ["part_00000.hdf5", "part_00000.hdf5", "part_00001.hdf5"]
    assert [e.task for e in open_dataset(tmp_path / "packed")] == ["task 0", "task 1", "task 2"]


def test_jpegs_on_request(demos, tmp_path):
    pack(demos, tmp_path / "packed", 10, jpeg_quality=95)
    with h5py.File(tmp_path / "packed" / "part_00000.hdf5") as file:
        assert file["data/demo_0/obs/head"].attrs["encoding"] == "jpeg"
    assert open_dataset(tmp_path / "packed")[0].frames("head").shape == (4, 10, 10, 3)


def test_foreign_frames_are_turned_and_choices_hold(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "libero.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.linspace(-0.5, 0.5, 10).reshape(5, 2).astype(np.float32)
        demo["obs/front"] = frames
        demo["obs/side"] = frames
        demo["states"] = np.arange(5)
        file["data"].attrs["macros_image_convention"] = "opengl"
    pack(tmp_path / "libero.hdf5", tmp_path / "packed", 8, choices=Choices(cameras=("front",)))
    packed = open_dataset(tmp_path / "packed")
    assert [camera.name for camera in packed.spec.cameras] == ["front"]
    assert np.array_equal(packed[0].frames("front"), frames[:, ::-1])


def test_the_command_says_what_it_wrote_and_what_is_wrong(demos, tmp_path, capsys):
    words = ["data", "pack", str(demos), "--image-size", "10"]
    assert main([*words, "--out", str(tmp_path / "packed")]) == 0
    assert "packed: 3 episodes (15 ticks) with frames of at most 10x10" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "packed")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "packed"), "--overwrite"]) == 0
    for options, told in (
        (["--out", str(demos / "packed")], "lie within each other"),
        (["--out", str(tmp_path / "p2"), "--jpeg-quality", "0"], "--jpeg-quality is 0"),
        (["--out", str(tmp_path / "p2"), "--file-gib", "0"], "--file-gib is 0"),
        (["--out", str(tmp_path / "p2"), "--cameras", "none"], "has no camera"),
    ):
        assert main([*words, *options]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(UserError, match="does not exist"):
        pack(tmp_path / "nothing", tmp_path / "p2", 10)
