"""What convert refuses: a data set that leads out of itself, and files that it does not know."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from ttm.datasets import open_dataset
from ttm.datasets.formats.table import recognise
from ttm.policy import UserError
from ttm.training.cli import main

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
zarr = pytest.importorskip("zarr")

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


@pytest.fixture
def lerobot(demos: Any, convert: Callable[..., Any]) -> Path:
    """A data set of version 2.1, of PNGs."""
    target, _ = convert(demos, "lerobot", "lerobot-v2.1", video_codec="none")
    return Path(target)


def edit_info(root: Path, **changes: Any) -> dict[str, Any]:
    path = root / "meta/info.json"
    info: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(info | changes))
    return info


def with_videos(lerobot: Path, video_path: str) -> None:
    """Say of the camera's frames that they lie in videos at this path."""
    features = edit_info(lerobot)["features"]
    camera = next(key for key in features if key.startswith("observation.images"))
    features[camera]["dtype"] = "video"
    edit_info(lerobot, features=features, video_path=video_path)


@pytest.mark.parametrize("absolute", [True, False])
def test_lerobots_data_of_another_place_are_refused(lerobot, secret, refused, absolute) -> None:
    names = "episode_{episode_index:06d}.parquet"
    for file in (lerobot / "data/chunk-000").iterdir():
        shutil.copy(file, secret.parent)
    pattern = str(secret.parent) if absolute else "../secret"
    edit_info(lerobot, data_path=f"{pattern}/{names}")
    refused(lerobot, "outside of")


@pytest.mark.parametrize("absolute", [True, False])
def test_lerobots_videos_of_another_place_are_refused(lerobot, secret, refused, absolute) -> None:
    with_videos(lerobot, str(secret) if absolute else "../secret/notes.txt")
    refused(lerobot, "outside of")


def test_a_text_is_not_rendered_as_a_video(lerobot, convert) -> None:
    """FFmpeg does so, if the name of the file ends in .txt."""
    (lerobot / "own.txt").write_bytes(SECRET)
    with_videos(lerobot, "own.txt")
    with pytest.raises(UserError, match=r"own\.txt: this video cannot be read"):
        convert(lerobot, "stolen")


@pytest.mark.parametrize("absolute", [True, False])
def test_lerobots_images_of_another_place_are_refused(lerobot, secret, refused, absolute) -> None:
    picture = secret.with_name("others.png")
    Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(picture)
    for file in (lerobot / "data/chunk-000").iterdir():
        rows = pq.read_table(file)
        camera = next(key for key in rows.column_names if key.startswith("observation.images"))
        path = str(picture) if absolute else "../secret/others.png"
        column = pa.array([{"bytes": None, "path": path}] * len(rows))
        at = rows.column_names.index(camera)
        pq.write_table(rows.set_column(at, camera, column), file)
    refused(lerobot, "outside of")


@pytest.mark.parametrize("item", ["data", "data/chunk-000", "meta/tasks.jsonl"])
def test_lerobots_links_to_another_place_are_refused(lerobot, secret, refused, item) -> None:
    shutil.move(lerobot / item, secret.parent / "moved")
    (lerobot / item).symlink_to(secret.parent / "moved")
    refused(lerobot, "outside of")


def test_a_field_of_a_path_that_is_not_lerobots_is_refused(lerobot, convert) -> None:
    for field in ("{episode_index:9999999d}", "{episode_index.__class__}", "{other}"):
        edit_info(lerobot, data_path=f"data/{field}.parquet")
        with pytest.raises(UserError, match="has the field"):
            convert(lerobot, "stolen")


@pytest.mark.parametrize("to", ["lerobot", "lerobot-v2.1", "diffusion-policy"])
def test_nothing_is_written_outside_by_the_name_of_a_camera(tmp_path, demos, convert, to) -> None:
    """Formats that have a folder for each camera would write to where its name leads."""
    name = "x/../../../../../written"
    for file in {episode.path for episode in demos}:
        with h5py.File(file, "a") as changed:
            described = json.loads(changed["data"].attrs["ttm_spec"])
            old, described["cameras"][0]["name"] = described["cameras"][0]["name"], name
            changed["data"].attrs["ttm_spec"] = json.dumps(described)
            for demo in changed["data"].values():
                demo.copy(f"obs/{old}", f"obs/{name}")
    with pytest.raises(UserError, match="give one without /"):
        convert(demos, "deep/er/target", to)
    assert not list(tmp_path.rglob("written"))


def test_nothing_is_written_outside_by_the_name_of_lerobots_camera(tmp_path, lerobot, convert):
    info = edit_info(lerobot)
    old = next(key for key in info["features"] if key.startswith("observation.images"))
    new = "observation.images.x/../../../../../written"
    features = {new if key == old else key: value for key, value in info["features"].items()}
    edit_info(lerobot, features=features)
    for file in (lerobot / "data").rglob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(rows.rename_columns([{old: new}.get(n, n) for n in rows.column_names]), file)
    (lerobot / "meta/ttm_spec.json").unlink(missing_ok=True)
    with pytest.raises(UserError, match="give one without /"):
        convert(lerobot, "deep/er/target", "lerobot-v2.1")
    assert not list(tmp_path.rglob("written"))


