"""`ttm bench loader` on tiny frames."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import open_dataset
from ttm.policy import UserError
from ttm.training.bench import loader
from ttm.training.bench.loader import BenchLoaderCommand, FrameSize, write_data


@pytest.fixture(autouse=True)
def _few_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"EPISODES": 2, "TICKS": 9, "BATCH_SIZE": 2, "WINDOW": 3, "STEP_S": 1e-3}
    for name, value in values.items():
        monkeypatch.setattr(loader, name, value)


def test_every_case_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = BenchLoaderCommand(
        sizes=("12", "16x20:8"),
        workers=(0, 1),
        shuffle=1,
        seconds=0.01,
        json=tmp_path / "loader.json",
    )
    assert bench.run() == 0
    figures = json.loads((tmp_path / "loader.json").read_text())
    cases = {(row["size"], row["storage"], row["workers"]) for row in figures["loading"]}
    assert len(cases) == len(figures["loading"]) == 2 * 4 * 2
    for row in figures["loading"]:
        assert row["windows_per_s"] > 0
        assert (row["windows_per_core_s"] is None) == (row["workers"] > 0)
        assert 0 < row["waiting"] < 1
    assert "16x20 to 8" in capsys.readouterr().out


@pytest.mark.parametrize("storage", ["raw", "gzip", "jpeg"])
def test_a_file_holds_its_frames_as_its_name_says(tmp_path: Path, storage: str) -> None:
    write_data(tmp_path / "data.hdf5", FrameSize(12, 16, 8), storage)  # type: ignore[arg-type]
    with h5py.File(tmp_path / "data.hdf5") as file:
        stored = file["data/demo_1/obs/head"]
        assert stored.compression == ("gzip" if storage == "gzip" else None)
        assert (h5py.check_vlen_dtype(stored.dtype) is not None) == (storage == "jpeg")
    episodes = open_dataset(tmp_path / "data.hdf5")
    assert [episode.num_samples for episode in episodes] == [9, 9]
    frames = episodes[1].frames("head")
    assert frames.shape == (9, 12, 16, 3)
    assert len(np.unique(frames)) > 100


@pytest.mark.parametrize("text", ["", "64x", "64x64", "0", "x:3", "480x640:0", "64 64"])
def test_a_size_that_is_none_is_told(text: str) -> None:
    with pytest.raises(UserError, match="--sizes has"):
        FrameSize.parsed(text)


def test_sizes_are_read() -> None:
    assert FrameSize.parsed("224") == FrameSize(224, 224, 224)
    assert FrameSize.parsed("480x640:224") == FrameSize(480, 640, 224)
    assert FrameSize.parsed("64:32").text == "64x64 to 32"


def test_values_that_cannot_be_are_refused() -> None:
    for change in ({"workers": (-1,)}, {"seconds": 0.0}, {"storages": ()}):
        with pytest.raises(UserError, match=f"--{next(iter(change)).replace('_', '-')}"):
            BenchLoaderCommand(**change).run()  # type: ignore[arg-type]
