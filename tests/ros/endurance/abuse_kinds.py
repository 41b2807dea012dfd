"""The kinds of abuse that a running robot has to bear, each with the function that begins it.

What a stranger on the network sends comes from an `Attacker`, in a process of its own: a busy Python beside
the robot that measures would delay what it measures. The rest is done to the processes themselves, or to the
sensors of the robot.
"""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from failing_robot import FAULTS, FailingRobot, Spinning, command_of_another, made_up_observation
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.srv import ChangeState
from node_process import NodeProcess
from PIL import Image as PillowImage
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float32MultiArray, String
from std_srvs.srv import Trigger

from ttm.policy import PolicySpec
from ttm_policy.contract import EXECUTED_ACTION, ImageSource, load_contract
from ttm_policy.messages import MESSAGE_TYPES, frame_to_image, ns_to_stamp, write_vector
from ttm_policy.parameters import LIMITS
from ttm_policy.qos import LATCHED

RELIABLE = QoSProfile(depth=10)
KEPT = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""Heard by every subscription."""
BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
FIRST_S = 10.0
"""The longest wait until the attacked node is found."""
GIVES_WAY = 10
"""How much nicer an attacker is than the node: it stands for a program of another computer."""
SEED = 0
DAY_S = 86_400.0
SUSPENDED_S = 2.5
HEAD, WRIST = "head/image_raw", "wrist/image_raw"


@dataclass(frozen=True)
class Scene:
    """What an attacker knows of the robot. It can be sent to another process."""

    contract: Path
    spec: PolicySpec
    snapshot: Path
    """The file of the node's parameter `snapshot_path`."""
    instructions: tuple[str, ...]
    """Two that the policy knows."""
    page: tuple[int, str] = (0, "")
    """Port and token of the page, for an attack on `web_node`."""


class Place(Protocol):
    """Where abuse happens."""

    robot: FailingRobot
    policy: NodeProcess
    resumed_s: float
    """When a suspended node went on, on the clock of the system: it cannot answer before."""

    @property
    def scene(self) -> Scene: ...

    def attack(self, name: str, page: tuple[int, str] = (0, "")) -> Callable[[], object]:
        """Run one of `ATTACKS` in a process of its own; return what ends it."""

    def start(self, name: str, **parameters: Any) -> NodeProcess:
        """Start another node beside the policy's, which must live as long as the abuse lasts."""

    def wait_for_page(self, port: int, token: str) -> None:
        """Wait until `web_node` serves its page."""


