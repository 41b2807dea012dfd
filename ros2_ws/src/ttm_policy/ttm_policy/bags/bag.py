"""One bag: the topics that a contract names, when each of their messages was made, and facts beside them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from std_msgs.msg import String

from ttm.datasets.hdf5 import one_line, require_no_way_out
from ttm.policy.errors import UserError, require_choice, require_valid_fields
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import RobotContract
from ttm_policy.inputs import DRIVER_TOPIC
from ttm_policy.messages import MESSAGE_TYPES
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.recording.matching import header_ns

Split = Literal["train", "valid"]
Storage = Literal["sqlite3", "mcap"]
Stamps = npt.NDArray[np.int64]
SPEC, EPISODE = "ttm_spec", "ttm_episode"
"""The names in the custom data of `metadata.yaml`: the `PolicySpec`, and the JSON of `BagFacts`."""
INSTRUCTION_TOPIC = "instruction"
HEADER_SIZE = 4
"""Bytes of a serialised message before its fields, which are little-endian."""
_EVER = QosTime(9223372036, 854775807)  # what rosbag2 writes for a time without end


@dataclass(frozen=True)
class BagFacts:
    """What a bag says of its episode beside its messages, in the custom data of its `metadata.yaml`.

    Bags that were recorded say nothing. Other programs, such as `ros2 bag`, take no notice of it. Ticks begin
    at `first_tick_ns` and follow at the control rate. The stamps are `late_ns` later than the capture times,
    since ROS takes 0 for a missing clock. `split` is the mask that names the episode.
    """

    rate_hz: float
    first_tick_ns: int
    late_ns: int = 0
    task: str = ""
    success: bool | None = None
    seed: int | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` or `TypeError` for values that make no tick, and for another mask."""
        if not 0 < self.rate_hz < math.inf:
            raise UserError(f"rate_hz is {self.rate_hz}; give a number above 0")
        require_valid_fields(self, {"first_tick_ns": 0, "late_ns": 0})
        if self.split is not None:
            require_choice("split", self.split, get_args(Split))


class BagFile:
    """An opened bag. `facts` and `spec` are what it says of its episode, None where it does not."""

    def __init__(self, path: Path, contract: RobotContract) -> None:
        """path: the bag's folder, with `metadata.yaml`. Raises `UserError` if it lacks a topic."""
        self.path, self.contract = path, contract
        types = {source.topic: {source.type} for source in contract.inputs}
        for sink in (each for each in contract.actions if not each.measured):
            plain = sink.type == "geometry_msgs/TwistStamped" and not sink.per_second
            types[sink.topic] = {sink.type, *(["geometry_msgs/Twist"] if plain else [])}
        if path.is_dir():
            require_no_way_out(path, or_else="")
        with _damage_told(path):
            self._reader = Reader(path)
            self._reader.open()
        self.facts, self.spec = self._custom_data()
        found = {c.topic: c.msgtype.replace("/msg/", "/") for c in self._reader.connections}
        self._names = {topic: _find(topic, found, path) for topic in types}
        if self.facts is not None and f"/{DRIVER_TOPIC}" in found:
            self._names[DRIVER_TOPIC] = f"/{DRIVER_TOPIC}"
        self.types = {topic: found[name] for topic, name in self._names.items()}
        for topic, kind in self.types.items():
            if kind not in types.get(topic, {kind}):
                wanted = " or ".join(sorted(types[topic]))
                raise UserError(
                    f"{path}: topic '{topic}' has {kind}, the contract says {wanted}; "
                    "give the contract of the recorded robot"
                )

    def stamps(self) -> dict[str, Stamps]:
        """Return when each message was made (ns): by its header, or else, or for 0, when it was recorded."""
        found: dict[str, list[int]] = {topic: [] for topic in self._names}
        for topic, recorded_ns, data in self._raw():
            stamped = hasattr(MESSAGE_TYPES[self.types[topic]], "header")
            found[topic].append((header_ns(data) if stamped else 0) or recorded_ns)
        return {topic: np.array(values, np.int64) for topic, values in found.items()}

    def messages(self, wanted: Mapping[str, set[int]]) -> Iterator[tuple[str, int, Any]]:
        """Yield (topic, number, message) of the wanted numbers of each topic's messages."""
        count = dict.fromkeys(self._names, -1)
        for topic, _, data in self._raw():
            count[topic] += 1
            if count[topic] not in wanted[topic]:
                continue
            try:
                message = deserialize_message(bytes(data), MESSAGE_TYPES[self.types[topic]])
            except RuntimeError as error:  # RMWError of rclpy
                raise UserError(
                    f"{self.path}: message {count[topic]} of topic '{topic}' is damaged ({error})"
                ) from error
            yield topic, count[topic], message

    def texts(self, topic: str) -> set[str]:
        """Return the different texts of a `std_msgs/String` topic, in any namespace; none without it."""
        texts = (c for c in self._reader.connections if c.msgtype == "std_msgs/msg/String")
        connections = [each for each in texts if each.topic.endswith(f"/{topic}")]
        if not connections:  # the reader takes none for all
            return set()
        with _damage_told(self.path):
            found = self._reader.messages(connections=connections)
            return {deserialize_message(bytes(data), String).data for _, _, data in found}

    def close(self) -> None:
        """Close the bag's files."""
        self._reader.close()

    def _custom_data(self) -> tuple[BagFacts | None, PolicySpec | None]:
        """Return the facts and the spec that the bag holds. Raises `UserError` if they are damaged."""
        custom = self._reader.storage.metadata.custom or {}
        try:
            facts = BagFacts(**json.loads(custom[EPISODE])) if EPISODE in custom else None
            spec = PolicySpec.from_json(custom[SPEC]) if SPEC in custom else None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.path}: {EPISODE} or {SPEC} in metadata.yaml is damaged ({error}); delete both"
            ) from error
        return facts, spec

    def _raw(self) -> Iterator[tuple[str, int, Any]]:
        topics = {name: topic for topic, name in self._names.items()}
        connections = [c for c in self._reader.connections if c.topic in topics]
        with _damage_told(self.path):
            for connection, recorded_ns, data in self._reader.messages(connections=connections):
                yield topics[connection.topic], recorded_ns, data


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Raise `UserError` with the bag's path for whatever its reader raises."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{path} cannot be read ({one_line(error) or type(error).__name__}); copy the bag again"
        ) from error


