# ruff: noqa: E402
"""Episodes become bags, and these the same episodes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("rclpy")
rosbag2 = pytest.importorskip("rosbags.rosbag2")

from rosbags.interfaces import QosDurability
from rosbags.typesys import Stores, get_typestore

from ttm.datasets import EpisodeDataset, EpisodeWriter, open_dataset
from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec, UserError
from ttm.training.cli import main
from ttm_policy.bags.read import BagOptions, convert_bags
from ttm_policy.bags.write import WriteOptions, tick_stamps, write_bags

SPEC = PolicySpec(
    robot="cart",
    rate_hz=3.0,
    cameras=(CameraSpec("head", 8, 8), CameraSpec("wrist", 8, 8)),
    proprioception=(
        ProprioceptionSpec("joints", ("pan", "lift")),
        ProprioceptionSpec("odometry", ("x",)),
    ),
    actions=(
        ActionPart("base", 1, "m", low=-1, high=1),
        ActionPart("gripper", 1, "m"),
        ActionPart("stop", 1, "", "binary"),
    ),
)
CONTRACT = """
robot: cart
base_frame: base
observations:
  head: {topic: head/image_raw, type: sensor_msgs/Image}
  wrist: {topic: wrist/compressed, type: sensor_msgs/CompressedImage}
  joints: {topic: joint_states, type: sensor_msgs/JointState, fields: [pan, {field: lift, scale: 0.3}]}
  odometry: {topic: odom, type: nav_msgs/Odometry, fields: [pose.pose.position.x]}
actions:
  base: {topic: cmd_vel, type: geometry_msgs/TwistStamped, fields: [twist.linear.x], per_second: true,
         limit: max_translation_m}
  gripper: {topic: fingers, type: trajectory_msgs/JointTrajectory,
            fields: [{field: left, min: 0, max: 1, scale: 0.07}, {field: right, min: 0, max: 1}]}
  stop: {topic: terminate, type: std_msgs/Bool, fields: [data]}
