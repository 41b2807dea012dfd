"""Values, frames and links that are not what they seem: refused in one line, or read correctly."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from ttm.policy import ActionPart, CameraSpec, PolicySpec

TICKS = 6
FRONT = "obs/front"
RNG = np.random.default_rng(7)
SMOOTH = np.tile(np.linspace(10, 240, 8, dtype=np.uint8)[:, None, None], (1, 8, 3))  # (8, 8, 3)
FRAMES = np.stack([np.roll(SMOOTH, tick, axis=0) for tick in range(TICKS)])
FRAMES[..., 2] //= 2  # so that the order of the channels shows


def encoded(frame: Any, kind: str = "PNG", mode: str = "RGB") -> Any:
    buffer = io.BytesIO()
    Image.fromarray(frame).convert(mode).save(buffer, format=kind, quality=95)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def set_frames(values: Any, **options: Any):
    """Store `values` as the frames of both demos."""

    def change(file: Any) -> None:
        for demo in file["data"].values():
            del demo[FRONT]
            demo.create_dataset(FRONT, data=values, **options)

    return change


def set_rows(rows: list[Any], padded: bool = False):
    """Store encoded images, of their own lengths or padded with zeros to the longest."""

    def change(file: Any) -> None:
        longest = max(map(len, rows))
        for demo in file["data"].values():
            del demo[FRONT]
            if padded:
                demo[FRONT] = np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
                continue
            stored = demo.create_dataset(FRONT, (len(rows),), h5py.vlen_dtype(np.uint8))
            for tick, row in enumerate(rows):
                stored[tick] = row

    return change


PNGS = [encoded(frame) for frame in FRAMES]

CONVERTED = {
    "uint8": set_frames(FRAMES),
    "channels first": set_frames(FRAMES.transpose(0, 3, 1, 2)),
    "float to 1": set_frames(FRAMES / 255),
    "float to 255": set_frames(FRAMES.astype(np.float32)),
    "float, channels first": set_frames((FRAMES / 255).transpose(0, 3, 1, 2).astype(np.float16)),
    "alpha": set_frames(np.concatenate([FRAMES, np.full((TICKS, 8, 8, 1), 9, np.uint8)], axis=3)),
    "images": set_rows(PNGS),
    "padded images": set_rows(PNGS, padded=True),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_frames_of_all_kinds_are_read_as_rgb(small_file, answer, case: str) -> None:
    found = answer(small_file(CONVERTED[case]))
    assert found.refusal is None
    for episode in found.episodes:
        np.testing.assert_allclose(episode.frames("front").astype(int), FRAMES, atol=1)
        assert (episode.observation(2)["front"] == episode.frames("front")[2]).all()


def test_frames_of_jpeg_are_read_grey_ones_too(small_file, answer) -> None:
    for mode in ("RGB", "L"):
        rows = [encoded(frame, "JPEG", mode) for frame in FRAMES]
        found = answer(small_file(set_rows(rows, padded=True)))
        assert found.refusal is None
        grey = np.stack(
            [np.asarray(Image.fromarray(f).convert(mode).convert("RGB")) for f in FRAMES]
        )
        difference = found.episodes[0].frames("front").astype(int) - grey
        assert np.abs(difference).mean() < 12


def cut_short(row: Any) -> Any:
    return row[: len(row) // 2]


def bomb() -> Any:
    """Return an image that unpacks to 400 MB."""
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, format="PNG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


BROKEN = {
    "garbage": ([*PNGS[:3], np.arange(50, dtype=np.uint8), *PNGS[4:]], "at tick 3: the image"),
    "cut short": ([*PNGS[:3], cut_short(PNGS[3]), *PNGS[4:]], "at tick 3: the image"),
    "none": ([*PNGS[:3], np.zeros(0, np.uint8), *PNGS[4:]], "at tick 3: the image"),
    "first one cut short": (
        [cut_short(PNGS[0]), *PNGS[1:]],
        "at tick 0: the image does not decode",
    ),
    "another size": ([*PNGS[:5], encoded(FRAMES[0, :4])], "at tick 5 has shape (4, 8, 3)"),
    "bomb": (PNGS[:5], "at tick 5: the image does not decode"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_images_that_do_not_decode_are_told(small_file, answer, case: str) -> None:
    rows, words = BROKEN[case]
    found = answer(small_file(set_rows([*rows, bomb()] if case == "bomb" else rows)))
    assert found.refusal is not None
    assert words in found.faults


def test_check_starts_no_program_for_a_frame(small_file, tmp_path) -> None:
    """Pillow would start Ghostscript, the command gs, for what begins as PostScript."""
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    ghostscript.chmod(0o755)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    path = small_file(set_rows([*PNGS[:3], np.frombuffer(script, np.uint8), *PNGS[4:]]))
    checked = subprocess.run(
        [sys.executable, "-m", "ttm.training.cli", "data", "check", str(path)],
        env={**os.environ, "PATH": f"{ghostscript.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    assert "at tick 3: the image does not decode" in checked.stdout + checked.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (FRAMES.astype(np.uint16), "uint16 of shape (T, 8, 8, 3), neither"),
        (FRAMES[..., :1], "one channel (grey, depth or segmentation)"),
        (FRAMES[..., 0], "uint8 of shape (T, 8, 8), neither RGB frames nor vectors"),
        (np.full(TICKS, b"front.png"), "neither RGB frames nor vectors"),
        (FRAMES.astype(complex), "neither RGB frames nor vectors"),
        (np.zeros(TICKS, [("x", "f4")]), "neither RGB frames nor vectors"),
        (np.zeros((TICKS, 4), np.int64), "int64 values rather than measurements"),
        (np.float32(3), "a single value"),
    ],
)
def test_members_that_are_not_used_are_told(small_file, answer, frames: Any, reason: str) -> None:
    found = answer(small_file(set_frames(frames)))
    assert found.refusal is None
    (front,) = [member for member in found.episodes.members if member.name == "front"]
    assert reason in front.reason
    assert found.episodes.spec.cameras == ()


def test_float_frames_of_another_range_need_to_be_told(small_file, answer, tmp_path) -> None:
    path = small_file(set_frames(FRAMES / 127.5 - 1))
    assert "values from -0.9" in answer(path).refusal
    (tmp_path / "spec.yaml").write_text("cameras: {front: {values: [-1, 1]}}")
    found = answer(path, spec=tmp_path / "spec.yaml")
    np.testing.assert_allclose(found.episodes[0].frames("front").astype(int), FRAMES, atol=1)


@pytest.mark.parametrize("key", ["actions", "obs/joints"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_are_faults(small_file, answer, key: str, value: float) -> None:
    def change(file: Any) -> None:
        file[f"data/demo_0/{key}"][3] = value

    assert f"{key}[0, 1" in answer(small_file(change)).faults


@pytest.mark.parametrize("period", [200, 2e8])
def test_timestamps_in_another_unit_than_seconds_are_told(
    small_file, answer, tmp_path: Path, period: float
) -> None:
    def change(file: Any) -> None:
        for demo in file["data"].values():
            demo["timestamps"] = (period * np.arange(TICKS)).astype(np.int64)

    path = small_file(change)
    found = answer(path)
    assert "not in seconds" in found.refusal
    assert "not in seconds" in found.faults
    (tmp_path / "spec.yaml").write_text("rate_hz: 5")
    assert answer(path, spec=tmp_path / "spec.yaml").episodes.spec.rate_hz == 5


def test_frames_without_a_pixel_are_not_used(small_file, answer) -> None:
    found = answer(small_file(set_frames(np.zeros((TICKS, 0, 8, 3), np.uint8))))
    assert found.refusal is None
    assert found.episodes.spec.cameras == ()


def outside_text(folder: Path) -> Path:
    """Write a text that must never be seen as pixels."""
    path = folder / "secret.txt"
    path.write_bytes(b"secret " * 400)
    return path


def external_values(file: Any) -> None:
    secret = outside_text(Path(file.filename).parent)
    del file["data/demo_0/obs/front"]
    file["data/demo_0"].create_dataset(
        FRONT, (TICKS, 8, 8, 3), np.uint8, external=[(str(secret), 0, TICKS * 8 * 8 * 3)]
    )


def virtual_values(file: Any) -> None:
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as source:
        source["x"] = FRAMES
    layout = h5py.VirtualLayout(FRAMES.shape, np.uint8)
    layout[:] = h5py.VirtualSource(str(other), "x", FRAMES.shape)
    del file["data/demo_0/obs/front"]
    file["data/demo_0"].create_virtual_dataset(FRONT, layout)


def external_link(place: str, target: str):
    def change(file: Any) -> None:
        other = Path(file.filename).with_name("other.h5")
        with h5py.File(other, "w") as source:
            file.copy("data", source)
        del file[place]
        file[place] = h5py.ExternalLink(str(other), target)

    return change


def external_link_beside(key: str):
    """Link the optional dataset `key` of a demo to another file."""

    def change(file: Any) -> None:
        values = np.ones(384 if key == "language_embedding" else TICKS, np.float32)
        with h5py.File(Path(file.filename).with_name("other.h5"), "w") as source:
            source["x"] = values
        file["data/demo_0"][key] = h5py.ExternalLink("other.h5", "x")

    return change


def weights_elsewhere(file: Any) -> None:
    values = Path(file.filename).with_name("weights.bin")
    values.write_bytes(np.ones(TICKS, np.float32).tobytes())
    external = [(str(values), 0, 4 * TICKS)]
    file["data/demo_0"].create_dataset("loss_weights", (TICKS,), np.float32, external=external)


def soft_to_external(file: Any) -> None:
    external_link("data/demo_0/obs/front", "/data/demo_0/obs/front")(file)
    for demo in file["data"].values():
        demo["obs/hidden"] = h5py.SoftLink("/data/demo_0/obs/front")


OUTSIDE = {
    "external storage": external_values,
    "virtual dataset": virtual_values,
    "external link to frames": external_link("data/demo_0/obs/front", "/data/demo_0/obs/front"),
    "external link to actions": external_link("data/demo_0/actions", "/data/demo_0/actions"),
    "external link to a demo": external_link("data/demo_0", "/data/demo_0"),
    "external link to all data": external_link("data", "/data"),
    "soft link to an external one": soft_to_external,
    "external storage of loss weights": weights_elsewhere,
} | {
    f"external link to {key}": external_link_beside(key)
    for key in ("loss_weights", "language_embedding", "rewards", "dones")
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_data_of_other_files_are_read_only_if_allowed(small_file, answer, case: str) -> None:
    path = small_file(OUTSIDE[case])
    found = answer(path)
    assert "not followed" in found.refusal
    assert "--allow-external" in found.refusal
    assert "not followed" in found.faults
    allowed = answer(path, allow_external=True)
    assert allowed.refusal is None
    assert len(allowed.episodes) == 2


def test_a_layout_is_not_recognised_behind_an_external_link(small_file, answer) -> None:
    def change(file: Any) -> None:
        with h5py.File(Path(file.filename).with_name("other.h5"), "w") as source:
            source["data/demo_1/states"] = source["data/demo_1/actions"] = np.zeros((TICKS, 3))
        del file["data"]
        file["data"] = h5py.ExternalLink("other.h5", "data")

    path = small_file(change)
    assert "not followed" in answer(path).refusal
    assert "robosuite" in answer(path, allow_external=True).refusal


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_out_of_the_folder_are_followed_only_if_allowed(
    small_file, answer, tmp_path, kind: str
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    shutil.move(small_file(), outside / "b.hdf5")
    target = outside if kind == "folder" else outside / "b.hdf5"
    (inside / ("b" if kind == "folder" else "b.hdf5")).symlink_to(target)
    (inside / "loop").symlink_to(inside)
    assert "outside of" in answer(inside).refusal
    assert len(answer(inside, allow_external=True).episodes) == 2
    if kind == "folder":
        assert "outside of" in answer(inside / "b*" / "*.hdf5").refusal


def test_copies_are_found_however_they_came(small_file, answer, tmp_path) -> None:
    path = small_file()
    shutil.copy(path, tmp_path / "copy.hdf5")
    os.link(path, tmp_path / "hard.hdf5")
    (tmp_path / "soft.hdf5").symlink_to(path)
    found = answer(tmp_path)
    assert not found.fails
    assert found.faults.count("it is a copy of") == 6  # three more of each of the two demos


def test_a_stored_spec_with_odd_values_is_refused(small_file, answer) -> None:
    spec = PolicySpec("r", (CameraSpec("front", 8, 8),), (), (ActionPart("arm", 3, "m"),), 5.0)
    whole = json.loads(spec.to_json())
    camera, part = whole["cameras"][0], whole["actions"][0]
    for changes in (
        {"cameras": [camera | {"height": "8"}]},
        {"cameras": [camera | {"name": 3}]},
        {"cameras": ["front"]},
        {"actions": [part | {"size": -3}]},
        {"actions": ["arm"]},
        {"actions": []},
        {"rate_hz": 0},
        {"rate_hz": float("nan")},
        {"rate_hz": float("inf")},
    ):
        text = json.dumps(whole | changes)
        path = small_file(lambda file, text=text: file["data"].attrs.update(ttm_spec=text))
        assert answer(path).refusal is not None, changes