class Attacker:
    """Sends messages, and calls services, until it is told that it is over."""

    def __init__(self, scene: Scene, tell: Callable[[], None], over: Callable[[], bool]):
        """tell: is called for each thing done."""
        self.scene, self.tell, self.over = scene, tell, over
        self.rng = random.Random(SEED)
        self.contract = load_contract(scene.contract)
        on_ros_time = [Parameter("use_sim_time", value=True)]
        self.node = Node("attacker", parameter_overrides=on_ros_time)
        self._spinning = Spinning(self.node)
        self.find(lambda: self.node.get_clock().now().nanoseconds > 0)

    def now(self) -> Any:
        """Return the time of the robot, as a stamp."""
        return self.node.get_clock().now().to_msg()

    def message(self, name: str) -> Any:
        """Return a good message of an input of the contract."""
        (source,) = (s for s in self.contract.inputs if s.name == name)
        seen = made_up_observation(self.scene.spec)
        seen[EXECUTED_ACTION] = np.zeros(self.scene.spec.action_size, np.float32)
        if isinstance(source, ImageSource):
            return frame_to_image(seen[name], source, self.now())
        message = MESSAGE_TYPES[source.type]()
        write_vector(message, source, seen[name])
        return message

    def beats(self, hz: float) -> Iterator[int]:
        """Count up, so many times a second, until it is over."""
        next_s = time.monotonic()
        for turn in count():
            if self.over():
                return
            yield turn
            next_s = max(next_s + 1 / hz, time.monotonic() - 1.0)
            time.sleep(max(0.0, next_s - time.monotonic()))

    def send(self, topic: str, messages: Iterable[Any], hz: float, qos: QoSProfile = KEPT) -> None:
        """Publish so often. Messages with a header that has no stamp are stamped with the time now."""
        messages = iter(messages)
        message = next(messages)
        publisher = self.node.create_publisher(type(message), topic, qos)
        self.find(lambda: publisher.get_subscription_count() > 0)
        for _ in self.beats(hz):
            header = getattr(message, "header", None)
            if header is not None:
                header.stamp = self.now()
            publisher.publish(message)
            self.tell()
            message = next(messages)

    def call(
        self, kind: Any, name: str, requests: Iterable[Any], at_once: int = 1, hz: float = 1e6
    ) -> None:
        """Call a service of the policy's node as soon as one of `at_once` calls is answered."""
        client = self.node.create_client(kind, f"policy_node/{name}")
        self.find(client.service_is_ready)
        under_way: list[Any] = []
        requests = iter(requests)
        for _ in self.beats(hz):
            while len(under_way) >= at_once and not self.over():
                under_way = [call for call in under_way if not call.done()]
                time.sleep(0.0005)
            under_way.append(client.call_async(next(requests)))
            self.tell()

    def find(self, found: Callable[[], bool]) -> None:
        """Wait until something is there; not for ever, since some topics have no listener."""
        until_s = time.monotonic() + FIRST_S
        while not found() and not self.over() and time.monotonic() < until_s:
            time.sleep(0.01)

    def close(self) -> None:
        self._spinning.end()
        self.node.destroy_node()


Attack = Callable[[Attacker], None]


def run_attack(name: str, scene: Scene, done: Any, over: Any) -> None:
    """Be the attacker, as a process of its own. done: a shared counter. over: a shared event."""
    os.nice(GIVES_WAY)
    rclpy.init()

    def tell() -> None:
        done.value += 1

    attacker = Attacker(scene, tell, over.is_set)
    ATTACKS[name](attacker)
    attacker.close()
    rclpy.try_shutdown()


# Floods


def _stamped(name: str, topic: str, hz: float, qos: QoSProfile = BEST_EFFORT) -> Attack:
    """Good messages of an input, far too many."""
    return lambda a: a.send(topic, repeat(a.message(name)), hz, qos)


def _images_of_100_mb(a: Attacker) -> None:
    message = Image(height=5000, width=7000, encoding="rgb8", step=21_000)
    message.data = array("B", bytes(105_000_000))
    a.send(WRIST, repeat(message), 2)


def _new_instructions(a: Attacker) -> None:
    a.send("instruction", (String(data=f"carry {n} elephants") for n in count()), 100)


def _known_instructions(a: Attacker) -> None:
    a.send("instruction", cycle(String(data=text) for text in a.scene.instructions), 50)


def _many_buttons(a: Attacker) -> None:
    buttons = [a.node.create_publisher(Bool, "e_stop", KEPT) for _ in range(200)]
    for turn in a.beats(1000):
        buttons[turn % len(buttons)].publish(Bool(data=False))
        a.tell()


def _buttons_come_and_go(a: Attacker) -> None:
    for _ in a.beats(20):
        button = a.node.create_publisher(Bool, "e_stop", LATCHED)
        button.publish(Bool(data=False))
        time.sleep(0.02)
        a.node.destroy_publisher(button)
        a.tell()


def _clock_of_another(a: Attacker) -> None:
    """Says the same time as the robot's own, 2,000 times a second."""
    publisher = a.node.create_publisher(Clock, "/clock", RELIABLE)
    for _ in a.beats(2000):
        publisher.publish(Clock(clock=a.now()))
        a.tell()


def _clock_back_and_forth(a: Attacker) -> None:
    """A second clock, a day behind and a day ahead."""
    publisher = a.node.create_publisher(Clock, "/clock", RELIABLE)
    begun_ns = a.node.get_clock().now().nanoseconds
    for turn in a.beats(20):
        day_ns = round(DAY_S * 1e9) * (1 if turn % 2 else -1)
        publisher.publish(Clock(clock=ns_to_stamp(max(0, begun_ns + day_ns))))
        a.tell()


