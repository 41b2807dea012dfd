"""The messages of a tick as the policy sees them: its observation and its action."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import MAX_PIXELS, image_size
from ttm.policy.errors import MissingObservation, UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.conversions import image_to_frame, read_vector
from ttm_policy.contract.robot_contract import MOTION_TYPES, RobotContract
from ttm_policy.inputs.inputs import JointStates
from ttm_policy.inputs.person_command import DRIVER_TOPIC, PERSON
from ttm_policy.recording.matching import Tick
from ttm_policy.recording.measured_motion import MeasuredMotion


def message_image_size(message: Any) -> tuple[int, int]:
    """Return the height and width of an image's message, compressed or not.

    Raises `UserError` if it cannot be read.
    """
    if hasattr(message, "height"):
        if not 0 < message.height * message.width <= MAX_PIXELS:
            raise UserError(
                f"an image claims {message.width}x{message.height} pixels; check the driver"
            )
        return int(message.height), int(message.width)
    try:
        return image_size(bytes(message.data))
    except OSError as error:
        raise UserError(f"a compressed image cannot be used: {error}; check the driver") from error


JOINTS = "sensor_msgs/JointState"


class JointTopics:
    """Completes the messages that have some of the joints each, in the order in which they came."""

    def __init__(self, contract: RobotContract) -> None:
        sources = [source for source in contract.inputs if source.type == JOINTS]
        self._joints = {
            topic: JointStates.of(*(s for s in sources if s.topic == topic))
            for topic in {source.topic for source in sources}
        }

    @property
    def topics(self) -> Collection[str]:
        """The topics of which every message is needed."""
        return self._joints.keys()

    def completed(self, topic: str, message: Any) -> Any:
        """Return a message with all joints of the contract seen so far; others' messages as they are."""
        if topic not in self._joints:
            return message
        self._joints[topic].add(message)
        return self._joints[topic].merged()


class TickValues:
    """Reads messages by a contract, as `policy_node` does.

    cmd_vel_stamped: base commands are TwistStamped messages; otherwise Twist.
    """

    def __init__(
        self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True
    ) -> None:
        self.contract, self.spec = contract, spec
        self._codec = CommandCodec(contract, spec, cmd_vel_stamped=cmd_vel_stamped)
        self.measured = MeasuredMotion(contract, spec)

    @property
    def types(self) -> dict[str, str]:
        """The message type of each topic."""
        commands = {topic: sinks[0].type for topic, sinks in self._codec.sinks.items()}
        return {source.topic: source.type for source in self.contract.inputs} | commands

    @property
    def live_types(self) -> dict[str, str]:
        """The message type of each topic that is recorded live: also of the one that says who drives."""
        return self.types | {DRIVER_TOPIC: "std_msgs/String"}

    @property
    def moving(self) -> Collection[str]:
        """The command topics that move the robot by velocity."""
        return [t for t, sinks in self._codec.sinks.items() if sinks[0].type in MOTION_TYPES]

    def observation(self, tick: Tick[Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the observation, or None while some of the joints were not seen.

        Raises `MalformedObservation` for what does not fit the contract.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        try:
            for image in self.contract.images:
                message, camera = tick.observation[image.topic], self.spec.camera(image.name)
                found[image.name] = image_to_frame(message, image, camera)
            for vector in self.contract.vectors:
                found[vector.name] = read_vector(tick.observation[vector.topic], vector)
        except MissingObservation:
            return None
        return found

    def action(self, tick: Tick[Any]) -> npt.NDArray[np.float32]:
        """Return the action (A,) that the commands of the tick say, without its measured parts."""
        commands = {t: m for t, m in tick.command.items() if t in self._codec.sinks}
        return self._codec.decode(commands)

    def intervention(self, tick: Tick[Any]) -> bool | None:
        """Return whether a person drove in the policy's place; None if no policy says who drives."""
        message = tick.command.get(DRIVER_TOPIC)
        return None if message is None else bool(message.data == PERSON)

    def executed(self, tick: Tick[Any]) -> npt.NDArray[np.float32] | None:
        """Return what the robot reports that it did in the tick before, (A,); None without a report."""
        source = self.contract.executed
        return None if source is None else read_vector(tick.observation[source.topic], source)
