"""The messages of a tick as the policy sees them: its observation and its action."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import MissingObservation
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.conversions import image_to_frame, read_vector
from ttm_policy.contract.robot_contract import (
    MOTION_TYPES,
    ImageSource,
    RobotContract,
    VectorSource,
)
from ttm_policy.control.inputs import JointStates
from ttm_policy.recording.matching import Tick

JOINTS = "sensor_msgs/JointState"


class JointTopics:
    """Completes the messages that have some of the joints each, in the order in which they came."""

    def __init__(self, contract: RobotContract) -> None:
        sources = [source for source in contract.inputs if isinstance(source, VectorSource)]
        self._sources = {source.topic: source for source in sources if source.type == JOINTS}
        self._joints = {topic: JointStates() for topic in self._sources}

    @property
    def topics(self) -> Collection[str]:
        """The topics of which every message is needed."""
        return self._sources.keys()

    def completed(self, topic: str, message: Any) -> Any:
        """Return a message with all joints that were seen so far; other topics' messages as they are."""
        if topic not in self._sources:
            return message
        self._joints[topic].add(message)
        return self._joints[topic].merged(self._sources[topic])[0]


class TickValues:
    """Reads messages by a contract, as `policy_node` does.

    cmd_vel_stamped: base commands are TwistStamped messages; otherwise Twist.
    """

    def __init__(
        self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True
    ) -> None:
        self.contract, self.spec = contract, spec
        self._codec = CommandCodec(contract, spec, cmd_vel_stamped=cmd_vel_stamped)

    @property
    def command_types(self) -> Mapping[str, Any]:
        """The message class of each command topic."""
        return self._codec.types()

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
            for source in (*self.contract.images, *self.contract.vectors):
                message = tick.observation[source.topic]
                if isinstance(source, ImageSource):
                    found[source.name] = image_to_frame(
                        message, source, self.spec.camera(source.name)
                    )
                else:
                    found[source.name] = read_vector(message, source)
        except MissingObservation:
            return None
        return found

    def action(self, tick: Tick[Any]) -> npt.NDArray[np.float32]:
        """Return the action (A,) that the commands of the tick say."""
        return self._codec.decode(tick.command)

    def executed(self, tick: Tick[Any]) -> npt.NDArray[np.float32] | None:
        """Return what the robot reports that it did in the tick before, (A,); None without a report."""
        source = self.contract.executed
        return None if source is None else read_vector(tick.observation[source.topic], source)
