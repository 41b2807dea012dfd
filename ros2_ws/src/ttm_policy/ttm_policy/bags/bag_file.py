"""One bag: the topics that a contract names, and when each of their messages was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message
from rosbags.rosbag2 import Reader
from std_msgs.msg import String

from ttm.datasets.access.links import require_no_way_out
from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError
from ttm_policy.bags.bag_facts import read_custom_data
from ttm_policy.contract.conversions import MESSAGE_TYPES
from ttm_policy.recording.stamps import header_ns

Stamps = npt.NDArray[np.int64]


class BagFile:
    """An opened bag, whose messages are read in the order of recording.

    Parameters
    ----------
    path
        The bag's folder, with `metadata.yaml`.
    types
        Topic of the contract -> the message types that it may have.
    extra
        Topic -> message type of what is read as well from bags that `write_bags` has written.
    """

    def __init__(
        self, path: Path, types: Mapping[str, tuple[str, ...]], extra: Mapping[str, str]
    ) -> None:
        self.path = path
        if path.is_dir():
            require_no_way_out(path, or_else="")
        with _damage_told(path):
            self._reader = Reader(path)
            self._reader.open()
        custom = self._reader.storage.metadata.custom
        self.facts, self.spec = read_custom_data(custom, path)
        """What the bag says of its episode, and the spec; None where it does not."""
        found = {c.topic: c.msgtype.replace("/msg/", "/") for c in self._reader.connections}
        self._names = {topic: _find(topic, found, path) for topic in types}
        if self.facts is not None:
            self._names |= {topic: f"/{topic}" for topic in extra if f"/{topic}" in found}
        self.types = {topic: found[name] for topic, name in self._names.items()}
        for topic, kind in self.types.items():
            if kind not in types.get(topic, (kind,)):
                raise UserError(
                    f"{path}: topic '{topic}' has messages of {kind}, the contract says "
                    f"{' or '.join(types[topic])}; give the contract of the recorded robot"
                )

    def stamps(self) -> dict[str, Stamps]:
        """Return when each message of each topic was made, in ns, in the order of recording.

        This is the stamp in the header. Messages without one, or with a stamp of 0, were made when
        they were recorded.
        """
        found: dict[str, list[int]] = {topic: [] for topic in self._names}
        for topic, recorded_ns, data in self._raw():
            has_header = hasattr(MESSAGE_TYPES[self.types[topic]], "header")
            stamp_ns = header_ns(data) if has_header else 0
            found[topic].append(stamp_ns or recorded_ns)
        return {topic: np.array(values, np.int64) for topic, values in found.items()}

    def messages(self, wanted: Mapping[str, set[int]]) -> Iterator[tuple[str, int, Any]]:
        """Yield (topic, number, message) of the wanted numbers of each topic's messages."""
        count = dict.fromkeys(self._names, -1)
        for topic, _, data in self._raw():
            count[topic] += 1
            if count[topic] in wanted[topic]:
                yield topic, count[topic], self._message(topic, count[topic], data)

    def texts(self, topic: str) -> set[str]:
        """Return the different texts of a `std_msgs/String` topic, in any namespace; none without it."""
        connections = [
            each
            for each in self._reader.connections
            if each.topic.endswith(f"/{topic}") and each.msgtype == "std_msgs/msg/String"
        ]
        if not connections:  # the reader takes none for all
            return set()
        with _damage_told(self.path):
            found = self._reader.messages(connections=connections)
            return {deserialize_message(bytes(data), String).data for _, _, data in found}

    def close(self) -> None:
        """Close the bag's files."""
        self._reader.close()

    def _message(self, topic: str, number: int, data: Any) -> Any:
        try:
            return deserialize_message(bytes(data), MESSAGE_TYPES[self.types[topic]])
        except RuntimeError as error:  # RMWError of rclpy
            raise UserError(
                f"{self.path}: message {number} of topic '{topic}' is damaged ({error}); "
                "copy the bag again, or leave it out"
            ) from error

    def _raw(self) -> Iterator[tuple[str, int, Any]]:
        topics = {name: topic for topic, name in self._names.items()}
        connections = [c for c in self._reader.connections if c.topic in topics]
        with _damage_told(self.path):
            for connection, recorded_ns, data in self._reader.messages(connections=connections):
                yield topics[connection.topic], recorded_ns, data


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Raise `UserError` with the bag's path for whatever its reader raises.

    Damage shows as errors of SQLite, of MCAP's compression and of YAML, or as numbers that are too
    large to be true.
    """
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{path} cannot be read ({one_line(error) or type(error).__name__}); copy the bag again, "
            "or leave it out"
        ) from error


def _find(topic: str, recorded: Mapping[str, str], path: Path) -> str:
    """Return the recorded name of a topic, which may be in a namespace."""
    exact = "/" + topic.lstrip("/")
    matches = [exact] if exact in recorded else [name for name in recorded if name.endswith(exact)]
    if len(matches) != 1:
        raise UserError(
            f"{path} has {'no topic' if not matches else 'several topics'} '{topic}' of the contract; "
            f"it has: {', '.join(sorted(recorded)) or 'none'}"
        )
    return matches[0]