"""
EXECUTED = """
executed_action: {topic: done, type: sensor_msgs/JointState, fields: [base, gripper, stop]}
"""
WALL_S = 1_763_800_000.123456789


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "cart.yaml"
    path.write_text(CONTRACT + EXECUTED)
    return path


def record(
    folder: Path,
    times_s: Sequence[float],
    *,
    number: int = 0,
    spec: PolicySpec = SPEC,
    **facts: Any,
) -> None:
    """Write an episode of random values at some times, with a person who drives in the middle."""
    rng = np.random.default_rng(number)
    quality = 90 if number else None
    path = folder / f"episode_{number:05d}.hdf5"
    with EpisodeWriter(path, spec, jpeg_quality=quality) as writer:
        for tick, time_s in enumerate(times_s):
            values = {
                "head": rng.integers(0, 256, (8, 8, 3), np.uint8),
                "wrist": rng.integers(0, 256, (8, 8, 3), np.uint8),
                "joints": rng.normal(size=2).astype(np.float32),
                "odometry": rng.normal(size=1).astype(np.float32),
            }
            action = [rng.uniform(-1, 1), rng.normal(), spec.actions[2].limits[tick % 2]]
            executed = np.array(action, np.float32) + (0.5 if tick == 1 else 0)
            writer.append(
                values,
                action,
                timestamp_s=time_s,
                executed_action=executed,
                intervention=tick == 2 if number else None,
            )
        writer.finish(instruction="öffne die Tür: 1", **facts)


def write(tmp_path: Path, contract: Path, to: Any = "sqlite3") -> list[str]:
    options = WriteOptions(str(tmp_path / "demos"), str(tmp_path / "bags"), str(contract), to)
    return write_bags(options)[1]


def back(tmp_path: Path, contract: Path, **changes: Any) -> EpisodeDataset:
    options = BagOptions(str(tmp_path / "bags"), str(tmp_path / "back"), str(contract), **changes)
    convert_bags(options)
    return open_dataset(tmp_path / "back")


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
def test_an_episode_returns_from_its_bag_bit_for_bit(tmp_path, contract, storage):
    """One was captured at the rate from time 0 on, and the other one by a clock that is up to 0.1 s late."""
    late = np.array([0.0, 0.1, 0.03, 0.1, 0.02])
    record(tmp_path / "demos", np.round(np.arange(4) / 3, 9), success=False, split="valid")
    times_s = WALL_S + np.arange(5) / 3 + late
    record(tmp_path / "demos", times_s, number=1, success=True, seed=7, task="door", split=None)
    assert write(tmp_path, contract, storage) == []
    given, returned = open_dataset(tmp_path / "demos"), back(tmp_path, contract)
    assert returned.spec == given.spec
    for ours, theirs in zip(given, returned, strict=True):
        for name in ("instruction", "task", "success", "seed", "masks"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("actions", "executed_actions", "timestamps", "interventions"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
        for name in ("head", "wrist"):
            np.testing.assert_array_equal(ours.frames(name), theirs.frames(name))
        for name in ("joints", "odometry"):
            np.testing.assert_array_equal(ours.proprioception(name), theirs.proprioception(name))


def test_a_bag_is_one_of_the_contract(tmp_path, contract):
    """Topics, types, stamps and QoS, as another program reads them; JPEGs are the recorded bytes."""
    record(tmp_path / "demos", 5 + np.arange(4) / 3, number=1)
    assert write(tmp_path, contract, "mcap") == []
    store = get_typestore(Stores.ROS2_HUMBLE)
    with rosbag2.Reader(tmp_path / "bags" / "bag_00000") as bag:
        found = {each.topic: each for each in bag.connections}
        messages = [
            (each.topic, time_ns, store.deserialize_cdr(data, each.msgtype))
            for each, time_ns, data in bag.messages()
        ]
    assert {topic: each.msgtype.split("/")[-1] for topic, each in found.items()} == {
        "/head/image_raw": "Image",
        "/wrist/compressed": "CompressedImage",
        "/joint_states": "JointState",
        "/odom": "Odometry",
        "/done": "JointState",
        "/cmd_vel": "TwistStamped",
        "/fingers": "JointTrajectory",
        "/terminate": "Bool",
        "/instruction": "String",
        "/driver": "String",
    }
    kept = {
        topic
        for topic, each in found.items()
        if each.ext.offered_qos_profiles[0].durability is QosDurability.TRANSIENT_LOCAL
    }
    assert found.keys() - kept == {"/cmd_vel", "/fingers", "/terminate"}
    for _, time_ns, message in messages:
        if hasattr(message, "header"):
            stamp = message.header.stamp
            assert stamp.sec * 10**9 + stamp.nanosec == time_ns
    (episode,) = open_dataset(tmp_path / "demos")
    images = [message for topic, _, message in messages if topic == "/wrist/compressed"]
    assert [image.format for image in images] == ["jpeg"] * 4
    speeds = [message.twist.linear.x for topic, _, message in messages if topic == "/cmd_vel"]
    np.testing.assert_array_equal(speeds, episode.actions[:, 0].astype(float) / (1 / 3))
    assert [m.data for t, _, m in messages if t == "/driver"] == ["policy", "person", "policy"]


def test_what_a_bag_does_not_hold_is_told(tmp_path, contract):
    contract.write_text(CONTRACT)
    stop = ActionPart("stop", 1, "", "binary", -1, 1)
    spec = replace(SPEC, actions=(*SPEC.actions[:2], stop))
    record(tmp_path / "demos", [5.0, 5.3, 9.0, 9.1], spec=spec, split="train")
    with h5py.File(tmp_path / "demos" / "episode_00000.hdf5", "r+") as file:
        for mask in ("hard", "valid"):
            file[f"mask/{mask}"] = [b"demo_0"]
    changed, moved, members = write(tmp_path, contract)
    assert changed.startswith(
        "2 values of 'stop' return changed by up to 2, as std_msgs/Bool holds"
    )
    assert moved == "stamps are up to 3.33 s from the capture times"
    assert members.startswith("not converted: executed_actions, for which the contract has no")
    assert members.endswith(", mask/hard, mask/valid")
    (episode,) = back(tmp_path, contract)
    np.testing.assert_allclose(episode.timestamps, 5 + np.arange(4) / 3, atol=1e-9)
    given = open_dataset(tmp_path / "demos")[0].actions
    np.testing.assert_array_equal(episode.actions[:, :2], given[:, :2])


def test_irregular_stamps_give_each_tick_its_observation_and_command():
    """The stamps stay while each tick of the rate sees one, and follow the rate otherwise."""
    ms = 1_000_000
    late = tick_stamps(np.array([0, 190, 200, 390]) * ms, 10)
    assert late.moved_s == 0
    assert late.first_tick_ns == 90 * ms
    assert late.commanded_ns.tolist() == [140 * ms, 195 * ms, 340 * ms, 440 * ms]
    lost = tick_stamps(np.array([0, 210, 215, 220]) * ms, 10)
    assert (lost.moved_s, lost.first_tick_ns) == (0.11, 0)
    assert lost.observed_ns.tolist() == [0, 100 * ms, 200 * ms, 300 * ms]


def test_choices_without_effect_are_refused(tmp_path, contract, capfd):
    words = ["data", "bags", str(tmp_path / "demos"), str(tmp_path / "bags"), "--to", "mcap"]
    words += ["--contract", str(contract)]
    assert main([*words, "--rate-hz", "5"]) == 2
    assert "--rate-hz is for bags that are read" in capfd.readouterr().err


def test_a_contract_of_another_robot_and_other_files_are_not_touched(tmp_path, contract):
    record(tmp_path / "demos", [5.0, 5.3])
    contract.write_text(CONTRACT.replace("wrist:", "tail:"))
    with pytest.raises(UserError, match=r"camera 'tail' of cart\.yaml is not in the data set"):
        write(tmp_path, contract)
    contract.write_text(CONTRACT)
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "episode_00000.hdf5").touch()
    options = WriteOptions(
        *map(str, (tmp_path / "demos", tmp_path / "bags", contract)), "mcap", True
    )
    with pytest.raises(
        UserError, match=r"holds episode_00000\.hdf5, which is no part of such a data set"
    ):
        write_bags(options)


def test_bags_that_say_nothing_need_rate_and_instruction(tmp_path, contract):
    record(tmp_path / "demos", [5.0, 5.3])
    write(tmp_path, contract)
    metadata = tmp_path / "bags" / "bag_00000" / "metadata.yaml"
    text = metadata.read_text()
    metadata.write_text(text.replace("ttm_episode", "else"))
    with pytest.raises(UserError, match=r"bag_00000 and .* lack the control rate; give --rate-hz"):
        back(tmp_path, contract)
    metadata.write_text(text.replace("ttm_spec", "else"))
    contract.write_text(CONTRACT)
    with pytest.raises(UserError, match="says 3 Hz, not 5; convert it alone"):
        back(tmp_path, contract, rate_hz=5.0)
    metadata.write_text(text)
    contract.write_text(CONTRACT + EXECUTED)
    (episode,) = back(tmp_path, contract, rate_hz=3.0, instruction="wave")
    assert episode.instruction == "wave"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("first_tick_ns", "else"),
        ('"rate_hz": 3.0, "first', '"rate_hz": NaN, "first'),
        ('"rate_hz": 3.0, "first', '"rate_hz": null, "first'),
        ('"first_tick_ns": ', '"first_tick_ns": -'),
        ('"late_ns": 0', '"late_ns": "0"'),
        ('"split": "train"', '"split": "test"'),
    ],
)
def test_damaged_facts_of_a_bag_are_one_line(tmp_path, contract, old, new):
    record(tmp_path / "demos", [5.0, 5.3], split="train")
    write(tmp_path, contract)
    metadata = tmp_path / "bags" / "bag_00000" / "metadata.yaml"
    text = metadata.read_text()
    assert old in text
    metadata.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=r"in metadata.yaml is damaged") as told:
        back(tmp_path, contract)
    assert "\n" not in str(told.value)