def _diagnostics(a: Attacker) -> None:
    def messages() -> Iterator[DiagnosticArray]:
        for number in count():
            status = DiagnosticStatus(name=f"stranger {number}: x", message="x" * 1000)
            yield DiagnosticArray(status=[status])

    a.send("/diagnostics", messages(), 500)


def _nodes_come_and_go(a: Attacker) -> None:
    for turn in a.beats(10):
        context = rclpy.Context()
        rclpy.init(context=context)
        visitor = Node(f"visitor_{turn}", context=context)
        visitor.create_publisher(TwistStamped, "cmd_vel", 1)
        time.sleep(0.05)
        visitor.destroy_node()
        rclpy.try_shutdown(context=context)
        a.tell()


def _packets(a: Attacker) -> None:
    """Garbage for the ports of DDS, half of it with the head of an RTPS message."""
    first = 7400 + 250 * int(os.environ["ROS_DOMAIN_ID"])
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for turn in a.beats(2000):
        head = b"RTPS\x02\x03\x01\x0f" if turn % 2 else b""
        data = head + a.rng.randbytes(a.rng.choice([0, 1, 12, 20, 100, 1400]))
        with suppress(OSError):  # nobody listens
            sender.sendto(data, ("127.0.0.1", first + a.rng.randrange(60)))
        a.tell()


def _late_copies(a: Attacker) -> None:
    """Every message of a sensor comes again twice, late and out of order."""
    lock, waiting = threading.Lock(), []
    seen: dict[str, set[int]] = {}
    publishers = {}

    def hear(topic: str) -> Callable[[Any], None]:
        def on_message(message: Any) -> None:
            stamp_ns = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            if stamp_ns not in seen[topic]:
                seen[topic].add(stamp_ns)
                with lock:
                    waiting.extend((topic, message) for _ in range(2))

        return on_message

    for source in a.contract.inputs:
        kind, topic = MESSAGE_TYPES[source.type], source.topic
        seen[topic], publishers[topic] = set(), a.node.create_publisher(kind, topic, BEST_EFFORT)
        a.node.create_subscription(kind, topic, hear(topic), BEST_EFFORT)
    for _ in a.beats(300):
        with lock:
            late = waiting.pop(a.rng.randrange(len(waiting))) if len(waiting) > 20 else None
        if late is not None:
            publishers[late[0]].publish(late[1])
            a.tell()


# Hostile images


def _png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of a size, RGB of 8 bits, with chunks after its head."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (head, *chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _zeros(size: int) -> bytes:
    """Return so many zeros, deflated."""
    packer, block = zlib.compressobj(9), bytes(1 << 20)
    parts = [packer.compress(block) for _ in range(size >> 20)]
    return b"".join([*parts, packer.compress(bytes(size & ((1 << 20) - 1))), packer.flush()])


def _encoded(kind: str, width: int = 128, height: int = 128) -> bytes:
    buffer = io.BytesIO()
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    PillowImage.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()


def _picture(*data: Callable[[], bytes], hz: float = 30.0, form: str = "png") -> Attack:
    """Compressed images of the head's camera with these bytes."""

    def attack(a: Attacker) -> None:
        messages = [CompressedImage(format=form, data=array("B", make())) for make in data]
        a.send(HEAD, cycle(messages), hz)

    return attack


def _flipped_bits(a: Attacker) -> None:
    good = [_encoded("png"), _encoded("jpeg")]

    def messages() -> Iterator[CompressedImage]:
        for data in cycle(good):
            bad = bytearray(data)
            for _ in range(a.rng.randint(1, 20)):
                bad[a.rng.randrange(len(bad))] = a.rng.randrange(256)
            yield CompressedImage(format="png", data=array("B", bad))

    a.send(HEAD, messages(), 100)


