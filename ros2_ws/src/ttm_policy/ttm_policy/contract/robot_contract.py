"""The contract between a robot's topics and a policy.

It says which topic, message type and fields supply each observation of the `PolicySpec`, and to
which topic each part of the action is sent. `ttm_policy.contract.contract_file` reads it from YAML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, PolicySpec

IMAGE_TYPES = ("sensor_msgs/Image", "sensor_msgs/CompressedImage")
VECTOR_TYPES = (
    "sensor_msgs/JointState",
    "geometry_msgs/PoseStamped",
    "geometry_msgs/TwistStamped",
    "nav_msgs/Odometry",
)
COMMAND_TYPES = (
    "geometry_msgs/TwistStamped",
    "geometry_msgs/Twist",
    "trajectory_msgs/JointTrajectory",
    "std_msgs/Bool",
)
MOTION_TYPES = ("geometry_msgs/TwistStamped", "geometry_msgs/Twist")
"""Velocity commands, which move the robot.

They always need a limit, and are set to zero to stop the robot.
"""
JOINT_TYPES = ("trajectory_msgs/JointTrajectory",)
"""Goals of joints, whose positions always need a range or a limit of the speed."""


RAMP = 0.5
"""The share of a tick in which a smooth part of a command goes over to its new value."""

EXECUTED_ACTION = "executed action"
"""The name of the input that says what the robot did."""


@dataclass(frozen=True)
class Field:
    """A number in a message: a dotted path or the name of a joint, and its factor.

    `minimum` and `maximum` are in the message's own unit. They bound what an observation may plausibly
    be, and where a joint may be sent.
    """

    path: str
    scale: float = 1.0
    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True)
class ImageSource:
    """The topic of one camera.

    `resize` says whether frames of another size are resized or refused, and `repeat` whether a frame
    may enter the memory again while there is no newer one. `min_contrast` is the smallest standard
    deviation of the grey values, 0 to 127, below which a frame is refused.
    """

    name: str
    topic: str
    type: str
    resize: bool = False
    repeat: bool = False
    min_contrast: float = 0.0
    frame_id: str = ""
    """The only accepted `header.frame_id`; empty to accept any."""
    publishers: int = 1
    """The largest accepted number of publishers of the topic."""


@dataclass(frozen=True)
class VectorSource:
    """The topic of one proprioception vector. Value i is message field i times its scale."""

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    frame_id: str = ""
    """The only accepted `header.frame_id`; empty to accept any."""
    publishers: int = 1
    """The largest accepted number of publishers of the topic."""


@dataclass(frozen=True)
class ActionSink:
    """The topic to which one part of the action is sent.

    A message field is the value times its scale. With `per_second` it is divided by the length of a
    tick in seconds. `limits` names one parameter that limits the length of the whole part, or one
    for each value.
    """

    name: str
    topic: str
    type: str
    fields: tuple[Field, ...]
    per_second: bool = False
    limits: tuple[str, ...] = ()
    smooth: bool = False
    """Whether a velocity goes over to its next value linearly between two ticks, and not at once."""
    measured: str = ""
    """The observation from which recordings compute this part; empty if they take the command."""


@dataclass(frozen=True)
class Workspace:
    """A box in the base frame, in m, that the gripper must not leave.

    The part `action` moves the gripper, and the observation `position` says where it is.
    """

    action: str
    position: str
    minimum: tuple[float, float, float]
    maximum: tuple[float, float, float]


@dataclass(frozen=True)
class RobotContract:
    """All topics of one robot. `path` is the name of its file, for error messages.

    `executed` is the topic on which the robot reports what it did in place of the last command. Without
    it, the command counts as executed. `max_skew_s` is the longest accepted time between the oldest and
    the newest input of a tick, in seconds. `rate_hz` is the control rate, None if the contract names none.
    """

    robot: str
    base_frame: str
    images: tuple[ImageSource, ...]
    vectors: tuple[VectorSource, ...]
    actions: tuple[ActionSink, ...]
    path: str
    executed: VectorSource | None = None
    max_skew_s: float = math.inf
    workspace: Workspace | None = None
    rate_hz: float | None = None

    @property
    def inputs(self) -> tuple[ImageSource | VectorSource, ...]:
        """All topics that a tick needs a message of."""
        executed = () if self.executed is None else (self.executed,)
        return (*self.images, *self.vectors, *executed)

    @property
    def motion_parts(self) -> tuple[str, ...]:
        """The names of the action parts that are zero while the robot stands still."""
        return tuple(sink.name for sink in self.actions if sink.type in MOTION_TYPES)

    def measurement_of(self, joint: str) -> tuple[VectorSource, int] | None:
        """Return the observation that measures a joint, and the joint's place in it."""
        for source in self.vectors:
            for index, field in enumerate(source.fields):
                if source.type == "sensor_msgs/JointState" and field.path == joint:
                    return source, index
        return None

    def check(self, spec: PolicySpec, *, whose: str = "this checkpoint") -> None:
        """Raise `UserError` unless names, sizes, rate and robot of contract and `spec` agree.

        whose: what `spec` belongs to, for the message.
        """
        if self.robot != spec.robot:
            raise UserError(
                f"{self.path} describes robot '{self.robot}', but {whose} is for '{spec.robot}'; "
                f"give the contract of '{spec.robot}', or what was made for '{self.robot}'"
            )
        if self.rate_hz not in (None, spec.rate_hz):
            raise UserError(
                f"{self.path} says rate_hz {self.rate_hz:g}, but {whose} is for {spec.rate_hz:g} Hz; give "
                "the same rate, or leave rate_hz out of the contract"
            )
        self._check_names(
            whose,
            "camera",
            [source.name for source in self.images],
            [item.name for item in spec.cameras],
        )
        vectors = {item.name: item.size for item in spec.proprioception}
        self._check_names(
            whose, "proprioception", [source.name for source in self.vectors], list(vectors)
        )
        for source in self.vectors:
            self._check_field_count(source, vectors[source.name])
        if self.executed is not None:
            self._check_field_count(self.executed, spec.action_size)
        parts = {part.name: part for part in spec.actions}
        self._check_names(whose, "action part", [sink.name for sink in self.actions], list(parts))
        for sink in self.actions:
            self._check_sink(sink, parts[sink.name])

    def _check_names(
        self, whose: str, kind: str, ours: Sequence[str], theirs: Sequence[str]
    ) -> None:
        for name in ours:
            if name not in theirs:
                raise UserError(
                    f"{kind} '{name}' of {self.path} is not in {whose}; "
                    f"it has: {', '.join(theirs) or 'none'}"
                )
        for name in theirs:
            if name not in ours:
                raise UserError(
                    f"{kind} '{name}' of {whose} has no topic in {self.path}, which has: "
                    f"{', '.join(ours) or 'none'}; add it there"
                )

    def _check_field_count(self, source: VectorSource | ActionSink, size: int) -> None:
        if len(source.fields) != size:
            raise UserError(
                f"'{source.name}' of {self.path} has {len(source.fields)} fields; "
                f"its values are {size}, one field for each"
            )

    def _check_sink(self, sink: ActionSink, part: ActionPart) -> None:
        if part.size > 1:  # one value may go to several fields: two fingers
            self._check_field_count(sink, part.size)
        if sink.limits and len(sink.limits) not in (1, part.size):
            raise UserError(
                f"'{sink.name}' of {self.path} has {len(sink.limits)} limits; "
                f"give one for the whole part or {part.size}, one for each value"
            )
