"""`ttm data show`: the tables that it prints, and the contact sheets that it writes if asked."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
from PIL import Image

from ttm.datasets import open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.tools.show import (
    CAPTION_HEIGHT,
    GAP,
    TILE_HEIGHT,
    DataShowCommand,
    contact_sheet,
    evenly_chosen,
    rate_text,
    spaced_ticks,
)
from ttm.policy import UserError


@pytest.fixture
def folder(tmp_path, record):
    """Two successful episodes and a failed one."""
    record(tmp_path / "0.hdf5", instruction="open the drawer", task="open_drawer", success=True)
    record(tmp_path / "1.hdf5", instruction="pick up the mug", task="pick", success=True, seed=1)
    record(
        tmp_path / "2.hdf5",
        instruction="pick up the mug",
        task="pick",
        success=False,
        seed=2,
        split="valid",
    )
    return tmp_path


def test_the_tables_tell_what_there_is(folder, capsys):
    assert DataShowCommand(str(folder)).run() == 0
    shown = capsys.readouterr().out
    for words in (
        "3 (train 2, valid 1)",
        "18 (6 to 6 an episode, median 6)",
        "5.00 Hz measured",
        "head 16x12",
        "wrist 8x8",
        "2 of 3",
        "arm[0] (m)",
        "-0.1 to 0.1",
        "0 or 1",
        "elbow (rad)",
    ):
        assert words in shown
    rows = [
        line.split()
        for line in shown.splitlines()
        if "pick up the mug" in line or "open the drawer" in line
    ]
    assert [row[:3] for row in rows] == [["2", "1", "pick"], ["1", "1", "open_drawer"]]


def test_without_sheet_the_working_directory_stays_as_it_was(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    before = sorted(folder.iterdir())
    assert DataShowCommand(str(folder)).run() == 0
    assert list(elsewhere.iterdir()) == []
    assert sorted(folder.iterdir()) == before


def test_titles_do_not_wrap_in_narrow_tables(folder, capsys):
    DataShowCommand(str(folder)).run()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == str(folder)
    assert "Actions and proprioception, by dimension" in lines


def test_a_narrow_terminal_cuts_no_number(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    DataShowCommand(str(folder)).run()
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    DataShowCommand(str(folder)).run()
    narrow = capsys.readouterr().out
    assert "…" not in narrow
    numbers = r"-?\d+\.\d+"
    assert re.findall(numbers, narrow) == re.findall(numbers, wide)


@pytest.mark.parametrize(("name", "written"), [("s.jpg", "JPEG"), ("s", "PNG")])
def test_the_suffix_chooses_the_format(folder, name, written):
    DataShowCommand(str(folder), sheet=folder / name).run()
    (file,) = folder.glob("s_head.*")
    with Image.open(file) as sheet:
        assert sheet.format == written


def test_a_sheet_that_cannot_be_written_is_told(folder):
    (folder / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*give another --sheet"):
        DataShowCommand(str(folder), sheet=folder / "file" / "s.png").run()
    with pytest.raises(UserError, match=r"s\.txt is no kind of picture"):
        DataShowCommand(str(folder), sheet=folder / "s.txt").run()


def test_there_is_a_sheet_for_each_camera(folder):
    DataShowCommand(str(folder), sheet=folder / "out" / "sheet.png", columns=4, rows=2).run()
    for camera, width in (("head", 160), ("wrist", 120)):
        with Image.open(folder / "out" / f"sheet_{camera}.png") as sheet:
            assert sheet.size == (
                4 * (width + GAP) + GAP,
                2 * (CAPTION_HEIGHT + TILE_HEIGHT + GAP) + GAP,
            )


def test_the_sheet_shows_first_and_last_frame(folder, spec):
    episode = open_dataset(folder)[0]
    sheet = np.asarray(contact_sheet([episode], spec.camera("head"), columns=3))
    tiles = [
        sheet[GAP + CAPTION_HEIGHT :, GAP + i * (160 + GAP) :][:TILE_HEIGHT, :160] for i in range(3)
    ]
    for tile, tick in ((tiles[0], 0), (tiles[2], 5)):
        frame = Image.fromarray(episode.frames("head", tick, tick + 1)[0])
        expected = np.asarray(frame.resize((160, TILE_HEIGHT), Image.Resampling.LANCZOS))
        np.testing.assert_array_equal(
            tile[20:, 20:], expected[20:, 20:]
        )  # the corner carries the tick


def test_ticks_and_episodes_are_evenly_spaced():
    assert spaced_ticks(101, 3) == [0, 50, 100]
    assert spaced_ticks(2, 8) == [0, 1]
    assert evenly_chosen(list(range(7)), 4) == [0, 2, 4, 6]


def test_without_timestamps_no_rate_is_claimed(real_data):
    episodes = open_dataset(real_data / "bridge_v2_jpeg.hdf5")
    assert rate_text(episodes) == "not measured: no timestamps (5 Hz assumed)"


def test_timestamps_that_are_no_seconds_tell_no_rate(tmp_path, record):
    record(tmp_path / "episode_00000.hdf5", 6)
    with h5py.File(tmp_path / "episode_00000.hdf5", "r+") as file:
        file["data/demo_0/timestamps"][...] = np.arange(6) * 1e-310
    text = rate_text(open_dataset(tmp_path))
    assert text == "not measured: timestamps 1e-310 s apart tell no rate (5 Hz assumed)"


def test_the_real_episodes_are_shown(real_data, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    assert (
        DataShowCommand(
            str(real_data / "bridge_v2_robomimic.hdf5"), mask="valid", sheet=sheet
        ).run()
        == 0
    )
    shown = capsys.readouterr().out
    assert "5 (valid 5)" in shown
    with Image.open(sheet) as image:
        assert image.height == 5 * (CAPTION_HEIGHT + TILE_HEIGHT + GAP) + GAP


def test_senseless_options_are_told(folder):
    with pytest.raises(UserError, match="rows is 0"):
        DataShowCommand(str(folder), rows=0).run()
    with pytest.raises(UserError, match="no mask 'best'"):
        DataShowCommand(str(folder), mask="best").run()
    with pytest.raises(UserError, match="'none' cannot stand beside head"):
        DataShowCommand(str(folder), choices=Choices(cameras=("none", "head"))).run()
    with pytest.raises(UserError, match="has no camera for a contact sheet"):
        DataShowCommand(
            str(folder), sheet=folder / "s.png", choices=Choices(cameras=("none",))
        ).run()