def _raw(**fields: Any) -> Attack:
    """Raw images of the wrist's camera whose fields do not fit their bytes."""

    def attack(a: Attacker) -> None:
        message = a.message("wrist")
        for name, value in fields.items():
            setattr(message, name, value)
        a.send(WRIST, repeat(message), 30)

    return attack


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 128 128\n%%EndComments\n(x) show\nshowpage\n"
BIG = 2**32 - 1
NAN, INFINITE = float("nan"), float("inf")
TEXT_BOMB = 100_000_000
"""Bytes of a text in a PNG of a few kB."""


def _text_chunk() -> bytes:
    text = b"Comment\0\0" + _zeros(TEXT_BOMB)
    return _png(128, 128, (b"zTXt", text), (b"IDAT", _zeros(128 * (3 * 128 + 1))))


# Numbers and texts


def _joints(change: Callable[[JointState, int], None], hz: float = 100.0) -> Attack:
    def attack(a: Attacker) -> None:
        def messages() -> Iterator[JointState]:
            for turn in count():
                message = a.message("joint_positions")
                change(message, turn)
                yield message

        a.send("joint_states", messages(), hz)

    return attack


def _not_finite(message: JointState, turn: int) -> None:
    values = (NAN, INFINITE, -INFINITE, 1e308)
    message.position = array("d", [values[turn % 4]] * len(message.position))


def _twice(message: JointState, turn: int) -> None:
    message.name = [*message.name, *message.name]
    message.position = array("d", [*message.position, *(p + 1.0 for p in message.position)])


def _strangers(message: JointState, turn: int) -> None:
    message.name = [f"joint_{turn}_{n}" for n in range(50_000)]
    message.position = array("d", bytes(8 * 50_000))


def _unequal(message: JointState, turn: int) -> None:
    message.position = array("d", [0.1] * (turn % 5))
    message.velocity = array("d", [0.1] * 1000)


def _odometry(value: float) -> Attack:
    def attack(a: Attacker) -> None:
        message = a.message("base_velocity")
        message.twist.twist.linear.x = message.twist.twist.angular.z = value
        a.send("odom", repeat(message), 100)

    return attack


def _impossible_stamps(a: Attacker) -> None:
    publisher = a.node.create_publisher(JointState, "joint_states", RELIABLE)
    a.find(lambda: publisher.get_subscription_count() > 0)
    message = a.message("joint_positions")
    for turn in a.beats(100):
        message.header.stamp.sec = (-(2**31), 2**31 - 1, -1, 0)[turn % 4]
        message.header.stamp.nanosec = (BIG, 0, 999_999_999, BIG)[turn % 4]
        publisher.publish(message)
        a.tell()


def _texts(*texts: str, topic: str = "instruction", hz: float = 10.0) -> Attack:
    return lambda a: a.send(topic, cycle(String(data=text) for text in texts), hz)


def _description(make: Callable[[], str], hz: float = 2.0) -> Attack:
    return lambda a: a.send("robot_description", repeat(String(data=make())), hz, LATCHED)


