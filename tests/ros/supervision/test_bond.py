"""The bond with a lifecycle manager, beside a stand-in of ROS, and nodes of one name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn

from ttm_policy import lifecycle
from ttm_policy.lifecycle import CONNECT_TIMEOUT_S, Bond, form_bond
from ttm_policy.policy_node import PolicyNode
from ttm_policy.programs import warn_of_duplicates
from ttm_policy.recorder_node import RecorderNode

NAME, PERIOD_S = "policy_node", 0.25


def _message(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(header=SimpleNamespace(stamp=None), **values)


class Bonded:
    """A bond, what it publishes, and the time."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.node = MagicMock()
        self.node.get_name.return_value = NAME
        self.bond = Bond(self.node, _message, PERIOD_S, lambda: self.time_s)
        self.beat = self.node.create_timer.call_args.args[1]
        self.hear_message = self.node.create_subscription.call_args.args[2]

    @property
    def sent(self) -> list[SimpleNamespace]:
        return [call.args[0] for call in self.node.create_publisher().publish.call_args_list]

    @property
    def told(self) -> list[bool]:
        """What the messages say: whether the node is alive."""
        return [message.active for message in self.sent]

    def hear(self, *, active: bool, name: str = NAME, instance_id: str = "manager") -> None:
        self.hear_message(_message(id=name, instance_id=instance_id, active=active))


def test_a_heartbeat_goes_on_while_the_manager_lives() -> None:
    bonded = Bonded()
    assert bonded.told == [True]
    assert (bonded.sent[0].id, bonded.sent[0].heartbeat_period) == (NAME, PERIOD_S)
    bonded.hear(active=True)
    bonded.time_s += 10 * CONNECT_TIMEOUT_S
    bonded.beat()
    assert bonded.bond.formed
    assert bonded.told == [True, True]
    bonded.bond.end()
    assert bonded.told == [True, True, False]
    bonded.node.destroy_publisher.assert_called_once()


def test_without_a_manager_the_node_falls_silent() -> None:
    bonded = Bonded()
    bonded.hear(active=True, instance_id=bonded.sent[0].instance_id)  # its own message
    bonded.hear(active=True, instance_id=Bonded().sent[0].instance_id)  # a node of the same name
    bonded.hear(active=True, name="recorder_node")
    assert not bonded.bond.formed
    bonded.time_s += 0.9 * CONNECT_TIMEOUT_S
    bonded.beat()
    bonded.time_s += 0.2 * CONNECT_TIMEOUT_S
    bonded.beat()
    bonded.bond.end()
    assert bonded.told == [True, True]


def test_the_end_that_the_manager_says_is_acknowledged_once() -> None:
    bonded = Bonded()
    bonded.hear(active=True)
    bonded.hear(active=False)
    bonded.hear(active=False)
    bonded.beat()
    bonded.bond.end()
    assert bonded.told == [True, False]


@pytest.fixture
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.shutdown()


@pytest.mark.usefixtures("ros")
@pytest.mark.parametrize(("kind", "part"), [(PolicyNode, "_session"), (RecorderNode, "recorder")])
@pytest.mark.parametrize("end", ["on_deactivate", "on_shutdown", "on_error"])
def test_the_bond_lasts_from_activation_to_deactivation(
    kind: Any, part: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bonds: list[MagicMock] = []
    monkeypatch.setattr(lifecycle, "form_bond", lambda node: bonds.append(MagicMock()) or bonds[-1])
    node = kind()
    for _ in range(2):
        setattr(node, part, MagicMock())
        node.on_activate(None)
        assert not bonds[-1].end.called
        getattr(node, end)(None)
        assert bonds[-1].end.call_count == 1
    assert len(bonds) == 2
    node.destroy_node()


def test_a_bond_needs_its_package_and_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    node = MagicMock()
    node.get_parameter.return_value.value = 0.0
    assert form_bond(node) is None
    assert not node.get_logger().info.called
    node.get_parameter.return_value.value = PERIOD_S
    monkeypatch.setattr(lifecycle, "bond_type", lambda: None)
    assert form_bond(node) is None
    assert "bond is not installed" in node.get_logger().info.call_args.args[0]
    monkeypatch.setattr(lifecycle, "bond_type", lambda: _message)
    assert isinstance(form_bond(node), Bond)


@pytest.mark.usefixtures("ros")
@pytest.mark.parametrize("kind", [PolicyNode, RecorderNode])
def test_a_cleanup_leaves_nothing_of_what_was_configured(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = kind()
    before = set(node._entities())
    for _ in range(2):
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        assert len(node._entities()) > len(before) + 5
        assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS
        assert node.trigger_deactivate() == TransitionCallbackReturn.SUCCESS
        assert node.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
        assert set(node._entities()) == before
    node.destroy_node()


@pytest.mark.parametrize(
    ("others", "told"),
    [([], 0), ([("policy_node", "/left"), ("recorder_node", "/")], 0), ([("policy_node", "/")], 1)],
)
def test_a_node_warns_once_of_another_with_its_name(
    others: list[tuple[str, str]], told: int
) -> None:
    node = MagicMock()
    node.get_name.return_value, node.get_namespace.return_value = "policy_node", "/"
    node.get_fully_qualified_name.return_value = "/policy_node"
    node.get_node_names_and_namespaces.return_value = [("policy_node", "/"), *others]
    warn_of_duplicates(node)
    look = node.create_timer.call_args.args[1]
    look()
    said = [call.args[0] for call in node.get_logger().warning.call_args_list]
    assert len(said) == told
    assert all("is called /policy_node" in text for text in said)
    assert node.create_timer.return_value.cancel.called
