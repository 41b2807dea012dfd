"""How long the robot waits for the limits of its joints."""

from __future__ import annotations

import time
from unittest.mock import MagicMock

import pytest
from std_msgs.msg import String

from ttm_policy.limits import FIRST_S, RobotDescription


class Description:
    """A description whose publishers and time the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.publishers, self.node, self.limits = 0.0, 0, MagicMock(), MagicMock()
        self.node.count_publishers = lambda _: self.publishers
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self._description = RobotDescription(self.node, self.limits)
        self.hear = self.node.create_subscription.call_args.args[2]

    @property
    def problem(self) -> str:
        return self._description.problem

    @property
    def warnings(self) -> list[str]:
        return [call.args[0] for call in self.node.get_logger().warning.call_args_list]


@pytest.fixture
def description(monkeypatch: pytest.MonkeyPatch) -> Description:
    return Description(monkeypatch)


def test_a_robot_without_description_does_not_wait(description: Description) -> None:
    assert description.problem == ""


def test_a_robot_waits_for_a_description_that_is_published(description: Description) -> None:
    description.publishers = 1
    assert "has not come yet" in description.problem
    description.hear(String(data="<robot name='r'/>"))
    description.limits.set_joint_limits.assert_called_once_with({})
    assert description.problem == ""


def test_a_description_that_never_comes_is_told_once(description: Description) -> None:
    description.publishers, description.now_s = 1, 100.0
    assert description.problem
    description.now_s += FIRST_S - 0.1
    assert description.problem
    assert description.warnings == []
    description.now_s += 0.2
    assert [description.problem, description.problem] == ["", ""]
    (warning,) = description.warnings
    assert "transient local" in warning