def _long_description() -> str:
    joint = '<joint name="j{}" type="revolute"><limit lower="-1" upper="1" effort="1" velocity="1"/></joint>'
    joints = "".join(joint.format(n) for n in range(20_000_000 // len(joint)))
    return f'<robot name="long">{joints}</robot>'


def _entities() -> str:
    lines = [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)]
    return f'<!DOCTYPE robot [<!ENTITY a0 "ha">{"".join(lines)}]><robot name="&a9;"/>'


# Parameters and services


def _parameters(*values: tuple[str, Any]) -> Attack:
    messages = [Parameter(name, value=value).to_parameter_msg() for name, value in values]
    return lambda a: a.call(
        SetParameters, "set_parameters", repeat(SetParameters.Request(parameters=messages))
    )


def _asked_parameters(a: Attacker) -> None:
    names = [*LIMITS, *(f"unknown_{n}" for n in range(1000))]
    asks = (
        (DescribeParameters, "describe_parameters", DescribeParameters.Request(names=names)),
        (GetParameters, "get_parameters", GetParameters.Request(names=names)),
        (ListParameters, "list_parameters", ListParameters.Request()),
    )
    _at_once(*(partial(a.call, kind, name, repeat(request)) for kind, name, request in asks))


def _at_once(*calls: Callable[[], object]) -> None:
    """Make all calls, each in a thread of its own, and wait for their ends."""
    with ThreadPoolExecutor(len(calls)) as threads:
        for made in [threads.submit(call) for call in calls]:
            made.result()


def _called(*services: str, at_once: int = 5) -> Attack:
    """Calls services without arguments, as fast as they are answered."""

    request = Trigger.Request()
    return lambda a: _at_once(
        *(partial(a.call, Trigger, name, repeat(request), at_once) for name in services)
    )


def _restored(damage: Callable[[Attacker, bytes], bytes | None]) -> Attack:
    """Restores snapshots that are not what the node wrote. damage: None if it has written the file."""

    def attack(a: Attacker) -> None:
        client = a.node.create_client(Trigger, "policy_node/snapshot_memory")
        a.find(client.service_is_ready)
        saved = client.call_async(Trigger.Request())
        a.find(saved.done)
        good = a.scene.snapshot.read_bytes()

        def requests() -> Iterator[Trigger.Request]:
            while True:
                bad = damage(a, good)
                if bad is not None:
                    a.scene.snapshot.write_bytes(bad)
                yield Trigger.Request()

        a.call(Trigger, "restore_memory", requests(), hz=50)
        a.scene.snapshot.unlink()

    return attack


def _damaged(a: Attacker, good: bytes) -> bytes:
    bad = bytearray(good)
    for _ in range(50):
        bad[a.rng.randrange(len(bad))] = a.rng.randrange(256)
    return bytes(bad)


def _huge(a: Attacker, good: bytes) -> None:
    a.scene.snapshot.write_bytes(good)
    os.truncate(a.scene.snapshot, 1 << 30)


def _unpacks_to_1_gb(a: Attacker, good: bytes) -> bytes | None:
    """A snapshot with one more array, of zeros."""
    path = a.scene.snapshot
    if path.stat().st_size != len(good):
        return None  # it has been written
    path.write_bytes(good)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)}
    )
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("more.npy", "w") as file,
    ):
        file.write(head.getvalue())
        for _ in range(1 << 10):
            file.write(bytes(1 << 20))
    return None


def _declares_1_pb(a: Attacker, good: bytes) -> bytes:
    """A snapshot whose only array has a head that promises a petabyte, and nothing else."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("memory.npy", "w") as file:
        head = {"descr": "|u1", "fortran_order": False, "shape": (1 << 50,)}
        np.lib.format.write_array_header_1_0(file, head)
    return buffer.getvalue()


def _foreign(a: Attacker, good: bytes) -> bytes:
    buffer = io.BytesIO()
    arrays: Mapping[str, Any] = {
        "memory": np.zeros(3), "tick": np.array(-5), "spec": np.array([{"pickled": 1}], object),
        "instruction": np.full(1000, 255, np.uint8),
    }  # fmt: skip
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _transitions(*numbers: int) -> Attack:
    def requests() -> Iterator[ChangeState.Request]:
        for number in cycle(numbers):
            request = ChangeState.Request()
            request.transition.id = number
            yield request

    return lambda a: a.call(ChangeState, "change_state", requests(), hz=50)


# The page and the recorder


def _half_open(a: Attacker) -> None:
    """Connections that send the first half of a request, and are kept."""
    kept: list[socket.socket] = []
    for _ in a.beats(50):
        with suppress(OSError):
            kept.append(socket.create_connection(("127.0.0.1", a.scene.page[0]), 1.0))
            kept[-1].sendall(b"GET / HTTP/1.1\r\nHost: ")
        a.tell()


def _page_garbage(a: Attacker) -> None:
    from test_malformed import Attacker as PageAttacker

    stranger = PageAttacker(*a.scene.page, seed=SEED)
    for _ in a.beats(5):
        stranger.attack(20)
        a.tell()


def _status_garbage(a: Attacker) -> None:
    topics = [
        f"{node}/{name}" for node, name in (("recorder_node", "status"), ("policy_node", "goal"))
    ]
    publishers = [a.node.create_publisher(String, topic, LATCHED) for topic in topics]
    texts = (
        "no json",
        "[]",
        "{}",
        "null",
        '{"state": 1}',
        "[" * 100_000,
        "\x1b[2J\n",
        "1e999",
        "x" * 10**6,
    )
    a.find(lambda: publishers[0].get_subscription_count() > 0)
    for turn in a.beats(20):
        for publisher in publishers:
            publisher.publish(String(data=texts[turn % len(texts)]))
        a.tell()


def _hostile_pictures(a: Attacker) -> None:
    """All of them in turn, for whoever looks at the head's camera."""
    data = (_png(30_000, 30_000), EPS, _encoded("jpeg")[:500], b"", _text_chunk(), _encoded("gif"))
    a.send(HEAD, cycle(CompressedImage(format="png", data=array("B", d)) for d in data), 30)


