"""diffusion_policy's replay buffers: round trips, what others write, damage, and zarr's format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ttm.datasets import open_dataset
from ttm.datasets.formats.recording import EPISODES
from ttm.policy import UserError

zarr = pytest.importorskip("zarr")


@pytest.fixture
def pusht(tmp_path: Path) -> Path:
    """A buffer as diffusion_policy's Push-T has it: frames as floats from 0 to 255, two episodes."""
    root = zarr.open_group(str(tmp_path / "pusht.zarr"), mode="w", zarr_format=2)
    frames = np.arange(5)[:, None, None, None] * np.full((5, 6, 8, 3), 50.0)
    arrays = {
        "img": frames.astype(np.float32),
        "state": np.arange(25, dtype=np.float32).reshape(5, 5),
        "action": np.arange(10, dtype=np.float64).reshape(5, 2) / 3,
        "keypoint": np.zeros((5, 9, 2), np.float32),
        "object_pose": np.zeros((5, 3), np.float32),
    }
    for name, values in arrays.items():
        root.create_array(f"data/{name}", data=values)
    root.create_array("meta/episode_ends", data=np.array([3, 5]))
    return tmp_path / "pusht.zarr"


def test_a_round_trip_changes_nothing(demos, convert, assert_equal):
    target, _ = convert(demos, "buffer", "diffusion-policy")
    assert json.loads((target / "data/head/.zarray").read_text())["zarr_format"] == 2
    assert zarr.open_group(str(target))["meta/episode_ends"][:].tolist() == [6, 10]
    back, done = convert(target, "back")
    assert done.source_format == "diffusion-policy"
    assert open_dataset(back).spec == demos.spec
    assert_equal(demos, open_dataset(back))


@pytest.mark.parametrize("wrong", [[300] * 6, [1, 0], ["a"] * 6, {}])
def test_facts_of_an_episode_that_are_damaged_are_told(demos, convert, wrong):
    source, _ = convert(demos, "buffer", "diffusion-policy")
    first, *others = (source / EPISODES).read_text().splitlines()
    lines = [json.dumps({**json.loads(first), "interventions": wrong}), *others]
    (source / EPISODES).write_text("\n".join(lines))
    with pytest.raises(UserError, match=f"^{source}[^\n]*$"):
        convert(source, "back")


@pytest.mark.parametrize("zipped", [False, True])
def test_what_others_write(pusht, convert, zipped):
    source = pusht
    if zipped:
        source = Path(shutil.make_archive(str(pusht), "zip", pusht))
    target, done = convert(source, "out", rate_hz=10, instruction="push the T")
    found = open_dataset(target)
    assert [each.num_samples for each in found] == [3, 2]
    assert found.spec.rate_hz == 10
    assert [vector.name for vector in found.spec.proprioception] == ["state"]
    assert found[1].instruction == "push the T"
    np.testing.assert_array_equal(found[1].proprioception("state")[0], np.arange(15, 20))
    np.testing.assert_array_equal(found[0].frames("img")[:, 0, 0, 0], [0, 50, 100])
    notes = " ".join(done.notes)
    assert "keypoint (neither frames nor float vectors)" in notes
    assert "object_pose (simulator state" in notes
    assert "rounded from float64" in notes


def test_frames_up_to_one_become_bytes(pusht, convert):
    root = zarr.open_group(str(pusht))
    root["data/img"][:] = np.full((5, 6, 8, 3), 0.2, np.float32)
    target, _ = convert(pusht, "out")
    assert (open_dataset(target)[0].frames("img") == 51).all()
    root["data/img"][:] = -1
    with pytest.raises(UserError, match="holds values from -1 to -1"):
        convert(pusht, "out2")


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_the_scale_of_float_frames_is_that_of_all(pusht, convert, white):
    """The first ones may be dark, and a buffer may have rows after its last episode."""
    data = zarr.open_group(str(pusht))["data"]
    values = np.full((40, 6, 8, 3), white / 255, np.float32)
    values[30], values[31], values[39] = white, white / 5, -7
    del data["keypoint"], data["object_pose"]
    for name, rows in {
        "img": values,
        "state": np.zeros((40, 5)),
        "action": np.zeros((40, 2)),
    }.items():
        del data[name]
        data.create_array(name, data=rows, chunks=(7, *rows.shape[1:]))
    zarr.open_group(str(pusht))["meta/episode_ends"][:] = [3, 39]
    target, _ = convert(pusht, "out")
    frames = open_dataset(target)[1].frames("img")
    assert frames[27:30, 0, 0, 0].tolist() == [255, 51, 1]
    data["img"][30] = 1.3 if white == 1 else 300
    with pytest.raises(UserError, match=r"holds values from .* to (1\.3|300); bring them"):
        convert(pusht, "out2")
    data["img"][30] = white
    data["img"][35, 2, 3, 1] = np.nan
    with pytest.raises(UserError, match="holds values from nan to nan; bring them"):
        convert(pusht, "out2")


def test_damage_is_one_line(pusht, convert, tmp_path):
    root = zarr.open_group(str(pusht))
    root["meta/episode_ends"][:] = [3, 9]
    with pytest.raises(UserError, match="is too short"):
        convert(pusht, "out")
    root["meta/episode_ends"][:] = [3, 2]
    with pytest.raises(UserError, match="do not increase"):
        convert(pusht, "out")
    (pusht / "data/img/.zarray").write_text("{")
    with pytest.raises(UserError, match="no whole replay buffer"):
        convert(pusht, "out")
    assert not (tmp_path / "out").exists()


def test_chunks_without_a_file_are_told(demos, convert):
    source, _ = convert(demos, "buffer", "diffusion-policy")
    _, done = convert(source, "whole")
    assert not done.notes
    (source / "data/head/3.0.0.0").unlink()
    _, done = convert(source, "out")
    assert "read as zeros: 1 of data/head;" in done.notes[0]


def test_overwriting_takes_only_a_buffer(demos, convert):
    target, _ = convert(demos, "buffer", "diffusion-policy")
    convert(demos, "buffer", "diffusion-policy", overwrite=True)
    (target / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        convert(demos, "buffer", "diffusion-policy", overwrite=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("member", ["action", "state"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_values_that_no_training_takes_are_refused(pusht, convert, tmp_path, member, value):
    data = zarr.open_group(str(pusht))["data"]
    values = data[member][:].astype(np.float64)
    values[4, 1] = value
    del data[member]
    data.create_array(member, data=values)
    name = {"action": "actions"}.get(member, member)
    with pytest.raises(
        UserError, match=rf"episode 1: {name}\[1, 1\] is NaN, infinite or too large"
    ):
        convert(pusht, "out")
    assert not (tmp_path / "out").exists()
