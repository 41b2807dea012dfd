"""The messages of an episode's ticks, and which of its values they do not hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage

from ttm.datasets.convert.recording import Recording
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.robot_contract import EXECUTED_ACTION, ImageSource, RobotContract
from ttm_policy.sensors.observation_messages import observation_messages

Vector = npt.NDArray[np.float32]


@dataclass
class Changes:
    """How many values of each action part do not return from their messages, and by how much."""

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    def compare(self, spec: PolicySpec, action: Vector, back: Vector) -> None:
        """Take an action (A,) and what its messages say."""
        difference = np.abs(action - back)
        for name, where in spec.action_slices.items():
            if number := int(np.count_nonzero(difference[where])):
                self.counts[name] = self.counts.get(name, 0) + number
                self.largest[name] = max(
                    float(difference[where].max()), self.largest.get(name, 0.0)
                )


class TickMessages:
    """Makes the messages of one episode's ticks by a contract, as `policy_node` and a robot send them.

    changes: learns of values that the messages do not hold.
    """

    def __init__(
        self, recording: Recording, contract: RobotContract, spec: PolicySpec, changes: Changes
    ) -> None:
        self._recording, self._spec, self._changes = recording, spec, changes
        self._codec = CommandCodec(contract, spec)
        self._kept = tuple(source for source in contract.images if _keeps_jpegs(source, recording))
        others = tuple(source for source in contract.images if source not in self._kept)
        self._contract = replace(contract, images=others)
        executed = recording.executed_actions
        self._executed = recording.actions if executed is None else executed

    def observations(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield for each tick the values of all inputs, and JPEGs where messages take them as they are.

        What was executed is that of the tick before, zeros at the first.
        """
        recording = self._recording
        kept = {source.name for source in self._kept}
        streams = {
            name: recording.each_jpeg(name) if name in kept else recording.each_frame(name)
            for name in recording.cameras
        }
        for tick in range(len(recording.actions)):
            did = self._executed[tick - 1] if tick else np.zeros_like(self._executed[0])
            vectors = {name: values[tick] for name, values in recording.vectors.items()}
            yield {
                **{name: next(stream) for name, stream in streams.items()},
                **vectors,
                EXECUTED_ACTION: did,
            }

    def observed(self, values: Mapping[str, npt.NDArray[Any]], stamp: Time) -> dict[str, Any]:
        """Return the message of each observed topic."""
        messages = observation_messages(self._contract, values, stamp)
        for source in self._kept:
            message = CompressedImage(format="jpeg", data=array("B", values[source.name].tobytes()))
            message.header.stamp, message.header.frame_id = stamp, source.frame_id or source.name
            messages[source.topic] = message
        return messages

    def commanded(self, tick: int, stamp: Time) -> dict[str, Any]:
        """Return the message of each command topic. Raises `UserError` for NaN and infinity."""
        action = self._recording.actions[tick]
        try:
            messages = self._codec.encode(action, stamp)
        except ArithmeticError as error:
            raise UserError(f"{self._recording.name}, tick {tick}: {error}") from error
        self._changes.compare(self._spec, action, self._codec.decode(messages))
        return messages


def _keeps_jpegs(source: ImageSource, recording: Recording) -> bool:
    return (
        source.type == "sensor_msgs/CompressedImage"
        and recording.cameras[source.name].jpegs is not None
    )