ATTACKS: Mapping[str, Attack] = {
    "compressed images at 1 kHz": _stamped("head", HEAD, 1000),
    "raw images at 1 kHz": _stamped("wrist", WRIST, 1000),
    "joint_states at 2 kHz": _stamped("joint_positions", "joint_states", 2000),
    "odom at 1 kHz": _stamped("base_velocity", "odom", 1000, RELIABLE),
    "ee_pose at 1 kHz": _stamped("ee_pose", "ee_pose", 1000),
    "executed_action at 1 kHz": _stamped(EXECUTED_ACTION, "executed_action", 1000),
    "raw images of 100 MB": _images_of_100_mb,
    "one instruction at 1 kHz": lambda a: a.send(
        "instruction", repeat(String(data=a.scene.instructions[0])), 1000
    ),
    "a new instruction 100 times a second": _new_instructions,
    "two instructions in turn": _known_instructions,
    "e_stop false at 1 kHz": lambda a: a.send("e_stop", repeat(Bool(data=False)), 1000),
    "200 publishers of e_stop": _many_buttons,
    "publishers of e_stop come and go": _buttons_come_and_go,
    "tf at 1 kHz": lambda a: a.send("/tf", repeat(Float32MultiArray(data=[0.0] * 700)), 1000),
    "a second clock at 2 kHz": _clock_of_another,
    "a second clock jumps by days": _clock_back_and_forth,
    "diagnostics at 500 Hz": _diagnostics,
    "nodes come and go": _nodes_come_and_go,
    "garbage at the ports of DDS": _packets,
    "late copies of every message": _late_copies,
    "PNG of 69 bytes and 30000 x 30000": _picture(lambda: _png(30_000, 30_000)),
    "PNG that unpacks to 500 MB": _picture(
        lambda: _png(13_000, 13_000, (b"IDAT", _zeros(13_000 * (3 * 13_000 + 1)))), hz=5
    ),
    "PNG with a text of 100 MB": _picture(_text_chunk, hz=10),
    "EPS": _picture(lambda: EPS),
    "JPEG cut off": _picture(lambda: _encoded("jpeg")[:2000], form="jpeg"),
    "image of no bytes": _picture(lambda: b""),
    "images of flipped bits": _flipped_bits,
    "GIF, BMP, TIFF and WebP": _picture(
        *(lambda k=k: _encoded(k) for k in ("gif", "bmp", "tiff", "webp"))
    ),
    "junk of 20 MB for an image": _picture(lambda: random.Random(SEED).randbytes(20_000_000), hz=5),
    "wrong encoding": _raw(encoding="x" * 1_000_000),
    "wrong step": _raw(step=1),
    "step of 4 GB": _raw(step=BIG),
    "huge width and height": _raw(width=BIG, height=BIG, step=BIG),
    "image of another size": _raw(width=32, height=32, step=96),
    "image of no pixels": _raw(width=0, height=0, step=0, data=array("B")),
    "joints that are not finite": _joints(_not_finite),
    "joints named twice": _joints(_twice),
    "50,000 unknown joints": _joints(_strangers, hz=5),
    "joints of unequal lengths": _joints(_unequal),
    "odom NaN": _odometry(NAN),
    "odom infinite": _odometry(INFINITE),
    "impossible stamps": _impossible_stamps,
    "empty instruction": _texts("", "  ", "\n"),
    "instruction of 5 MB": _texts("pick up the can " * 312_500, hz=2),
    "instruction with newline and ESC": _texts(
        "go\nhome", "\x1b[2Jgo", "go\x00home", "\u202eog", "\ufeff"
    ),
    "robot_description of 20 MB": _description(_long_description, hz=1),
    "malformed robot_description": _description(lambda: "<robot name='x'><joint"),
    "robot_description of entities": _description(_entities),
    "robot_description of 100,000 levels": _description(lambda: "<a>" * 100_000 + "</a>" * 100_000),
    "3,000 parameters a call": _parameters(*[("max_forward_m_s", 0.5)] * 3000),
    "parameters of wrong types": _parameters(
        ("max_forward_m_s", "fast"), ("instruction", 3), ("max_age_s", [1.0]), ("lockstep", "no")
    ),
    "3,000 unknown parameters a call": _parameters(*((f"unknown_{n}", n) for n in range(3000))),
    "limits NaN, infinite and negative": _parameters(
        ("max_forward_m_s", NAN),
        ("max_yaw_rad_s", INFINITE),
        ("max_translation_m", -1.0),
        ("max_age_s", NAN),
        ("stop_after_s", -INFINITE),
    ),
    "one parameter again and again": _parameters(("max_forward_m_s", 0.5)),
    "parameters asked for": _asked_parameters,
    "flood of reset_memory": _called("reset_memory"),
    "flood of snapshot_memory": _called("snapshot_memory"),
    "flood of rearm": _called("rearm"),
    "flood of erase and reset": _called("erase_memory", "reset_memory"),
    "goals begun and cancelled": _called("start", "cancel"),
    "damaged snapshot": _restored(_damaged),
    "snapshot cut off": _restored(lambda a, good: good[: len(good) // 2]),
    "snapshot of 1 GB": _restored(_huge),
    "snapshot that unpacks to 1 GB": _restored(_unpacks_to_1_gb),
    "snapshot that declares 1 PB": _restored(_declares_1_pb),
    "foreign snapshot": _restored(_foreign),
    "flood of deactivate and activate": _transitions(4, 3),
    "transitions that are not there": _transitions(1, 200, 255, 0, 10),
    "half-open connections": _half_open,
    "garbage requests and JSON": _page_garbage,
    "status that is no JSON": _status_garbage,
    "hostile pictures": _hostile_pictures,
}
"""What attackers do, in a process of their own."""

Begin = Callable[[Place], Callable[[], object] | None]
"""Begins abuse, and returns what ends it beside `FailingRobot.repair`."""


@dataclass(frozen=True)
class Kind:
    """One kind of abuse."""

    begin: Begin
    keeps_mb: float = 0.0
    """The size of the largest message, of which DDS may keep the memory."""
    may_stand: bool = False
    """Whether the robot may stand still already at a press, so that no command follows it."""
    anew: bool = False
    """Whether the abuse is over with a press, and begins anew for the next one."""


def _attacked(name: str) -> Begin:
    return lambda place: place.attack(name)


def _fault(name: str) -> Begin:
    return lambda place: FAULTS[name].begin(place.robot)


def _cameras_stop(place: Place) -> None:
    place.robot.silent.update({"head", "wrist"})


def _jumps(*seconds: float) -> Begin:
    """The robot's own clock jumps every half second."""

    def begin(place: Place) -> Callable[[], object]:
        jumps = cycle(seconds)
        timer = place.robot.create_timer(0.5, lambda: place.robot.jump(next(jumps)))
        return lambda: place.robot.destroy_timer(timer)

    return begin


def _stamps_go_back(place: Place) -> Callable[[], object]:
    robot, offset_s = place.robot, [0.0]

    def turn() -> None:
        offset_s[0] -= 0.08
        robot.offset_s.update(dict.fromkeys(robot.names, offset_s[0]))

    timer = robot.create_timer(0.07, turn)
    return lambda: robot.destroy_timer(timer)


def _suspended(place: Place) -> Callable[[], object]:
    """The node's process stands still for a while; it is pressed meanwhile."""
    place.policy.send(signal.SIGSTOP)

    def resume() -> None:
        place.resumed_s = time.time()
        place.policy.send(signal.SIGCONT)

    place.resumed_s = time.time() + SUSPENDED_S
    timer = threading.Timer(SUSPENDED_S, resume)
    timer.start()
    return lambda: (timer.join(), place.policy.send(signal.SIGCONT))


def _full_disk(attack: str | None, name: str = "", **parameters: Any) -> Begin:
    """No file can grow any more. name: the node, if it is not the policy's."""

    def begin(place: Place) -> Callable[[], object]:
        process = place.start(name, **parameters) if name else place.policy
        kept = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, kept[1]))
        end = place.attack(attack) if attack else lambda: None

        def mend() -> None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, kept)
            end()

        return mend

    return begin


