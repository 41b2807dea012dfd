# ruff: noqa: E402
"""Bags become episodes: ticks by header stamps, commands by topics, sqlite3 and MCAP alike."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
rosbag2 = pytest.importorskip("rosbags.rosbag2")

from geometry_msgs.msg import TwistStamped
from rclpy.serialization import serialize_message
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool

from ttm.datasets import open_dataset
from ttm.policy import UserError
from ttm.training.cli import main
from ttm_policy.bags.read import BagOptions, convert_bags
from ttm_policy.contract import load_contract
from ttm_policy.messages import ns_to_stamp
from ttm_policy.parameters import RecorderParameters
from ttm_policy.recording.episodes import EpisodeSink, GivenSpec, JointTopics, TickValues
from ttm_policy.recording.matching import Stamper, header_ns
from ttm_policy.recording.session import RecordingSession, State

CONTRACT = """
robot: cart
base_frame: base
observations:
  head: {topic: head/image_raw, type: sensor_msgs/Image}
  joints: {topic: joint_states, type: sensor_msgs/JointState, fields: [pan, lift]}
actions:
  base: {topic: cmd_vel, type: geometry_msgs/TwistStamped, fields: [twist.linear.x], limit: max_forward_m_s}
  stop: {topic: terminate, type: std_msgs/Bool, fields: [data]}
