"""From whom the emergency stop is heard."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from unittest.mock import MagicMock

import pytest
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm_policy.guards import EStop, EStopTopic

RELIABLE, BEST_EFFORT = ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT
VOLATILE, LATCHED = DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL


def _stop_thread() -> MagicMock:
    """A `StopThread` whose messages the test delivers, and that notes when it stops the robot."""
    stop = MagicMock(lock=RLock(), stopped=False)
    stop.stop.side_effect = lambda: setattr(stop, "stopped", True)
    return stop


@pytest.mark.parametrize(
    "offered", [(RELIABLE, VOLATILE), (RELIABLE, LATCHED), (BEST_EFFORT, VOLATILE)]
)
def test_no_message_is_lost_that_its_publisher_offers_to_keep(
    offered: tuple[ReliabilityPolicy, DurabilityPolicy],
) -> None:
    """A best-effort subscription lost every fourth `ros2 topic pub --once`, which ends after its message."""
    stop = _stop_thread()
    EStopTopic(stop, EStop(rearm=True, timeout_s=0.0), lambda: None)
    profiles = [call.args[3] for call in stop.node.create_subscription.call_args_list]
    assert offered in [(profile.reliability, profile.durability) for profile in profiles]


class Button:
    """Delivers the messages of one publisher to each of the three subscriptions by itself."""

    def __init__(self, *, rearm: bool) -> None:
        self.stop = _stop_thread()
        self.node = self.stop.owner
        self.node.get_publishers_info_by_topic.return_value = [MagicMock(endpoint_gid=list(b"a"))]
        self.topic = EStopTopic(self.stop, EStop(rearm=rearm, timeout_s=0.0), lambda: None)
        subscriptions = self.stop.node.create_subscription.call_args_list
        self._callbacks = [call.args[2] for call in subscriptions]
        self.stop.tell.side_effect = lambda: self.topic.problem  # the node heeds every message

    def hear(self, subscription: int, sent_ns: int, pressed: bool, publisher: bytes = b"a") -> None:
        """Let a subscription receive what a publisher sent at a time."""
        gid = {"data": publisher}
        info = {"source_timestamp": sent_ns, "publisher_gid": gid}
        self._callbacks[subscription](Bool(data=pressed), info)

    def rearm(self) -> bool:
        """Call the service."""
        serve: Callable[..., Trigger.Response] = self.node.create_service.call_args.args[2]
        return serve(Trigger.Request(), Trigger.Response()).success


def test_late_copy_of_press_does_not_stop_a_rearmed_robot() -> None:
    button = Button(rearm=True)
    button.hear(0, 1, True)
    button.hear(0, 2, False)
    assert button.rearm()
    button.hear(1, 1, True)
    assert button.topic.problem == ""
    button.hear(1, 2, False)
    assert button.topic.problem == ""


def test_late_copy_of_release_does_not_undo_a_press() -> None:
    """It did so for a moment, in which a robot that needs no rearming could move."""
    button = Button(rearm=False)
    button.hear(0, 1, False)
    button.hear(0, 2, True)
    button.hear(1, 1, False)
    assert button.topic.problem == "it is pressed"


def test_release_that_a_newer_press_has_overtaken_lets_nothing_move() -> None:
    """Best effort lost the release, which the others receive before they receive the press."""
    button = Button(rearm=False)
    button.hear(2, 2, True)
    for subscription in (0, 1):
        button.hear(subscription, 1, False)
        assert button.topic.problem == "it is pressed"
        button.hear(subscription, 2, True)
    assert button.topic.problem == "it is pressed"
    button.hear(0, 3, False)
    assert button.topic.problem == ""


def test_press_that_a_newer_release_has_overtaken_must_be_rearmed() -> None:
    button = Button(rearm=True)
    button.hear(2, 2, False)
    button.hear(0, 1, True)
    button.hear(0, 2, False)
    assert "call the service rearm" in button.topic.problem


def test_release_counts_though_the_clock_of_its_publisher_is_behind() -> None:
    button = Button(rearm=False)
    button.hear(0, 1000, True)
    button.hear(0, 5, False)
    assert button.topic.problem == ""


def test_press_counts_though_the_clock_of_its_publisher_is_behind() -> None:
    button = Button(rearm=False)
    button.hear(0, 1000, False)
    button.hear(0, 5, True)
    assert button.topic.problem == "it is pressed"


def test_release_of_another_publisher_whose_clock_is_ahead_undoes_nothing() -> None:
    button = Button(rearm=False)
    button.hear(0, 10_000, False, b"b")
    for subscription in (0, 1, 2):
        button.hear(subscription, 1, True)
        button.hear(subscription, 20_000 + subscription, False, b"b")
        assert button.topic.problem == "it is pressed"
    assert not button.rearm()
    button.hear(0, 2, False)
    assert button.topic.problem == ""


def test_stop_that_is_over_before_the_node_heeds_it_lets_nothing_move_until_it_was_told_once() -> (
    None
):
    button = Button(rearm=False)
    button.stop.tell.side_effect = None  # the node is busy
    button.hear(0, 1, True)
    button.hear(0, 2, True)
    button.hear(0, 3, False)
    assert button.stop.stop.call_count == 1
    assert button.stop.stopped
    assert button.topic.problem == "it was pressed for a moment"
    assert button.stop.stopped
    assert button.topic.problem == ""
    assert not button.stop.stopped
    button.hear(0, 4, True)
    assert button.stop.stop.call_count == 2


def test_rearming_does_not_hide_a_stop_from_the_node() -> None:
    button = Button(rearm=True)
    button.stop.tell.side_effect = None
    button.hear(0, 1, True)
    button.hear(0, 2, False)
    assert button.rearm()
    assert button.stop.stopped
    assert button.topic.problem == "it was pressed for a moment"
