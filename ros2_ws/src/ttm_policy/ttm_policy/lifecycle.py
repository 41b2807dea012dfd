"""A managed (life-cycle) node: its transitions, its diagnostics, and its bond with a manager."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from ttm.policy.errors import UserError
from ttm_policy.node_parameters import declare_parameters
from ttm_policy.parameters import NodeParameters
from ttm_policy.programs import steady_timer, warn_of_duplicates

SUCCESS = TransitionCallbackReturn.SUCCESS
DIAGNOSTICS_PERIOD_S = 1.0
"""Wall time between two messages on `/diagnostics`, whatever the node is doing."""
NOT_CONFIGURED = "not configured"
CONNECT_TIMEOUT_S = 10.0
"""How long the node looks for a manager. This is the default of the package `bond`."""
HEARTBEAT_TIMEOUT_S = 4.0
"""What the messages say about the longest silence."""
OURS = "ttm_policy-"
"""What the IDs of instances in this package begin with. Those of a manager are bare UUIDs."""
ACKNOWLEDGED_S = 0.1
"""The longest wait for the manager to receive the end of the bond."""


class ManagedNode(LifecycleNode):
    """The life cycle that the nodes share. A sub-class fills in what happens in it."""

    def __init__(
        self,
        name: str,
        parameters: type[NodeParameters],
        what: str,
        on_parameters: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        """what: what `/diagnostics` describes. options: those of `rclpy.node.Node`."""
        super().__init__(name, **options)
        declare_parameters(self, parameters, on_parameters)
        self._problem = NOT_CONFIGURED
        self._connected: set[Any] = set()
        """The publishers, subscriptions, services and so on that `_configure` has created."""
        self._bond: Bond | None = None
        self._name_of_status = f"{self.get_fully_qualified_name()}: {what}"
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        steady_timer(self, DIAGNOSTICS_PERIOD_S, self.publish_diagnostics)
        warn_of_duplicates(self)

    def _configure(self) -> None:
        """Prepare everything, and command nothing. A `UserError` fails the transition."""

    def _activate(self) -> None:
        """Start."""

    def _deactivate(self) -> None:
        """Stop; in any state, and after an error."""

    def _drop(self) -> None:
        """Drop what was configured, after `_deactivate` and before its topics and services go."""

    def _status(self) -> DiagnosticStatus:
        """Return the state for `/diagnostics`, without a name."""
        raise NotImplementedError

    def _fail(self, problem: str) -> None:
        """Note why the node could not be configured."""
        self._problem = problem

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the parameters, and connect to all topics."""
        before = self._entities()
        try:
            self._configure()
            self._connected = self._entities().keys() - before.keys()
        except UserError as error:
            self._fail(" ".join(str(error).split()))
            self.get_logger().error(self._problem)
            return TransitionCallbackReturn.FAILURE
        except Exception:  # rclpy would drop the traceback
            self._fail("configure failed; see the log")
            self.get_logger().error(traceback.format_exc())
            return TransitionCallbackReturn.ERROR
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start, and show the lifecycle manager that the node is alive."""
        self._activate()
        self._bond = form_bond(self)
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop."""
        self._stop()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop if need be, and drop everything. A shutdown, in any state, and an error do the same."""
        self._stop()
        self._drop()
        for entity, destroy in self._entities().items():
            if entity in self._connected:
                destroy(entity)
        self._connected = set()
        self._problem = NOT_CONFIGURED
        return SUCCESS

    on_shutdown = on_error = on_cleanup

    def _entities(self) -> dict[Any, Callable[[Any], object]]:
        """Return all that the node has now, with what destroys it."""
        kinds: tuple[tuple[Iterable[Any], Callable[[Any], object]], ...] = (
            (self.publishers, self.destroy_publisher),
            (self.subscriptions, self.destroy_subscription),
            (self.services, self.destroy_service),
            (self.clients, self.destroy_client),
            (self.timers, self.destroy_timer),
            (self.guards, self.destroy_guard_condition),
            (self.waitables, lambda action_server: action_server.destroy()),
        )
        return {entity: destroy for entities, destroy in kinds for entity in entities}

    def _stop(self) -> None:
        self._deactivate()
        if self._bond is not None:
            self._bond.end()
            self._bond = None

    def publish_diagnostics(self) -> None:
        """Publish the status. This is called once a second, and may be when it changes."""
        status = self._status()
        status.name = self._name_of_status
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def bond_type() -> Any:
    """Return the type of the messages, or None if ROS does not have the package."""
    try:
        return import_module("bond.msg").Status
    except (ImportError, AttributeError):
        return None


def form_bond(node: LifecycleNode) -> Bond | None:
    """Begin the bond of a node that becomes active, or return None if it is to have none."""
    period_s = node.get_parameter("bond_heartbeat_period").value
    if not period_s:
        return None
    kind = bond_type()
    if kind is None:
        node.get_logger().info("no bond: the ROS package bond is not installed")
        return None
    return Bond(node, kind, period_s)


class Bond:
    """One end of a bond: a heartbeat from the activation of a node to its deactivation.

    It shows the lifecycle manager of Nav2 that the node is alive. The protocol is that of the package `bond`
    (ros/bond_core): both sides publish their state under the same ID, the name of the managed node; the ID of
    an instance distinguishes the two. The bond falls silent if no manager answers within `CONNECT_TIMEOUT_S`,
    and when the manager ends it. Neither stops the robot: the manager does so by deactivating the node.
    """

    def __init__(
        self,
        node: LifecycleNode,
        kind: Any,
        period_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ):
        """Begin the heartbeat. kind: what `bond_type` returned. now_s: steady time."""
        self._node, self._kind, self._period_s, self._now_s = node, kind, period_s, now_s
        self._instance_id = f"{OURS}{uuid.uuid4()}"
        self._until_s = now_s() + CONNECT_TIMEOUT_S
        self.formed = self.over = False
        self._publisher = node.create_publisher(kind, "bond", 5)
        self._subscription = node.create_subscription(kind, "bond", self._receive, 100)
        self._timer = steady_timer(node, period_s, self._beat)
        self._send(active=True)

    def _beat(self) -> None:
        if not self.formed and self._now_s() > self._until_s:
            self.over = True
        if self.over:
            self._timer.cancel()
        else:
            self._send(active=True)

    def _receive(self, message: Any) -> None:
        """Obey the manager. The topic carries other bonds too."""
        if message.instance_id.startswith(OURS) or message.id != self._node.get_name() or self.over:
            return
        if not self.formed:
            self.formed = True
            self._node.get_logger().info("bonded with the lifecycle manager")
        if not message.active:
            self.over = True
            self._send(active=False)
            self._node.get_logger().info("the lifecycle manager has ended the bond")

    def _send(self, *, active: bool) -> None:
        message = self._kind()
        message.header.stamp = self._node.get_clock().now().to_msg()
        message.id, message.instance_id = self._node.get_name(), self._instance_id
        message.active = active
        message.heartbeat_timeout = HEARTBEAT_TIMEOUT_S
        message.heartbeat_period = float(self._period_s)
        self._publisher.publish(message)

    def end(self) -> None:
        """End the bond, tell the manager, and destroy the topics."""
        if not self.over:
            self.over = True
            self._send(active=False)
            self._publisher.wait_for_all_acked(Duration(seconds=ACKNOWLEDGED_S))
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._publisher)