"""
MS = 1_000_000
TYPES = {
    "/robot/head/image_raw": "sensor_msgs/msg/Image",
    "/robot/joint_states": "sensor_msgs/msg/JointState",
    "/robot/cmd_vel": "geometry_msgs/msg/TwistStamped",
    "/robot/terminate": "std_msgs/msg/Bool",
}


def image(ms: int, level: int) -> Image:
    message = Image(height=4, width=6, encoding="bgr8", step=18)
    message.data.frombytes(np.full((4, 6, 3), [level, 7, 9], np.uint8).tobytes())
    message.header.stamp = ns_to_stamp(ms * MS)
    return message


def joint(ms: int, name: str, position: float) -> JointState:
    message = JointState(name=[name], position=[position])
    message.header.stamp = ns_to_stamp(ms * MS)
    return message


def twist(ms: int, speed: float) -> TwistStamped:
    message = TwistStamped()
    message.twist.linear.x = speed
    message.header.stamp = ns_to_stamp(ms * MS)
    return message


def events() -> list[tuple[int, str, Any]]:
    """(time of recording in ms, topic, message) of a second: images are recorded 30 ms late."""
    found: list[tuple[int, str, Any]] = [(995, "joint_states", joint(995, "pan", 0.5))]
    for tick in range(5):
        start = 1000 + 200 * tick
        found.append((start + 30, "head/image_raw", image(start, 10 * tick)))
        found.append((start + 40, "joint_states", joint(start - 1, "lift", tick)))
        if tick != 2:  # without a command the cart stands still
            found.append((start + 50, "cmd_vel", twist(start + 50, 0.1 * (tick + 1))))
    found.append((1815, "terminate", Bool(data=True)))
    return found


def record(path: Path, storage: str, skip: str = "") -> Path:
    store = get_typestore(Stores.ROS2_HUMBLE)
    plugin = getattr(rosbag2.StoragePlugin, storage)
    with rosbag2.Writer(path, version=9, storage_plugin=plugin) as writer:
        connections = {
            topic: writer.add_connection(topic, kind, typestore=store)
            for topic, kind in TYPES.items()
        }
        for ms, topic, message in events():
            if topic != skip:
                data = serialize_message(message)
                writer.write(connections[f"/robot/{topic}"], ms * MS, data)
    return path


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "cart.yaml"
    path.write_text(CONTRACT)
    return path


def options(tmp_path: Path, contract: Path, **changes: Any) -> BagOptions:
    values = {"rate_hz": 5.0, "instruction": "drive", **changes}
    return BagOptions(str(tmp_path / "bags"), str(tmp_path / "out"), str(contract), **values)


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
def test_messages_meet_at_their_ticks(tmp_path, contract, storage):
    record(tmp_path / "bags" / "one", storage)
    record(tmp_path / "bags" / "two", storage)
    assert convert_bags(options(tmp_path, contract)) == 2
    first, second = open_dataset(tmp_path / "out")
    assert first.instruction == "drive"
    assert first.spec.rate_hz == 5
    assert [part.kind for part in first.spec.actions] == ["continuous", "binary"]
    # Blue came first in the messages; the frame of tick t was made at the tick itself.
    assert first.frames("head")[:, 0, 0].tolist() == [[9, 7, 10 * tick] for tick in range(5)]
    assert first.timestamps.tolist() == [1 + 0.2 * tick for tick in range(5)]
    expected = np.array([[0.5, tick] for tick in range(5)], np.float32)
    np.testing.assert_array_equal(first.proprioception("joints"), expected)
    speeds = np.array([0.1, 0.2, 0.0, 0.4, 0.5], np.float32)
    np.testing.assert_array_equal(first.actions[:, 0], speeds)
    assert first.actions[:, 1].tolist() == [0, 0, 0, 0, 1]
    np.testing.assert_array_equal(first.actions, second.actions)


def test_measured_actions_need_no_topic_of_commands(tmp_path, contract):
    text = CONTRACT[: CONTRACT.index("  base:")] + (
        "  lift: {topic: arm, type: trajectory_msgs/JointTrajectory, measured: joints,"
        " fields: [{field: lift, min: 0, max: 9}]}"
    )
    contract.write_text(text)
    record(tmp_path / "bags" / "one", "SQLITE3")
    assert convert_bags(options(tmp_path, contract)) == 1
    (episode,) = open_dataset(tmp_path / "out")
    assert episode.actions[:, 0].tolist() == [1, 2, 3]
    assert episode.proprioception("joints")[:, 1].tolist() == [0, 1, 2]


def test_errors_are_one_line(tmp_path, contract, capfd):
    words = ["data", "bags", str(tmp_path / "bags"), str(tmp_path / "out")]
    words += ["--contract", str(contract), "--rate-hz", "5", "--instruction", "drive"]
    record(tmp_path / "bags" / "one", "SQLITE3", skip="head/image_raw")
    assert main(words) == 2
    errors = capfd.readouterr().err
    assert "'head/image_raw' has no message" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_topic_of_another_type_is_named(tmp_path, contract):
    record(tmp_path / "bags" / "one", "MCAP")
    contract.write_text(CONTRACT.replace("sensor_msgs/Image", "sensor_msgs/CompressedImage"))
    with pytest.raises(UserError, match="has sensor_msgs/Image, the contract says"):
        convert_bags(options(tmp_path, contract))
    contract.write_text(CONTRACT.replace("joint_states", "arm/joint_states"))
    with pytest.raises(UserError, match="has no topic 'arm/joint_states' of the contract"):
        convert_bags(options(tmp_path, contract))
    with pytest.raises(UserError, match="has no bag"):
        convert_bags(options(tmp_path / "nowhere", contract))


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
def test_a_bag_leads_to_no_other_place(tmp_path, contract, storage):
    """A link of a stranger's bag would show what another bag of this machine holds."""
    bag = record(tmp_path / "bags" / "one", storage)
    (file,) = (item for item in bag.iterdir() if item.name != "metadata.yaml")
    file.rename(tmp_path / "others")
    file.symlink_to(tmp_path / "others")
    with pytest.raises(UserError, match="outside of") as told:
        convert_bags(options(tmp_path, contract))
    assert "allow-external" not in str(told.value)  # this command has no such option
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data = substr(data, 1, 30)", "message 0 of topic '.*' is damaged"),
        ("data = substr(data, 1, 3)", "message 0 of topic '.*' is damaged"),
        ("timestamp = timestamp + 1700000000000000000", "are of different clocks"),
    ],
)
def test_damaged_messages_and_clocks_that_differ_are_refused(tmp_path, contract, change, message):
    """Only messages without a header, here those of the stop, have the time of recording."""
    bag = record(tmp_path / "bags" / "one", "SQLITE3")
    with closing(sqlite3.connect(next(bag.glob("*.db3")))) as database, database:
        database.execute(f"update messages set {change}")
    with pytest.raises(UserError, match=message):
        convert_bags(options(tmp_path, contract))
    assert not (tmp_path / "out").exists()


def _cut(file: Path) -> None:
    """Leave out the last page of a database, as an interrupted copy does."""
    file.write_bytes(file.read_bytes()[:-20])