def _second_policy(place: Place) -> None:
    place.start("policy_node")


def _beside(name: str, attack: str, **parameters: Any) -> Begin:
    """An attack on another node beside the policy's."""

    def begin(place: Place) -> Callable[[], object]:
        if name != "web_node":
            place.start(name, **parameters)
            return place.attack(attack)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            page = free.getsockname()[1], "a-token-for-abuse"
        place.start(name, port=page[0], token=page[1], **parameters)
        place.wait_for_page(*page)
        end = place.attack(attack, page)
        return lambda: (end(), place.wait_for_page(*page))

    return begin


def _recorder_clock(place: Place) -> Callable[[], object] | None:
    """The recorder's clock is set back by a day, and forward again."""
    place.start("recorder_node")
    return _jumps(-1000.0, 1000.0)(place)


_OWN = (
    "half-open connections",
    "garbage requests and JSON",
    "status that is no JSON",
    "hostile pictures",
)
"""Attacks on nodes beside the policy's."""
_OF_PAGE = (*_OWN, "diagnostics at 500 Hz")
_OF_RECORDER = ("hostile pictures", "50,000 unknown joints")
_FAULTS = ("all stamps are old", "all stamps are ahead", "all stamps are frozen", "the clock stops")
_KEPT_MB = {"raw images of 100 MB": 210.0, "junk of 20 MB for an image": 40.0}
"""The sizes of messages, of which the newest may be there twice: as it came, and as it is kept."""

