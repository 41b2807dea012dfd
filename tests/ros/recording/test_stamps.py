"""Messages without a stamp belong to the observation that was published before them."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from ttm.datasets.frames import encode_jpeg
from ttm.policy import CameraSpec, UserError
from ttm_policy.contract import ActionSink, Field, ImageSource, RobotContract
from ttm_policy.recording.episodes import GivenSpec
from ttm_policy.recording.matching import MOST_NOTES, Stamped, Stamper, header_ns


def test_messages_get_the_newest_stamp_published_before_them() -> None:
    got: list[Stamped] = []
    stamper = Stamper(simulated=True)
    # Published in the order eye 1, answer 1, eye 2, answer 2; received in another.
    got += stamper.take("done", 0, 150, "answer 1")
    got += stamper.note(1000, 100)
    got += stamper.take("eye", 1000, 100, "eye 1")
    got += stamper.take("done", 0, 250, "answer 2")
    assert got == [("eye", 1000, "eye 1")]
    got += stamper.note(2000, 200)
    got += stamper.take("eye", 2000, 200, "eye 2")
    got += stamper.flush()
    assert got[1:] == [
        ("done", 1000, "answer 1"),
        ("eye", 2000, "eye 2"),
        ("done", 2000, "answer 2"),
    ]


def test_on_a_robot_they_have_the_time_of_publishing() -> None:
    got: list[Stamped] = []
    stamper = Stamper(simulated=False)
    got += stamper.take("done", 0, 150, "a")
    got += stamper.take("done", 140, 150, "b")
    assert got == [("done", 150, "a"), ("done", 140, "b")]


def test_before_the_first_stamp_nothing_is_recorded() -> None:
    got: list[Stamped] = []
    stamper = Stamper(simulated=True)
    got += stamper.take("done", 0, 50, "too early")
    got += stamper.note(1000, 100)
    got += stamper.flush()
    assert got == []


def test_the_stamp_of_a_serialised_message() -> None:
    little = bytes([0, 1, 0, 0]) + (7).to_bytes(4, "little") + (5).to_bytes(4, "little")
    assert header_ns(little) == 7_000_000_005
    assert header_ns(little[:11]) == 0


@pytest.mark.parametrize(
    ("stamp_ns", "published_ns"),
    [(1_000_000_000, 8_000_000_000), (90_000_000_000, -86_400_000_000_000)],
)
def test_a_clock_that_is_set_back_gives_messages_no_stamp_of_the_other_time(
    stamp_ns: int, published_ns: int
) -> None:
    """Neither a simulation that begins again, nor a computer whose clock is set while it simulates."""
    got: list[Stamped] = []
    stamper = Stamper(simulated=True)
    got += stamper.note(80_000_000_000, 7_000_000_000)
    got += stamper.take("done", 0, 7_000_000_001, "before")
    for number in range(MOST_NOTES + 1):
        got += stamper.note(stamp_ns + number, published_ns + 2 * number)
        got += stamper.take("done", 0, published_ns + 2 * number + 1, f"answer {number}")
    got += stamper.flush()
    assert got[0] == ("done", 80_000_000_000, "before")
    assert got[1:] == [
        ("done", stamp_ns + number, f"answer {number}") for number in range(MOST_NOTES + 1)
    ]


def test_without_a_sensor_the_commands_that_wait_for_its_time_do_not_pile_up() -> None:
    got: list[Stamped] = []
    stamper = Stamper(simulated=True)
    got += stamper.note(1000, 50)
    for number in range(100, 100 + 3 * MOST_NOTES):
        got += stamper.take("done", 0, number, "command")
    assert len(stamper._waiting) <= MOST_NOTES
    got += stamper.note(2000, 10 * MOST_NOTES)
    assert MOST_NOTES // 2 <= len(got) <= MOST_NOTES


def test_cameras_have_the_size_of_their_newest_image_whatever_came_first() -> None:
    eye = ImageSource("eye", "eye", "sensor_msgs/CompressedImage")
    done = ActionSink("done", "done", "std_msgs/Bool", (Field("data"),))
    given = GivenSpec(RobotContract("arm", "base", (eye,), (), (done,), "arm.yaml"), 5.0)
    good = encode_jpeg(np.zeros((6, 8, 3), np.uint8), 80).tobytes()
    newest = {"eye": serialize_message(CompressedImage(data=array("B", b"%!PS")))}
    with pytest.raises(UserError, match="cannot be used"):
        given.complete_from(newest)
    newest = {"eye": serialize_message(CompressedImage(data=array("B", good)))}
    assert given.complete_from(newest).cameras == (CameraSpec("eye", 6, 8),)
    with pytest.raises(UserError, match="'eye' is damaged"):
        given.complete_from({"eye": b""})
