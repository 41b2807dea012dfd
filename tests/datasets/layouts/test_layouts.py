"""Files in the layouts of thirteen other projects, after their own writers: read correctly, or named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeDataset, check_dataset, open_dataset
from ttm.datasets import dataset as instructions
from ttm.datasets.description import Choices
from ttm.datasets.files import LAYOUTS, layout_of_file
from ttm.datasets.formats.table import FORMATS
from ttm.datasets.tools.arrange import merge_episodes
from ttm.datasets.tools.show import DataShowCommand
from ttm.policy import UserError, load_checkpoint
from ttm.policy.language import EMBEDDING_SIZE
from ttm.training.cli import main
from ttm.training.data import open_all

TICKS = 8
RNG = np.random.default_rng(3)
TOP_IS_WHITE = np.concatenate(
    [np.full((TICKS, 4, 8, 3), 255, np.uint8), np.zeros((TICKS, 4, 8, 3), np.uint8)], axis=1
)
TOP_IS_WHITE[:, 7, 7] = np.arange(TICKS)[:, None]  # so that no frame repeats the one before
"""Frames whose upper half is white."""


def noise(*shape: int) -> Any:
    return RNG.normal(size=(TICKS, *shape))


def arm_and_gripper(size: int = 7) -> Any:
    """Actions whose last dimension is a gripper that is commanded by -1 and 1."""
    actions = noise(size)
    actions[:, -1] = np.where(np.arange(TICKS) < 4, -1, 1)
    return actions


def robosuite_env(rate: int = 20, name: str = "Lift", **more: Any) -> str:
    kwargs = {"control_freq": rate, "camera_heights": 8, **more}
    return json.dumps({"env_name": name, "type": 1, "env_kwargs": kwargs})


def robosuite_observations(demo: Any, prefix: str = "obs") -> None:
    demo[f"{prefix}/agentview_image"] = TOP_IS_WHITE
    demo[f"{prefix}/robot0_eef_pos"] = noise(3)
    demo[f"{prefix}/robot0_gripper_qpos"] = noise(2)
    demo[f"{prefix}/object"] = noise(10)


def robomimic(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs.update(total=2 * TICKS, env_args=robosuite_env())
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs.update(num_samples=TICKS, model_file="<mujoco/>")
            demo["actions"], demo["states"] = arm_and_gripper(), noise(32)
            demo["rewards"], demo["dones"] = np.zeros(TICKS), np.zeros(TICKS, np.int64)
            robosuite_observations(demo)
            robosuite_observations(demo, "next_obs")
        file["mask/train"], file["mask/valid"] = [b"demo_0"], [b"demo_1"]


def mimicgen(path: Path) -> None:
    robomimic(path)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            demo["datagen_info/eef_pose"] = noise(4, 4)
            demo.attrs["src_demo_inds"] = [0]


def robocasa(path: Path) -> None:
    robomimic(path)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            demo.attrs["ep_meta"] = json.dumps({"lang": "open the drawer", "layout_id": 1})
            demo["obs/obj_to_robot0_eef_pos"] = noise(3)
            demo["action_dict/gripper"] = noise(1)


def libero(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs.update(
            env_args=robosuite_env(),
            problem_info=json.dumps({"language_instruction": "put the bowl on the plate"}),
            bddl_file_name="bowl.bddl",
            macros_image_convention="opengl",
            num_demos=2,
        )
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs.update(num_samples=TICKS, init_state=np.zeros(5))
            demo["actions"], demo["states"] = arm_and_gripper(), noise(30)
            demo["robot_states"], demo["rewards"] = noise(9), np.zeros(TICKS)
            demo["obs/agentview_rgb"] = TOP_IS_WHITE[:, ::-1]
            demo["obs/joint_states"], demo["obs/gripper_states"] = noise(7), noise(2)
            demo["obs/ee_states"] = noise(6)


def isaaclab(path: Path) -> None:
    with h5py.File(path, "w") as file:
        env_args = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2})
        file.create_group("data").attrs.update(total=2 * TICKS, env_args=env_args)
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs.update(num_samples=TICKS, seed=number, success=True)
            demo["actions"] = demo["obs/actions"] = arm_and_gripper()
            demo["initial_state/articulation/robot/joint_position"] = noise(9)[:1]
            demo["obs/joint_pos"], demo["obs/eef_pos"] = noise(9), noise(3)
            demo["obs/object"], demo["obs/cube_positions"] = noise(39), noise(9)
            demo["obs/table_cam"] = TOP_IS_WHITE
            demo["obs/datagen_info/object_pose/cube_1"] = noise(4, 4)


def robosuite(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs.update(
            date="1-2-2024", time="10:00:00", repository_version="1.5.1", env="Lift", env_info="{}"
        )
        demo = file.create_group("data/demo_1")
        demo.attrs["model_file"] = "<mujoco/>"
        demo["states"], demo["actions"] = noise(32), arm_and_gripper()


def aloha(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        file["action"], file["observations/qpos"] = noise(14), noise(14)
        file["observations/qvel"] = noise(14)
        file["observations/images/cam_high"] = TOP_IS_WHITE


def padded_aloha(path: Path) -> None:
    aloha(path)
    with h5py.File(path, "a") as file:
        del file["observations/images/cam_high"]
        file["observations/images/cam_high"] = np.zeros((TICKS, 100), np.uint8)
        file["compress_len"] = np.full((1, TICKS), 90.0)
        file.attrs["compress"] = True


def droid(path: Path) -> None:
    """One episode, whose frames are in recordings/MP4 or SVO beside it."""
    with h5py.File(path, "w") as file:
        file.attrs.update(success=True, uuid="IRIS+1", current_task="put the cup away")
        file["action/joint_position"], file["action/gripper_position"] = noise(7), noise()
        file["observation/robot_state/joint_positions"] = noise(7)
        file["observation/timestamp/cameras/1_frame_received"] = noise()


def maniskill(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for number in range(2):
            file[f"traj_{number}/actions"] = noise(8)
            file[f"traj_{number}/obs/agent/qpos"] = noise(9)
            file[f"traj_{number}/success"] = np.zeros(TICKS, bool)


def files_of(**contents: str) -> Callable[[Path], None]:
    """Return a builder of a folder with texts; `__` in names stands for `/`, and `_dot_` for `.`"""

    def build(folder: Path) -> None:
        for name, text in contents.items():
            path = folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return build


READ = {
    "robomimic": robomimic,
    "mimicgen": mimicgen,
    "robocasa": robocasa,
    "libero": libero,
    "isaaclab": isaaclab,
}
VECTORS = {
    "robomimic": {"robot0_eef_pos", "robot0_gripper_qpos"},
    "mimicgen": {"robot0_eef_pos", "robot0_gripper_qpos"},
    "robocasa": {"robot0_eef_pos", "robot0_gripper_qpos"},
    "libero": {"joint_states", "gripper_states", "ee_states"},
    "isaaclab": {"joint_pos", "eef_pos"},
}
INSTRUCTIONS = {"robocasa": "open the drawer", "libero": "put the bowl on the plate"}

CONVERTED = {key for form in FORMATS.values() for key in form.layouts if form.reader}

V3 = json.dumps({"codebase_version": "v3.0", "fps": 30})
V2 = json.dumps({"codebase_version": "v2.1", "fps": 30})
ZARR_GROUP = json.dumps({"zarr_format": 2})
NAMED = {
    "droid": (droid, "hf download cadene/droid_1.0.1", "trajectory.h5"),
    "maniskill": (maniskill, "mani_skill.trajectory.convert_to_lerobot", "trajectory.h5"),
    "robosuite": (robosuite, "dataset_states_to_obs", "demo.hdf5"),
    "aloha": (aloha, "ttm data convert", "episode_0.hdf5"),
    "aloha padded": (padded_aloha, "--colour-order rgb` (or bgr", "episode_0.hdf5"),
    "lerobot_v3": (files_of(meta__info_dot_json=V3), "ttm data convert", "pusht"),
    "lerobot_v2": (files_of(meta__info_dot_json=V2), "ttm data convert", "pusht"),
    "diffusion_policy": (
        files_of(_dot_zgroup=ZARR_GROUP, data__x="", meta__episode_ends___dot_zarray=""),
        "ttm data convert",
        "pusht.zarr",
    ),
    "rosbag2": (files_of(metadata_dot_yaml="", bag_0_dot_db3=""), "ttm data bags", "bag"),
    "rosbag2 mcap": (files_of(bag_0_dot_mcap=""), "ttm data bags", "bag"),
    "rlds": (
        files_of(v1__dataset_info_dot_json="{}", v1__features_dot_json="{}"),
        "any4lerobot/openx2lerobot/openx_rlds.py",
        "bridge",
    ),
}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., EpisodeDataset]:
    def build(name: str, **options: Any) -> EpisodeDataset:
        READ[name](tmp_path / "demo.hdf5")
        return open_dataset(tmp_path / "demo.hdf5", choices=Choices(**options))

    return build


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_what_the_robot_measures(opened, tmp_path, name: str) -> None:
    """Simulator state is left out; grippers of -1 and 1 are binary; frames are upright."""
    episodes = opened(name)
    spec = episodes.spec
    assert {vector.name for vector in spec.proprioception} == VECTORS[name]
    assert [(part.kind, part.size) for part in spec.actions] == [("continuous", 6), ("binary", 1)]
    assert spec.actions[1].limits == (-1, 1)
    assert spec.rate_hz == (5 if name == "isaaclab" else 20)
    assert episodes[0].instruction == INSTRUCTIONS.get(name, "")
    (camera,) = spec.cameras
    assert (episodes[0].frames(camera.name) == TOP_IS_WHITE).all()
    with h5py.File(tmp_path / "demo.hdf5") as file:
        assert layout_of_file(file) is LAYOUTS[name]
        assert {member.name for member in episodes.members} == set(file["data/demo_0/obs"])


@pytest.mark.parametrize("name", READ)
def test_check_passes_and_show_tells_every_member(opened, tmp_path, capsys, name: str) -> None:
    episodes = opened(name)
    assert check_dataset(tmp_path / "demo.hdf5").num_errors == 0
    DataShowCommand(str(tmp_path / "demo.hdf5")).run()
    shown = capsys.readouterr().out
    for member in episodes.members:
        assert member.name in shown
        assert member.is_used or "not used:" in shown


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_trained_on_and_converted(opened, tmp_path, monkeypatch, name) -> None:
    def code_of(text: str) -> Any:
        return np.full(EMBEDDING_SIZE, EMBEDDING_SIZE**-0.5, np.float32)

    monkeypatch.setattr(instructions, "embed_instruction", code_of)
    theirs, path = opened(name), str(tmp_path / "demo.hdf5")
    short = [
        "--threads",
        "1",
        "--steps",
        "1",
        "--window",
        "2",
        "--batch-size",
        "2",
        "--validations",
        "1",
    ]
    assert main(["train", "--data", path, "--out", str(tmp_path / "run"), *short]) == 0
    assert load_checkpoint(tmp_path / "run" / "last.safetensors")[0].spec == theirs.spec
    for target, to in (("ours", "ttm"), ("theirs.hdf5", "robomimic")):
        assert main(["data", "convert", path, str(tmp_path / target), "--to", to]) == 0
        for mine, other in zip(theirs, open_dataset(tmp_path / target), strict=True):
            assert np.array_equal(mine.actions, other.actions)
            assert (other.frames(theirs.spec.cameras[0].name) == TOP_IS_WHITE).all()


@pytest.mark.parametrize("case", NAMED)
def test_what_is_not_read_is_named_with_the_next_command(tmp_path, capsys, case: str) -> None:
    build, step, name = NAMED[case]
    path = tmp_path / name
    build(path)
    commands = [["data", "show", str(path)], ["data", "check", str(path)]]
    commands += [["train", "--data", str(path), "--out", str(tmp_path / "run")]]
    key = case.split()[0]
    if key not in CONVERTED:
        commands += [["data", "convert", str(path), str(tmp_path / "out")]]
    for words in commands:
        assert main(words) in (1, 2)
        told = "".join(capsys.readouterr())
        assert step in told, words
        assert "Traceback" not in told
    with pytest.raises(UserError, match=re.escape(LAYOUTS[key].name)):
        open_dataset(path)


@pytest.mark.parametrize("key", [key for key, layout in LAYOUTS.items() if layout.way_there])
def test_what_is_not_written_is_named_with_the_next_command(tmp_path, capsys, key: str) -> None:
    robomimic(tmp_path / "demo.hdf5")
    out = tmp_path / "out.hdf5"
    assert main(["data", "convert", str(tmp_path / "demo.hdf5"), str(out), "--to", key]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ttm: error: ")
    assert told.count("\n") == 1
    assert LAYOUTS[key].name in told
    assert re.search(rf"`ttm data \w+ {tmp_path}/demo.hdf5 {tmp_path}/out\w*[^`]* --to ", told)


@pytest.mark.parametrize("robots", [{"robots": ["Panda"]}, {}])
def test_files_of_liberos_scenes_go_together(tmp_path, robots) -> None:
    """Their `env_name` is a scene's, and no robot's."""
    paths = [tmp_path / "kitchen.hdf5", tmp_path / "study.hdf5"]
    for path, scene in zip(paths, ("Libero_Kitchen", "Libero_Study"), strict=True):
        libero(path)
        with h5py.File(path, "a") as file:
            file["data"].attrs["env_args"] = robosuite_env(20, scene, bddl=scene, **robots)
    opened = open_all(list(map(str, paths)))
    assert {each.spec.robot for each in opened} == {"Panda" if robots else "unknown"}
    merge_episodes(paths, tmp_path / "all.hdf5")
    assert open_dataset(tmp_path / "all.hdf5").spec == opened[0].spec  # with the rate of 20 Hz
    older = replace(opened[0].spec, robot="Libero_Kitchen")  # as checkpoints have it
    assert open_dataset(paths[0], like=older).spec.robot == "Libero_Kitchen"


def test_robots_of_other_names_stay_apart(tmp_path) -> None:
    for robot in ("Panda", "Sawyer"):
        libero(tmp_path / f"{robot}.hdf5")
        with h5py.File(tmp_path / f"{robot}.hdf5", "a") as file:
            file["data"].attrs["env_args"] = robosuite_env(robots=[robot])
    with pytest.raises(UserError, match=r"robot Panda, but .* has Sawyer"):
        open_all([str(tmp_path / "Panda.hdf5"), str(tmp_path / "Sawyer.hdf5")])


def test_left_out_members_can_be_chosen(opened) -> None:
    spec = opened("robomimic", proprioception=("object", "robot0_eef_pos")).spec
    assert [vector.name for vector in spec.proprioception] == ["object", "robot0_eef_pos"]


def test_without_cameras_the_state_is_left(opened) -> None:
    episodes = opened("isaaclab", cameras=("none",))
    assert episodes.spec.cameras == ()
    (camera,) = [member for member in episodes.members if member.name == "table_cam"]
    assert camera.reason == "not chosen"


def test_every_layout_is_built_here() -> None:
    assert set(LAYOUTS) == {"ours", *READ, *(case.split()[0] for case in NAMED)}


def test_every_layout_can_be_reached_and_left() -> None:
    """It is read, converted, or named with what to run first; and written, or named with the way there."""
    for key, layout in LAYOUTS.items():
        assert (
            layout.is_read
            or key in CONVERTED
            or "ttm data" in layout.next_step
            or "run" in layout.next_step
        )
        is_written = any(key == form.layouts[0] for form in FORMATS.values())
        assert is_written == (not layout.way_there), key
