"""The topics of a bag that is written, each with its type and QoS."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.inputs.person_command import DRIVER_TOPIC
from ttm_policy.qos import COMMAND, LATCHED

Storage = Literal["sqlite3", "mcap"]

INSTRUCTION_TOPIC = "instruction"

HEADER_SIZE = 4
"""Bytes of a serialised message before its fields, which are little-endian."""

_STRING = "std_msgs/String"
_EVER = QosTime(9223372036, 854775807)  # what rosbag2 writes for a time without end


class BagTopics:
    """Writes the messages of an opened bag to the topics of a contract, `instruction` and `driver`.

    Observations, instruction and driver are offered as `ttm data play --topics` and a simulated robot publish
    them, and commands as `policy_node` does.
    """

    def __init__(self, writer: Writer, contract: RobotContract) -> None:
        self._writer = writer
        self._store = get_typestore(Stores.LATEST)
        self._kinds = {
            INSTRUCTION_TOPIC: (_STRING, LATCHED),
            DRIVER_TOPIC: (_STRING, LATCHED),
            **{source.topic: (source.type, LATCHED) for source in contract.inputs},
            **{sink.topic: (sink.type, COMMAND) for sink in contract.actions},
        }
        self._connections: dict[str, Connection] = {}

    def write(self, messages: Mapping[str, Any], time_ns: int) -> None:
        """Write one message each of some topics, as recorded at a time."""
        for topic, message in messages.items():
            connection = self._connection(topic)
            data = self._trimmed(serialize_message(message), connection.msgtype)
            self._writer.write(connection, time_ns, data)

    def _trimmed(self, data: bytes, kind: str) -> bytes:
        """Return a serialised message without what may follow it.

        The middleware leaves room for alignment at the end, which strict readers take for damage.
        """
        layout = self._store.get_msgdef(kind)
        end = layout.deserialize_cdr_le(data[HEADER_SIZE:], 0, layout.cls, self._store)[1]
        return data[: HEADER_SIZE + end]

    def _connection(self, topic: str) -> Connection:
        if topic not in self._connections:
            kind, profile = self._kinds[topic]
            self._connections[topic] = self._writer.add_connection(
                "/" + topic.lstrip("/"),
                kind.replace("/", "/msg/"),
                typestore=self._store,
                offered_qos_profiles=[_offered(profile)],
            )
        return self._connections[topic]


@contextmanager
def new_bag(path: Path, storage: Storage, custom_data: Mapping[str, str]) -> Iterator[Writer]:
    """Open a new bag for writing. Raises `OSError` if it cannot be written."""
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    for name, text in custom_data.items():
        writer.set_custom_data(name, text)
    try:
        with writer:
            yield writer
    except sqlite3.Error as error:  # such as that of a full disk
        raise OSError(str(error)) from error


def _offered(profile: QoSProfile) -> Qos:
    """Return a QoS profile as a bag stores it."""
    return Qos(
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
