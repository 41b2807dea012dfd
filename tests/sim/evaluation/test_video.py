"""Videos of episodes: frames as people see them, and files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import imageio
import numpy as np
import pytest
from PIL import Image

from ttm.policy import UserError
from ttm.sim.video import CAPTION_PX, EpisodeVideo, compose_frame

INFO = {"instruction": "open the top drawer", "tick": 3, "time_s": 0.6, "success": False}
SCENE = np.full((90, 121, 3), 200, np.uint8)
CAMERAS = {"head": np.zeros((8, 8, 3), np.uint8), "wrist": np.full((8, 8, 3), 255, np.uint8)}


def test_frame_holds_scene_cameras_and_caption() -> None:
    frame = compose_frame(SCENE, CAMERAS, INFO)
    assert frame.dtype == np.uint8
    assert frame.shape == (90 + CAPTION_PX, 166, 3)  # 121 + 45 wide, both even
    assert (frame[:90, :121] == 200).all()
    assert (frame[40:45, 125:160] == 0).all()  # the head camera, above
    assert (frame[80:90, 125:160] == 255).all()  # the wrist camera, below
    assert not np.array_equal(
        frame[90:], compose_frame(SCENE, CAMERAS, {**INFO, "success": True})[90:]
    )


def test_video_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "episode.mp4"
    with EpisodeVideo(path, rate_hz=5.0) as video:
        for tick in range(4):
            video.add(SCENE, CAMERAS, {**INFO, "tick": tick})
    with imageio.get_reader(path) as reader:
        assert reader.get_meta_data()["codec"] == "h264"
        assert reader.get_meta_data()["size"] == (166, 126)
        assert reader.count_frames() >= 12


def test_moving_picture_repeats_and_shows_every_tick(tmp_path: Path) -> None:
    path = tmp_path / "episode.webp"
    with EpisodeVideo(path, rate_hz=5.0) as video:
        for tick in range(4):
            video.add(SCENE, CAMERAS, {**INFO, "tick": tick})
    with Image.open(path) as picture:
        assert picture.size == (166, 126)
        assert picture.n_frames >= 4
        assert picture.info["loop"] == 0


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.mp4 or \.webp"):
        EpisodeVideo(tmp_path / "episode.avi", rate_hz=5.0)


def fall_over(path: Path) -> None:
    with EpisodeVideo(path, rate_hz=5.0) as video:
        video.add(SCENE, CAMERAS, INFO)
        raise RuntimeError("fell over")


@pytest.mark.parametrize("name", ["a.mp4", "a.webp"])
def test_broken_off_episode_leaves_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeError, match="fell over"):
        fall_over(tmp_path / name)
    assert not list(tmp_path.iterdir())
