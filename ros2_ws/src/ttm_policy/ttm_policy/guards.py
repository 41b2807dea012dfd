"""What keeps a robot from moving blindly: the emergency stop, and checks of inputs, clocks and commands.

`StopThread` stops the robot, whatever the thread of the node is held by. `EStop` decides whether the
emergency stop lets the robot move, and `EStopTopic` connects it to ROS. All else are checks, which raise an
`ObservationError`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm.policy.errors import MalformedObservation, ObservationError, StaleObservation, printable
from ttm_policy.contract import ImageSource, VectorSource
from ttm_policy.programs import steady_timer
from ttm_policy.qos import MessageInfo, listen, publisher_of

SWITCH_INTERVAL_S = 0.001
"""How long one Python thread may keep the others waiting. Python's own 5 ms, of which the thread that stops
the robot waits several, add up to more than the 20 ms in which it is to do so."""


class StopThread:
    """Hears the emergency stop, and sends zero, on a thread of its own.

    `node` is a hidden node, whose subscriptions and timers this thread serves. Whoever sends what moves the
    robot does so with `lock`, and only while `stopped` is false: then zero is the last command of each
    stop, whichever thread sends it. Only a call into a C library that keeps Python's lock holds this thread.
    """

    def __init__(self, owner: Node) -> None:
        """owner: the node whose topics and names these are."""
        self.owner = owner
        self.lock = threading.RLock()
        self.stopped = False
        """Whether nothing may move until the thread of `owner` has taken note. Guarded by `lock`."""
        self.on_stop: Callable[[], object] = lambda: None
        """Sends zero if the robot is this node's to move. It is called with `lock`, by this thread."""
        self.on_news: Callable[[], object] = lambda: None
        """Called by the thread of `owner` after `tell`."""
        # Names that begin with an underscore are hidden from `ros2 node list`. The names of topics are those
        # of `owner`, remapped by then.
        self.node = Node(
            f"_{owner.get_name()}_stop",
            context=owner.context,
            namespace=owner.get_namespace(),
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._error: Exception | None = None
        self._guard = owner.create_guard_condition(self._deliver)
        self._executor, self._ended = SingleThreadedExecutor(context=owner.context), False
        self._executor.add_node(self.node)
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        self._thread = threading.Thread(target=self._run, name="stop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the robot, unless it is stopped. Call this on this thread."""
        with self.lock:
            if not self.stopped:
                self.stopped = True
                self.on_stop()

    def tell(self) -> None:
        """Let the thread of `owner` call `on_news`."""
        self._guard.trigger()

    def close(self) -> None:
        """End the thread, and destroy its node with all that is on it."""
        self._ended = True
        self._executor.wake()
        self._thread.join()
        self._executor.shutdown()
        self.owner.destroy_guard_condition(self._guard)
        self.node.destroy_node()

    def _run(self) -> None:
        try:
            while not self._ended:
                self._executor.spin_once(timeout_sec=0.1)
        except ExternalShutdownException:
            pass
        except Exception as error:  # raised again by the thread of the node, which ends for it
            self._error = error
            self.tell()

    def _deliver(self) -> None:
        if self._error is not None:
            raise self._error
        self.on_news()


FIRST_STATE_S = 5.0
"""How long the robot waits for the first message of a publisher of the emergency stop: a process that is
started while the button is pressed does not move before it has heard so."""
REARM = "call the service rearm to go on"
"""The end of each reason that lasts until a person calls that service."""
RELEASED = f"it was released; {REARM}"
MOST_PUBLISHERS = 64
"""The number of publishers that are distinguished; all others count as one."""


@dataclass
class _Button:
    """What one publisher has said last, and when."""

    pressed: bool
    said: bool
    """Its last message. One that may be of another publisher releases nothing."""
    heard_s: float
    sent_ns: int
    repeats: bool = False
    """Whether it has said so more than once, and must not fall silent."""


class EStop:
    """The state of the emergency stop, from the messages of its topic.

    Each publisher is a button of its own: the robot stops while one of them is pressed, whatever the others
    say. One that is gone while it is pressed, or while it must be heard, holds the robot until `arm`. All
    times are those of a steady clock, in seconds.
    """

    def __init__(self, *, rearm: bool, timeout_s: float, disarmed: str = ""):
        """rearm: whether the robot waits for `arm` after all buttons were released.

        timeout_s: the longest silence of a publisher that has repeated its message, after which the robot
        stops as if the button were pressed; 0 to accept any. disarmed: why it waits for `arm` at the start.
        """
        self._rearm, self.timeout_s = rearm, timeout_s
        self._buttons: dict[bytes | None, _Button] = {}
        self._disarmed = disarmed
        """Why the robot waits for `arm`, or an empty text."""
        self._expected_s: float | None = None

    @property
    def pressed(self) -> bool:
        return any(button.pressed for button in self._buttons.values())

    def heard(
        self,
        pressed: bool,
        wall_s: float,
        publisher: bytes | None = None,
        *,
        sent_ns: int = 0,
        alone: bool = True,
    ) -> None:
        """Take note of a message; of each publisher, the newest one counts.

        publisher: its identity; None where rclpy does not give it. Then one button stands for all, which is
        released by a message only if its publisher is `alone`. sent_ns: the same for all copies of a message.
        """
        self._lose_if_silent(wall_s)
        if pressed and self._rearm:
            self._disarmed = self._disarmed or RELEASED
        if publisher not in self._buttons and len(self._buttons) >= MOST_PUBLISHERS:
            publisher = None
        button = self._buttons.setdefault(publisher, _Button(pressed, pressed, wall_s, sent_ns))
        button.repeats |= not (pressed or button.pressed) and sent_ns != button.sent_ns
        button.said, button.heard_s, button.sent_ns = pressed, wall_s, sent_ns
        if pressed or publisher is not None or alone:
            button.pressed = pressed

    def arm(self, living: Collection[bytes]) -> bool:
        """Let the robot move unless a button of the `living` publishers is pressed; return whether it may."""
        self._buttons = {
            publisher: button
            for publisher, button in self._buttons.items()
            if publisher in living or (publisher is None and living)
        }
        if None in self._buttons:
            self._buttons[None].pressed = self._buttons[None].said
        if not self.pressed:
            self._disarmed = ""
        return not self.pressed

    def problem(self, wall_s: float, publishers: int) -> str:
        """Return why the robot must not move, or an empty text. publishers: those of the topic."""
        self._lose_if_silent(wall_s)
        if self.pressed:
            return "it is pressed"
        if self.timeout_s and self._silence_s(wall_s) > self.timeout_s:
            others = any(wall_s - b.heard_s <= self.timeout_s for b in self._buttons.values())
            replaced = "; call the service rearm if it has gone for good" if others else ""
            every = f"{self.timeout_s:g} s (e_stop_timeout_s){replaced}"
            return f"a publisher of its topic is silent; each must send a message every {every}"
        if self._disarmed:
            return self._disarmed
        return "its state is not known yet" if self._is_expected(wall_s, publishers) else ""

    def _silence_s(self, wall_s: float) -> float:
        """Return the longest silence of those that repeat their message, or of all if none does."""
        heard_s = [button.heard_s for button in self._buttons.values() if button.repeats]
        if not heard_s:
            heard_s = [max((b.heard_s for b in self._buttons.values()), default=float("-inf"))]
        return wall_s - min(heard_s)

    def _lose_if_silent(self, wall_s: float) -> None:
        """A heartbeat that was lost stops the robot as the button does; one never heard only waits."""
        lasts = self._rearm and self.timeout_s and self._buttons
        if lasts and self._silence_s(wall_s) > self.timeout_s:
            self._disarmed = self._disarmed or RELEASED

    def _is_expected(self, wall_s: float, publishers: int) -> bool:
        """Return whether a publisher is there whose first message may still be on its way."""
        if self._buttons or not publishers:
            return False
        if self._expected_s is None:
            self._expected_s = wall_s
        return wall_s - self._expected_s < FIRST_STATE_S


E_STOP_TOPIC = "e_stop"
SILENCE_LOOKS = 4
"""How often a silence of `e_stop_timeout_s` is looked for within that time."""
SHORT = "it was pressed for a moment"
"""The reason of a stop that was over before the thread of the node could learn of it."""


class EStopTopic:
    """The topic `e_stop` and the service `~/rearm`, heard on the thread that stops the robot at once.

    `on_change` is called by the thread of the node after every message and every re-arming. A message is
    received up to three times, which changes nothing; `listen` drops copies that come late, and releases
    that a newer press has overtaken.
    """

    def __init__(self, stop: StopThread, e_stop: EStop, on_change: Callable[[], None]):
        self._node, self._stop, self._e_stop = stop.owner, stop, e_stop
        self._unread = False
        """Whether nobody has read `problem` since the newest stop."""
        self._on_change = stop.on_news = on_change
        topic = self._node.resolve_topic_name(E_STOP_TOPIC)
        listen(stop.node, Bool, topic, self._receive, keeps=lambda m: bool(m.data), apart=True)
        if e_stop.timeout_s:
            steady_timer(stop.node, e_stop.timeout_s / SILENCE_LOOKS, self._stop_if_needed)
        self._node.create_service(Trigger, "~/rearm", self._rearm)

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text. A stop that is over by now is given once.

        After an empty text the robot may move: whoever reads this has taken note of all stops before.
        """
        with self._stop.lock:
            problem = self._problem()
            if self._unread and not problem:
                problem = SHORT
            self._unread = False
            if not problem:
                self._stop.stopped = False
            return problem

    @property
    def stopped(self) -> bool:
        """Whether nothing may move before `problem` was read and is empty."""
        return self._stop.stopped

    def _problem(self) -> str:
        return self._e_stop.problem(time.monotonic(), self._node.count_publishers(E_STOP_TOPIC))

    def _stop_if_needed(self) -> None:
        """Stop the robot if it must not move; on the thread that does so."""
        with self._stop.lock:
            if not self._stop.stopped and self._problem():
                self._unread = True
                self._stop.stop()

    def _receive(self, message: Bool, info: MessageInfo) -> None:
        publisher = publisher_of(info)
        alone = publisher is None and self._node.count_publishers(E_STOP_TOPIC) <= 1
        facts = {"sent_ns": info["source_timestamp"], "alone": alone}
        with self._stop.lock:
            self._e_stop.heard(message.data, time.monotonic(), publisher, **facts)
            self._stop_if_needed()
        self._stop.tell()

    def _rearm(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(E_STOP_TOPIC))
        with self._stop.lock:
            response.success = self._e_stop.arm([bytes(info.endpoint_gid) for info in infos])
            problem = self._problem()
        self._on_change()
        response.message = problem or "armed"
        if not response.success:
            response.message = "release the emergency stop first"
        return response


ECHO = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers."""
REMEMBERED = 256
"""Own messages that are remembered for each topic: five seconds of 50 a second."""
CALM_S = 1.0
"""The time without a command of others after which the policy may go on, in seconds."""


class ForeignCommand(ObservationError):
    """Somebody else commands the robot as well, so that what it does is not what the policy commands."""


class CommandEcho:
    """Receives what is sent to the robot, and compares it with what this node has sent.

    A publisher that only exists, such as that of a process that was killed, is no fault.
    """

    def __init__(self, node: Node, types: Mapping[str, Any]):
        """types: the message class of each command topic."""
        self._node = node
        # Messages and not their bytes are compared, since bytes for padding are arbitrary.
        self._own: dict[str, deque[Any]] = {topic: deque(maxlen=REMEMBERED) for topic in types}
        self._foreign_s: dict[str, float] = {}
        for topic, kind in types.items():
            node.create_subscription(kind, topic, partial(self._receive, topic), ECHO)

    def _receive(self, topic: str, message: Any) -> None:
        # A copy, since the thread that stops the robot may send meanwhile.
        if message not in tuple(self._own[topic]):
            self._foreign_s[topic] = time.monotonic()

    def sent(self, topic: str, message: Any) -> None:
        """Take note of an own message. Call this before it is published."""
        self._own[topic].appendleft(message)

    def unheard(self, publishers: Mapping[str, Publisher[Any]]) -> set[str]:
        """Return the topics to which nobody but this node listens, of its publisher for each topic."""
        return {topic for topic, own in publishers.items() if own.get_subscription_count() <= 1}

    def require_alone(self, wall_s: float) -> None:
        """Raise `ForeignCommand` if somebody else has commanded the robot within `CALM_S`."""
        for topic, foreign_s in self._foreign_s.items():
            if wall_s - foreign_s < CALM_S:
                other = f"another publisher{self._others(topic)}; stop it, or remap one of the two"
                name = self._node.resolve_topic_name(topic)
                raise ForeignCommand(f"{name} gets commands from {other}")

    def _others(self, topic: str) -> str:
        """Return the names of the other publishers in brackets, or an empty text."""
        own = self._node.get_name(), self._node.get_namespace()
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(topic))
        names = sorted({i.node_name for i in infos if (i.node_name, i.node_namespace) != own})
        return f" ({', '.join(names)})" if names else ""


class Arrivals:
    """The wall time at which the stamp of each input, or the clock of ROS, changed last."""

    def __init__(self) -> None:
        self._changed: dict[str, tuple[int, float]] = {}
        """Name -> its last stamp, and when that came first."""

    def add(self, name: str, stamp_ns: int, wall_s: float) -> None:
        """Take note of a message of an input, received at `wall_s`."""
        if name not in self._changed or self._changed[name][0] != stamp_ns:
            self._changed[name] = stamp_ns, wall_s

    def require_alive(self, wall_s: float, max_age_s: float) -> None:
        """Raise `StaleObservation` if an input has had no new stamp for more than `max_age_s`."""
        for name, (_, changed_s) in self._changed.items():
            if (silent_s := wall_s - changed_s) > max_age_s:
                most = f"at most {max_age_s} s is accepted"
                raise StaleObservation(f"{name} has sent no new stamp for {silent_s:.3f} s; {most}")

    def clear(self) -> None:
        """Forget all inputs. Those that send nothing afterwards are missing, and not silent."""
        self._changed.clear()


STEP_S = 0.1
"""A clock that is further off than this from one look to the next was set, and not slewed."""


class ClockSteps:
    """Finds out when the system clock is set."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def step_s(self, now_ns: int, before_s: float, after_s: float) -> float:
        """Return how far the clock was set ahead since the last call, in seconds; below 0 if it was set back.

        now_ns: what it showed between the times `before_s` and `after_s` of the steady clock. If they are far
        apart, nothing can be said, and the next call counts.
        """
        if after_s - before_s > STEP_S / 4:
            return 0.0
        last_s, self._ahead_s = self._ahead_s, now_ns * 1e-9 - after_s
        step_s = 0.0 if last_s is None else self._ahead_s - last_s
        return step_s if abs(step_s) > STEP_S else 0.0


def require_frame_id(message: Any, source: ImageSource | VectorSource) -> None:
    """Raise `MalformedObservation` unless the header has the frame that the contract names, if any."""
    given = message.header.frame_id
    if source.frame_id and given != source.frame_id:
        what = f"'{source.name}' ({source.topic}) is in frame '{printable(given, 100)}'"
        raise MalformedObservation(f"{what}; the contract accepts '{source.frame_id}'")


def require_contrast(frame: npt.NDArray[np.uint8], source: ImageSource) -> None:
    """Raise `MalformedObservation` for a frame (H, W, 3) that is nearly of one colour, such as black."""
    if not source.min_contrast:
        return
    contrast = float(frame.mean(axis=2, dtype=np.float32).std())
    if contrast < source.min_contrast:
        raise MalformedObservation(
            f"camera '{source.name}' ({source.topic}) has a contrast of {contrast:.1f}; the contract asks "
            f"for {source.min_contrast:g}: is its lens covered, or the scene dark?"
        )


def require_plausible(values: npt.NDArray[np.float32], source: VectorSource) -> None:
    """Raise `MalformedObservation` for values (K,) outside of the contract's bounds. NaN passes here."""
    for value, field in zip(values, source.fields, strict=True):
        ends = np.float32(field.minimum * field.scale), np.float32(field.maximum * field.scale)
        if value < min(ends) or value > max(ends):
            raise MalformedObservation(
                f"'{field.path}' of '{source.name}' ({source.topic}) is {value / field.scale:g}; the "
                f"contract accepts {field.minimum:g} to {field.maximum:g}: check the sensor"
            )
