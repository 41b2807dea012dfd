"""A data set that leads out of itself: convert refuses it, and no byte of another file is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets.episode_dataset import open_dataset
from ttm.policy.errors import UserError

HEIGHT, WIDTH, TICKS = 8, 10, 3
FRAMES = (TICKS, HEIGHT, WIDTH, 3)
SECRET = (b"password: correct horse battery staple\n" * 40)[: int(np.prod(FRAMES))]
"""As many bytes as the frames of an episode have."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A text file beside the data set, which nobody named."""
    path = tmp_path / "secret" / "notes.txt"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def refused(convert: Callable[..., Any], tmp_path: Path) -> Callable[[Path, str], None]:
    """refused(source, match) converts, and requires one line that names the place, and no target."""

    def run(source: Path, match: str, **options: Any) -> None:
        with pytest.raises(UserError, match=match) as told:
            convert(source, "stolen", **options)
        assert "\n" not in str(told.value)
        assert "allow-external" in str(told.value)
        assert not [item for item in tmp_path.iterdir() if "stolen" in item.name]

    return run


def aloha(folder: Path, put_frames: Callable[[Any], None]) -> Path:
    folder.mkdir()
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file["action"] = np.ones((TICKS, 2), np.float32)
        file["observations/qpos"] = np.ones((TICKS, 2), np.float32)
        put_frames(file.create_group("observations/images"))
    return folder


def other_file(secret: Path) -> Path:
    """The secret as frames of an HDF5 file, as someone else's data set holds them."""
    path = secret.with_name("others.hdf5")
    with h5py.File(path, "w") as file:
        file["frames"] = np.frombuffer(SECRET, np.uint8).reshape(FRAMES)
    return path


def external_link(images: Any, secret: Path) -> None:
    images["top"] = h5py.ExternalLink(str(other_file(secret)), "frames")


def raw_storage(images: Any, secret: Path) -> None:
    images.create_dataset("top", FRAMES, np.uint8, external=[(str(secret), 0, len(SECRET))])


def virtual(images: Any, secret: Path) -> None:
    layout = h5py.VirtualLayout(FRAMES, np.uint8)
    layout[:] = h5py.VirtualSource(str(other_file(secret)), "frames", FRAMES)
    images.create_virtual_dataset("top", layout)


@pytest.mark.parametrize("put", [external_link, raw_storage, virtual])
def test_alohas_frames_of_another_file_are_refused(tmp_path, secret, refused, convert, put) -> None:
    source = aloha(tmp_path / "aloha", lambda images: put(images, secret))
    refused(source, r"(external link|another file|virtual dataset)", colour_order="rgb")
    allowed, _ = convert(source, "allowed", colour_order="rgb", allow_external=True)
    assert open_dataset(allowed)[0].frames("top").tobytes() == SECRET  # the way does lead there


@pytest.mark.parametrize("key", ["action", "observations/qpos", "rewards"])
def test_alohas_vectors_of_another_file_are_refused(tmp_path, secret, refused, key: str) -> None:
    def whole(images: Any) -> None:
        images["top"] = np.zeros(FRAMES, np.uint8)

    source = aloha(tmp_path / "aloha", whole)
    with h5py.File(source / "episode_0.hdf5", "a") as file:
        shape = (TICKS,) if key == "rewards" else (TICKS, 2)
        file.pop(key, None)
        size = 4 * int(np.prod(shape))
        file.create_dataset(key, shape, np.float32, external=[(str(secret), 0, size)])
    refused(source, "another file", colour_order="rgb")
