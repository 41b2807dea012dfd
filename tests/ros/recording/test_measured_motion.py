"""Actions that are computed from what the robot was measured to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped, TwistStamped
from sensor_msgs.msg import JointState

from ttm.datasets import EpisodeWriter, open_dataset
from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec, UserError
from ttm.policy.errors import MalformedObservation
from ttm_policy.contract import load_contract
from ttm_policy.recording.episodes import EpisodeRows, TickValues
from ttm_policy.recording.matching import Tick

CONTRACT = """
robot: arm
base_frame: base
observations:
  pose:
    topic: pose
    type: geometry_msgs/PoseStamped
    fields: [pose.position.x, pose.position.y, {field: pose.position.z, scale: 100}, pose.orientation.x,
      pose.orientation.y, pose.orientation.z, pose.orientation.w]
  speed: {topic: speed, type: geometry_msgs/TwistStamped, fields: [twist.linear.x]}
  joints: {topic: joints, type: sensor_msgs/JointState, fields: [elbow, finger]}
actions:
  move: {topic: servo, type: geometry_msgs/TwistStamped, fields: [twist.linear.x, twist.linear.y,
    twist.linear.z], per_second: true, limit: max_translation_m, measured: pose}
  turn: {topic: servo, type: geometry_msgs/TwistStamped, fields: [twist.angular.x, twist.angular.y,
    twist.angular.z], limit: max_rotation_rad, measured: pose}
  base: {topic: base, type: geometry_msgs/TwistStamped, fields: [{field: twist.linear.x, scale: 2}],
    limit: max_forward_m_s, measured: speed}
  arm: {topic: arm, type: trajectory_msgs/JointTrajectory, fields: [{field: elbow, scale: 0.5, min: -2,
    max: 2}], measured: joints}
  hand: {topic: hand, type: trajectory_msgs/JointTrajectory, fields: [{field: finger, min: 0, max: 1}],
    measured: joints}
  done: {topic: done, type: std_msgs/Bool, fields: [data]}
"""
PARTS = (("move", 3), ("turn", 3), ("base", 1), ("arm", 1))
SPEC = PolicySpec(
    "arm",
    (),
    (
        ProprioceptionSpec("pose", tuple("xyzijkw")),
        ProprioceptionSpec("speed", ("x",)),
        ProprioceptionSpec("joints", ("elbow", "finger")),
    ),
    (
        *(ActionPart(name, size, "unit") for name, size in PARTS),
        ActionPart("hand", 1, "1 open", "binary", 0.0, 1.0),
        ActionPart("done", 1, "1 done", "binary", 0.0, 1.0),
    ),
    5.0,
)
QUARTER = (0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "arm.yaml").write_text(CONTRACT)
    return tmp_path / "arm.yaml"


def tick(number: int, turn: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0)) -> Tick[object]:
    """What is seen at a tick, without any command."""
    pose, speed = PoseStamped(), TwistStamped()
    pose.pose.position.x, pose.pose.position.z = 0.1 * number, -0.3 * number
    to = pose.pose.orientation
    to.x, to.y, to.z, to.w = turn
    speed.twist.linear.x = 0.4 * number
    joints = JointState(name=["elbow", "finger"], position=[0.2 * number, 0.45 + 0.1 * number])
    seen = {"pose": pose, "speed": speed, "joints": joints}
    return Tick(seen, dict.fromkeys(seen, number * 200000000), {})


def test_an_episode_without_commands_has_what_was_measured(path: Path, tmp_path: Path) -> None:
    values = TickValues(load_contract(path), SPEC)
    with EpisodeWriter(tmp_path / "a.hdf5", SPEC) as writer:
        rows = EpisodeRows(writer, values)
        for each in (tick(0), tick(1, QUARTER), tick(2, QUARTER)):
            rows.add(each)
        assert rows.end(2) == 2
        writer.finish(instruction="wave", split=None)
    (episode,) = open_dataset(tmp_path / "a.hdf5")
    first, second = episode.actions
    # m in a tick, rad/s, m/s through a scale, rad through a scale, the nearer state, nothing measured
    assert first == pytest.approx([0.1, 0, -0.3, 0, 0, np.pi / 2 * 5, 0.2, 0.4, 1, 0], abs=1e-6)
    assert second == pytest.approx([0.1, 0, -0.3, 0, 0, 0, 0.4, 0.8, 1, 0], abs=1e-6)
    assert episode.proprioception("joints")[:, 0] == pytest.approx([0.0, 0.2])
    np.testing.assert_array_equal(episode.executed_actions, episode.actions)


def test_no_orientation_is_refused(path: Path) -> None:
    values = TickValues(load_contract(path), SPEC)
    good, bad = values.observation(tick(0)), values.observation(tick(1, (0.0, 0.0, 0.0, 0.0)))
    assert good is not None
    assert bad is not None
    with pytest.raises(MalformedObservation, match=r"has orientation .*; check its driver"):
        values.measured(np.zeros(SPEC.action_size, np.float32), good, bad)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("measured: speed", "measured: gps", "'gps'; name an observation of numbers: pose, speed, joints"),
        ("measured: speed", "measured: joints", "does not measure 'twist.linear.x'"),
        ("max_rotation_rad, measured: pose", "max_rotation_rad, measured: speed", "'twist.angular.x'"),
        ("fields: [data]", "fields: [data], measured: joints", "is no motion; leave measured out"),
        ("1}],\n    measured: joints", "1}],\n    measured: pose", "does not measure 'finger'"),
        ("measured: speed", "measured: 3", "measured 3; give the name of an observation"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_told(path: Path, old: str, new: str, words: str) -> None:
    assert old in CONTRACT
    path.write_text(CONTRACT.replace(old, new))
    with pytest.raises(UserError) as error:
        load_contract(path)
    assert words in str(error.value)