def _find(topic: str, recorded: Mapping[str, str], path: Path) -> str:
    """Return the recorded name of a topic, which may be in a namespace."""
    exact = "/" + topic.lstrip("/")
    matches = [exact] if exact in recorded else [name for name in recorded if name.endswith(exact)]
    if len(matches) != 1:
        found = ", ".join(sorted(recorded)) or "none"
        which = "several topics" if matches else "no topic"
        raise UserError(f"{path} has {which} '{topic}' of the contract; it has: {found}")
    return matches[0]


@contextmanager
def new_bag(
    path: Path, storage: Storage, facts: BagFacts, spec: PolicySpec | None
) -> Iterator[Writer]:
    """Open a new bag for writing, with facts and spec. Raises `OSError` if it cannot be written."""
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    writer.set_custom_data(EPISODE, json.dumps(asdict(facts), ensure_ascii=False))
    if spec is not None:
        writer.set_custom_data(SPEC, spec.to_json())
    try:
        with writer:
            yield writer
    except sqlite3.Error as error:  # such as that of a full disk
        raise OSError(str(error)) from error


class BagTopics:
    """Writes messages to the topics of an opened bag, offered as nodes of this package offer them."""

    def __init__(self, writer: Writer, contract: RobotContract) -> None:
        self._writer = writer
        self._store = get_typestore(Stores.LATEST)
        self._kinds = {
            **dict.fromkeys((INSTRUCTION_TOPIC, DRIVER_TOPIC), ("std_msgs/String", LATCHED)),
            **{source.topic: (source.type, LATCHED) for source in contract.inputs},
            **{sink.topic: (sink.type, COMMAND) for sink in contract.actions},
        }
        self._connections: dict[str, Connection] = {}

    def write(self, messages: Mapping[str, Any], time_ns: int) -> None:
        """Write one message each of some topics, as recorded at a time."""
        for topic, message in messages.items():
            if topic not in self._connections:
                self._connections[topic] = self._connect(topic)
            connection, data = self._connections[topic], serialize_message(message)
            # The middleware leaves room for alignment at the end, which strict readers take for damage.
            layout = self._store.get_msgdef(connection.msgtype)
            end = layout.deserialize_cdr_le(data[HEADER_SIZE:], 0, layout.cls, self._store)[1]
            self._writer.write(connection, time_ns, data[: HEADER_SIZE + end])

    def _connect(self, topic: str) -> Connection:
        kind, profile = self._kinds[topic]
        offered = Qos(
            QosHistory.KEEP_LAST,
            profile.depth,
            QosReliability[profile.reliability.name],
            QosDurability[profile.durability.name],
            _EVER,
            _EVER,
            QosLiveliness.AUTOMATIC,
            _EVER,
            avoid_ros_namespace_conventions=False,
        )
        return self._writer.add_connection(
            "/" + topic.lstrip("/"),
            kind.replace("/", "/msg/"),
            typestore=self._store,
            offered_qos_profiles=[offered],
        )
