"""Videos of episodes: frames as people see them, and files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import imageio
import numpy as np
import pytest
from PIL import Image

from ttm.policy import UserError
from ttm.sim.video import INSET, EpisodeVideo, compose_frame

SCENE = np.full((90, 121, 3), 200, np.uint8)
CAMERAS = {"head": np.zeros((8, 8, 3), np.uint8), "wrist": np.full((8, 8, 3), 255, np.uint8)}


def test_cameras_are_in_the_corner_of_the_scene() -> None:
    frame = compose_frame(SCENE, CAMERAS)
    assert frame.dtype == np.uint8
    assert frame.shape == (90, 120, 3), "both even"
    side = 90 // INSET
    assert (frame[: 90 - side - 10] == 200).all()
    assert (frame[:, : 120 - 2 * side - 20] == 200).all()
    wrist = frame[90 - side : 84, 120 - side : 114]
    head = frame[90 - side : 84, 114 - 2 * side : 108 - side]
    assert (wrist == 255).all()
    assert (head == 0).all()


def test_video_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "episode.mp4"
    with EpisodeVideo(path, rate_hz=5.0) as video:
        for tick in range(4):
            video.add(SCENE - np.uint8(20 * tick), CAMERAS)
    with imageio.get_reader(path) as reader:
        assert reader.get_meta_data()["codec"] == "h264"
        assert reader.get_meta_data()["size"] == (120, 90)
        assert reader.count_frames() >= 12


def test_moving_picture_repeats_and_shows_every_tick(tmp_path: Path) -> None:
    path = tmp_path / "episode.webp"
    with EpisodeVideo(path, rate_hz=5.0) as video:
        for tick in range(4):
            video.add(SCENE - np.uint8(20 * tick), CAMERAS)
    with Image.open(path) as picture:
        assert picture.size == (120, 90)
        assert picture.n_frames >= 4
        assert picture.info["loop"] == 0


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.mp4 or \.webp"):
        EpisodeVideo(tmp_path / "episode.avi", rate_hz=5.0)


def fall_over(path: Path) -> None:
    with EpisodeVideo(path, rate_hz=5.0) as video:
        video.add(SCENE, CAMERAS)
        raise RuntimeError("fell over")


@pytest.mark.parametrize("name", ["a.mp4", "a.webp"])
def test_broken_off_episode_leaves_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeError, match="fell over"):
        fall_over(tmp_path / name)
    assert not list(tmp_path.iterdir())