def _overwrite(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 3)
    file.write_bytes(data)


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("one.*", _cut),
        ("one.*", _overwrite),
        ("one.*", lambda file: file.write_bytes(b"")),
        ("metadata.yaml", lambda file: file.write_text("a: 2026-13-45")),
        ("metadata.yaml", lambda file: file.write_text("")),
    ],
)
def test_a_damaged_bag_is_named(tmp_path, contract, storage, file, damage):
    bag = record(tmp_path / "bags" / "one", storage)
    damage(next(bag.glob(file)))
    with pytest.raises(
        UserError, match=r"bags/one cannot be read \(.+\); copy the bag again"
    ) as raised:
        convert_bags(options(tmp_path, contract))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_the_rate_may_be_that_of_the_contract(tmp_path, contract):
    record(tmp_path / "bags" / "one", "MCAP")
    with pytest.raises(UserError, match="yaml lack the control rate"):
        convert_bags(options(tmp_path, contract, rate_hz=None))
    contract.write_text(CONTRACT + "rate_hz: 5")
    assert convert_bags(options(tmp_path, contract, rate_hz=None)) == 1
    assert open_dataset(tmp_path / "out").spec.rate_hz == 5


def test_an_endless_rate_is_refused(tmp_path, contract):
    record(tmp_path / "bags" / "one", "MCAP")
    with pytest.raises(UserError, match="rate_hz is inf; give a finite control rate"):
        convert_bags(options(tmp_path, contract, rate_hz=float("inf")))


def test_a_spec_file_of_another_rate_is_refused(tmp_path, contract):
    record(tmp_path / "bags" / "one", "MCAP")
    spec = tmp_path / "spec.yaml"
    spec.write_text("rate_hz: 10")
    with pytest.raises(UserError, match="says 10 Hz, but the rate is 5"):
        convert_bags(options(tmp_path, contract, spec=str(spec)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("robot: another", "is for 'another', the contract for"),
        ("cameras: {tail: {}}", "has cameras tail, but the contract"),
        ("cameras: {}", "has cameras none, but the contract"),
        ("cameras: {CAMERA: {orientation: rotated}}", "is rotated and rgb, but images of bags"),
        ("cameras: {CAMERA: {colours: bgr}}", "is upright and bgr, but images of bags"),
    ],
)
def test_a_spec_file_of_another_robot_or_other_cameras_is_refused(
    tmp_path, contract, text, message
):
    record(tmp_path / "bags" / "one", "MCAP")
    spec = tmp_path / "spec.yaml"
    spec.write_text(text.replace("CAMERA", load_contract(contract).images[0].name))
    with pytest.raises(UserError, match=message):
        convert_bags(options(tmp_path, contract, spec=str(spec)))


def test_a_spec_file_gives_limits(tmp_path, contract):
    record(tmp_path / "bags" / "one", "MCAP")
    spec = tmp_path / "spec.yaml"
    parts = [
        {"name": "base", "size": 1, "unit": "m/s", "low": -1, "high": 1},
        {"name": "stop", "size": 1, "kind": "binary"},
    ]
    spec.write_text(json.dumps({"actions": parts}))
    convert_bags(options(tmp_path, contract, spec=str(spec)))
    assert open_dataset(tmp_path / "out").spec.actions[0].high == 1


def test_recording_live_gives_the_same_episode(tmp_path, contract):
    """The messages of the bag come one by one; the recording starts when all were seen, with pre-roll."""
    record(tmp_path / "bags" / "one", "MCAP")
    convert_bags(options(tmp_path, contract))
    (converted,) = open_dataset(tmp_path / "out")
    values = TickValues(load_contract(contract), converted.spec)
    sink = EpisodeSink(tmp_path / "live", GivenSpec(values.contract, 5.0, converted.spec))
    parameters = RecorderParameters(
        rate_hz=5.0, countdown_s=0.0, preroll_s=1.0, max_delay_s=0.1, min_fresh=0.0
    )
    session = RecordingSession(values.topics, parameters, sink)
    stamper, joints = Stamper(simulated=False), JointTopics(values.contract)
    for ms, topic, message in sorted(events(), key=lambda event: event[0]):
        stamp_ns = header_ns(serialize_message(message)) if hasattr(message, "header") else 0
        whole = joints.completed(topic, message)
        data = serialize_message(message) if whole is message else whole
        for each in stamper.take(topic, stamp_ns, ms * MS, data):
            session.message(*each)
        if session.state is State.READY and not session.missing():
            session.start("drive", 0.0)
    session.stop(None, 10.0)
    session.update(10.2)
    assert not sink.results.get(timeout=180).problem
    sink.close()
    (live,) = open_dataset(tmp_path / "live")
    assert (live.spec, live.num_samples) == (converted.spec, converted.num_samples)
    for name in ("actions", "executed_actions", "timestamps"):
        np.testing.assert_array_equal(getattr(live, name), getattr(converted, name))
    np.testing.assert_array_equal(live.frames("head"), converted.frames("head"))
    np.testing.assert_array_equal(live.proprioception("joints"), converted.proprioception("joints"))
