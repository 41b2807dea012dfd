"""ALOHA's files: raw frames and padded JPEGs in either order of colours, and ACT's expectations."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from ttm.datasets import open_dataset
from ttm.datasets.frames import decode_image
from ttm.policy import UserError

RED = np.zeros((8, 10, 3), np.uint8) + np.array([200, 40, 10], np.uint8)


def jpeg(frame: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=90)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def aloha(
    folder: Path, *, compressed: bool = False, order: str = "rgb", mobile: bool = False
) -> Path:
    """Two episodes as ALOHA's recorder writes them."""
    folder.mkdir()
    frame = RED if order == "rgb" else np.ascontiguousarray(RED[..., ::-1])
    for number, ticks in enumerate((4, 3)):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs.update(sim=False, compress=compressed)
            file["action"] = np.arange(14 * ticks).reshape(ticks, 14) / 7
            for name in ("qpos", "qvel", "effort"):
                file[f"observations/{name}"] = np.full((ticks, 14), number + 0.5)
            frames = np.stack([frame] * ticks)
            if compressed:
                data = jpeg(frame)
                frames = np.stack([np.pad(data, (0, 5))] * ticks)
                file["compress_len"] = np.full((1, ticks), len(data))
            file["observations/images/cam_high"] = frames
            if mobile:
                file["base_action"] = np.full((ticks, 2), 0.25)
    return folder


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_frames_come_out_red(tmp_path, convert, compressed, order):
    source = aloha(tmp_path / "aloha", compressed=compressed, order=order)
    target, done = convert(source, "out", colour_order=order)
    assert done.source_format == "aloha"
    found = open_dataset(target)
    assert [each.num_samples for each in found] == [4, 3]
    # PIL's JPEGs have colour at half the resolution, but the frame is of one colour.
    np.testing.assert_allclose(found[0].frames("cam_high").astype(int), np.stack([RED] * 4), atol=3)
    assert found.spec.rate_hz == 50
    assert {vector.name for vector in found.spec.proprioception} == {"qpos", "qvel", "effort"}
    expected = (np.arange(42).reshape(3, 14) / 7).astype(np.float32)
    np.testing.assert_array_equal(found[1].actions, expected)
    assert any("50 Hz is ALOHA's" in note for note in done.notes)


def test_the_order_of_colours_is_asked_for(tmp_path, convert, demos):
    with pytest.raises(UserError, match="do not say their order of colours; give --colour-order"):
        convert(aloha(tmp_path / "aloha"), "out")
    with pytest.raises(UserError, match="give --colour-order rgb for JPEGs"):
        convert(demos, "out", "aloha", jpeg_quality=90)


def test_jpegs_stay_the_same_bytes_where_the_order_is_right(tmp_path, convert):
    source = aloha(tmp_path / "aloha", compressed=True)
    target, _ = convert(source, "out.hdf5", colour_order="rgb")
    with h5py.File(target) as file:
        np.testing.assert_array_equal(file["data/demo_0/obs/cam_high"][0], jpeg(RED))


def test_the_base_of_mobile_aloha_follows_the_arms(tmp_path, convert):
    source = aloha(tmp_path / "aloha", mobile=True)
    target, _ = convert(source, "out", colour_order="rgb", rate_hz=25, instruction="serve")
    found = open_dataset(target)
    assert found.spec.action_size == 16
    assert (found[0].actions[:, 14:] == 0.25).all()
    assert found.spec.rate_hz == 25
    assert found[0].instruction == "serve"


def test_a_round_trip_changes_nothing(demos, convert, assert_equal):
    target, _ = convert(demos, "aloha", "aloha")
    back, _ = convert(target, "back")
    assert open_dataset(back).spec == demos.spec
    assert_equal(demos, open_dataset(back))


def test_written_files_have_what_acts_loader_reads(demos, convert):
    """The members are those of ACT's `EpisodicDataset.__getitem__`."""
    target, _ = convert(demos, "aloha", "aloha", jpeg_quality=95, colour_order="bgr")
    with h5py.File(target / "episode_1.hdf5") as root:
        assert root.attrs["sim"]
        assert root.attrs["compress"]
        np.testing.assert_array_equal(root["/action"], demos[1].actions)
        np.testing.assert_array_equal(root["/observations/qpos"], demos[1].proprioception("joints"))
        assert root["/observations/qvel"].shape == root["/observations/qpos"].shape
        stored = root["/observations/images/head"]
        length = root["compress_len"][0, 2]
        assert not stored[2][length:].any()
        # OpenCV would give this array reversed once more, which is RGB.
        seen = decode_image(stored[2])[..., ::-1].astype(int)
        assert abs(seen - demos[1].frames("head", 2, 3)[0]).mean() < 12


def test_damage_is_one_line(tmp_path, convert):
    source = aloha(tmp_path / "aloha", compressed=True)
    with h5py.File(source / "episode_1.hdf5", "a") as file:
        file["observations/images/cam_high"][2] = 0
    with pytest.raises(UserError, match=r"episode_1\.hdf5: frame 2 of .*cam_high is damaged"):
        convert(source, "out", colour_order="bgr")
    with h5py.File(source / "episode_1.hdf5", "a") as file:
        file.attrs["masks"] = "not JSON"
    with pytest.raises(UserError, match=r"episode_1\.hdf5: HDF5 cannot read it"):
        convert(source, "out", colour_order="bgr")
    with h5py.File(source / "episode_1.hdf5", "a") as file:
        del file.attrs["masks"]
        del file["observations/images/cam_high"]
    with pytest.raises(UserError, match="no images of camera 'cam_high', which its neighbours"):
        convert(source, "out", colour_order="bgr")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("member", "values", "message"),
    [
        (
            "observations/qpos",
            np.zeros((2, 14)),
            r"qpos has shape \(2, 14\), but the spec needs \(3, 14\)",
        ),
        ("dones", np.zeros(2), r"dones has shape \(2,\), but the spec needs \(3,\)"),
        (
            "observations/images/cam_high",
            np.stack([np.pad(jpeg(RED[:4]), (0, 5))] * 3),
            "has a frame of 10x4 pixels, not 10x8",
        ),
    ],
)
def test_an_episode_of_other_shapes_is_refused(tmp_path, convert, member, values, message):
    source = aloha(tmp_path / "aloha", compressed=True)
    with h5py.File(source / "episode_1.hdf5", "a") as file:
        if member in file:
            del file[member]
        file[member] = values
    with pytest.raises(UserError, match=message):
        convert(source, "out", colour_order="rgb")