def test_a_pipe_in_a_data_set_is_refused(lerobot, convert) -> None:
    """To open it would wait for ever."""
    file = next((lerobot / "data/chunk-000").iterdir())
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="is a pipe"):
        convert(lerobot, "stolen")


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    """A replay buffer in zarr, one chunk for each frame."""
    root = zarr.open_group(str(tmp_path / "buffer.zarr"), mode="w", zarr_format=2)
    shape = (1, *FRAMES[1:])
    root.create_array("data/img", shape=FRAMES, chunks=shape, dtype=np.uint8, compressors=None)
    root["data/img"][:] = np.ones(FRAMES, np.uint8)
    root.create_array("data/action", data=np.ones((TICKS, 2), np.float32))
    root.create_array("meta/episode_ends", data=np.array([TICKS]))
    return tmp_path / "buffer.zarr"


@pytest.mark.parametrize("item", ["data/img/1.0.0.0", "data/img"])
def test_zarrs_chunks_of_another_place_are_refused(buffer, secret, refused, convert, item) -> None:
    chunk = SECRET[: int(np.prod(FRAMES[1:]))]
    secret.write_bytes(chunk)
    if item == "data/img":
        shutil.move(buffer / item, secret.parent / "moved")
        (secret.parent / "moved/1.0.0.0").write_bytes(chunk)
        (buffer / item).symlink_to(secret.parent / "moved")
    else:
        (buffer / item).unlink()
        (buffer / item).symlink_to(secret)
    refused(buffer, "outside of")
    allowed, _ = convert(buffer, "allowed", allow_external=True)
    assert open_dataset(allowed)[0].frames("img")[1].tobytes() == chunk


def test_zarrs_pickles_are_not_loaded(buffer, convert, tmp_path) -> None:
    """To unpickle a chunk would run the program in it; zarr refuses to."""

    class Program:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    described = json.loads((buffer / "data/action/.zarray").read_text())
    described["compressor"] = {"id": "pickle", "protocol": 5}
    (buffer / "data/action/.zarray").write_text(json.dumps(described))
    (buffer / "data/action/0.0").write_bytes(pickle.dumps(Program()))
    with pytest.raises(UserError, match="pickle"):
        convert(buffer, "stolen")
    assert not (tmp_path / "ran").exists()


def test_zarrs_chunks_that_fill_the_memory_are_refused(buffer, convert) -> None:
    described = json.loads((buffer / "data/img/.zarray").read_text())
    described |= {"shape": [TICKS, 2**15, 2**15, 3], "chunks": [1, 2**15, 2**15, 3]}
    (buffer / "data/img/.zarray").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"img has chunks of 3\.0 GiB each"):
        convert(buffer, "stolen")


def test_rlds_is_named_with_the_next_command(tmp_path):
    (tmp_path / "rlds" / "1.0.0").mkdir(parents=True)
    (tmp_path / "rlds" / "1.0.0" / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match=r"RLDS.*not read as it is;.*ttm data convert"):
        recognise(tmp_path / "rlds")


def test_robosuites_states_are_named_with_the_next_command(tmp_path):
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        file["data/demo_1/states"] = np.zeros((3, 5))
        file["data/demo_1/actions"] = np.zeros((3, 7))
    with pytest.raises(UserError, match="dataset_states_to_obs"):
        recognise(tmp_path / "demo.hdf5")


def test_a_name_that_no_file_can_have_is_told(tmp_path):
    with pytest.raises(UserError, match="give an HDF5 file"):
        recognise(tmp_path / ("x" * 300))


def test_unknown_files_are_named(tmp_path, capsys):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["pixels"] = np.zeros(3)
    with pytest.raises(UserError, match="has pixels at its top, which is none of the known"):
        recognise(tmp_path / "other.hdf5")
    (tmp_path / "torn.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n torn")
    for name in ("torn.hdf5", "nowhere", "other.hdf5"):
        assert main(["data", "convert", str(tmp_path / name), str(tmp_path / "out")]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("ttm: error: ")
        assert errors.count("\n") == 1


def test_what_no_reader_explains_is_one_line_too(tmp_path, record, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise KeyError("no such member")

    source = record(tmp_path / "demos" / "episode_00000.hdf5")
    monkeypatch.setattr("ttm.datasets.formats.hdf5.read_source", fail)
    assert main(["data", "convert", str(source), str(tmp_path / "out")]) == 2
    assert "cannot be converted; as ttm it is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("marks", "name"),
    [({"ep_meta": "{}"}, "robomimic"), ({"ttm_spec": "{}"}, "ttm"), ({}, "robomimic")],
)
def test_hdf5_files(tmp_path, marks, name):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 7))
        file["data/demo_0/obs/x"] = np.zeros((3, 7))
        place = file["data"] if "ttm_spec" in marks else file["data/demo_0"]
        place.attrs.update(marks)
    assert recognise(tmp_path / "a.hdf5") == name