KINDS: Mapping[str, Kind] = {
    "nothing": Kind(lambda _: None),
    **{
        name: Kind(
            _attacked(name),
            _KEPT_MB.get(name, 0.0),
            may_stand=name == "flood of deactivate and activate",
        )
        for name in ATTACKS
        if name not in _OWN
    },
    **{name: Kind(_fault(name)) for name in _FAULTS},
    "stamps go backwards": Kind(_stamps_go_back),
    "the clock jumps by 1,000 s": Kind(_jumps(1000.0, -1000.0)),
    "the clock jumps by 0.3 s": Kind(_jumps(0.3, -0.3)),
    "cameras stop": Kind(_cameras_stop),
    "a second publisher of cmd_vel": Kind(lambda place: command_of_another(0.01)(place.robot)),
    "a second policy_node": Kind(_second_policy),
    "suspended for 2.5 s": Kind(_suspended, anew=True),
    "full disk": Kind(_full_disk("flood of snapshot_memory")),
    **{f"web_node: {name}": Kind(_beside("web_node", name)) for name in _OF_PAGE},
    **{f"recorder_node: {name}": Kind(_beside("recorder_node", name)) for name in _OF_RECORDER},
    "recorder_node: clock set back": Kind(_recorder_clock),
    "recorder_node: full disk": Kind(_full_disk(None, "recorder_node")),
}
"""All kinds by their names. The first is none, and shows what the machine itself takes."""
