"""From the messages of a tick to what an episode holds: its spec, its observations and its actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message

from ttm.datasets.dataset import open_dataset
from ttm.datasets.description import SpecFile, read_spec_file
from ttm.datasets.frames import MAX_PIXELS, image_size
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError
from ttm.policy.spec import (
    ActionPart,
    CameraSpec,
    PolicySpec,
    ProprioceptionSpec,
    read_checkpoint_spec,
)
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm_policy.contract import (
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    VectorSource,
    measured_goals,
    measured_places,
)
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, JointStates
from ttm_policy.messages import (
    MESSAGE_TYPES,
    CommandCodec,
    image_to_frame,
    read_vector,
    rotation_between,
)
from ttm_policy.recording.matching import Tick, Topics

Observation = Mapping[str, npt.NDArray[Any]]
Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Sizes = Mapping[str, tuple[int, int]]
"""Camera -> height and width of its images."""

JOINTS = "sensor_msgs/JointState"


def unpacked(topic: str, data: Any, kind: str) -> Any:
    """Return a message from its serialised bytes, or as it is. Raises `UserError` for a damaged one."""
    if not isinstance(data, bytes):
        return data
    try:
        return deserialize_message(data, MESSAGE_TYPES[kind])
    except RuntimeError as error:  # RMWError of rclpy
        raise UserError(f"a message of '{topic}' is damaged ({error})") from error


def message_image_size(message: Any) -> tuple[int, int]:
    """Return height and width of an image's message, compressed or not. Raises `UserError`."""
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


# The spec of what is recorded: from the contract, and what the user gives besides.


@dataclass(frozen=True)
class GivenSpec:
    """What is known of a contract's episodes before the first image came.

    That is the whole spec, or the parts of a spec file.
    """

    contract: RobotContract
    rate_hz: float
    whole: PolicySpec | None = None
    file: SpecFile = field(default_factory=SpecFile)

    def complete(self, sizes: Sizes) -> PolicySpec:
        """Return the spec of episodes with cameras of these sizes. Raises `UserError` if it does not fit."""
        spec = self.whole or spec_of_contract(self.contract, self.file, self.rate_hz, sizes)
        try:
            self.contract.check(spec, whose="the spec")
        except UserError as error:
            if self.whole or self.file.actions:
                raise
            raise UserError(
                f"{error}. Without the parameter spec, each field of an action is a value of its own: if one "
                "value goes to several joints, such as two fingers, give a spec, a checkpoint or episodes"
            ) from error
        return spec

    def complete_without_images(self) -> PolicySpec:
        """Return the spec with cameras of any size."""
        return self.complete({source.name: (1, 1) for source in self.contract.images})

    def complete_from(self, newest: Mapping[str, Any]) -> PolicySpec:
        """Return the spec with cameras of the size of their newest images. newest: by topic."""
        images = {
            source.name: unpacked(source.topic, newest[source.topic], source.type)
            for source in self.contract.images
        }
        return self.complete({name: message_image_size(image) for name, image in images.items()})


def read_given_spec(source: str, contract: RobotContract, rate_hz: float) -> GivenSpec:
    """Read what the parameter `spec` names: a checkpoint, a YAML file, episodes, or nothing.

    rate_hz: the control rate; 0 takes that of the contract, or else of the source. Raises `UserError` if
    none is known, or the source has another one.
    """
    rate_hz = rate_hz or contract.rate_hz or 0.0
    whole, file = None, SpecFile()
    if source == SHIPPED or source.endswith(".safetensors"):
        whole = read_checkpoint_spec(checkpoint_path(source))
    elif source.endswith((".yaml", ".yml")):
        file = read_spec_file(Path(source))
    elif source:
        whole = open_dataset(source).spec
    known = file.rate_hz if whole is None else whole.rate_hz
    if known is None and not rate_hz:
        raise UserError(
            "no control rate is known; set rate_hz, write it into the contract, or give a spec that has one"
        )
    require_rate(known, rate_hz or known, source)
    return GivenSpec(contract, rate_hz or known or 0.0, whole, file)


def require_rate(known: float | None, rate_hz: float | None, source: str) -> None:
    """Raise `UserError` if `source` says another rate, in Hz, than the one that is used; None says none."""
    if known not in (None, rate_hz):
        raise UserError(
            f"{source} says {known:g} Hz, but the rate is {rate_hz:g}; give the same rate"
        )


def spec_of_contract(
    contract: RobotContract, given: SpecFile, rate_hz: float, sizes: Sizes
) -> PolicySpec:
    """Return a spec with the names of a contract.

    Parts of the action are those of the spec file, or else one for each entry of the contract, with a
    value for each field; a `std_msgs/Bool` is binary.
    """
    labels = given.proprioception or {}
    cameras = [CameraSpec(source.name, *sizes[source.name]) for source in contract.images]
    vectors = [
        ProprioceptionSpec(
            source.name, labels.get(source.name) or tuple(each.path for each in source.fields)
        )
        for source in contract.vectors
    ]
    parts = tuple(
        ActionPart(
            sink.name,
            len(sink.fields),
            "unknown",
            "binary" if sink.type == "std_msgs/Bool" else "continuous",
        )
        for sink in contract.actions
    )
    return PolicySpec(
        contract.robot, tuple(cameras), tuple(vectors), given.actions or parts, rate_hz
    )


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
        """The message type of each topic, also of the one that says who drives."""
        commands = {topic: sinks[0].type for topic, sinks in self._codec.sinks.items()}
        inputs = {source.topic: source.type for source in self.contract.inputs}
        return {**inputs, **commands, DRIVER_TOPIC: "std_msgs/String"}

    @property
    def topics(self) -> Topics:
        """The topics of ticks. Who drives counts as a command."""
        sinks = self._codec.sinks
        return Topics(
            frozenset(source.topic for source in self.contract.inputs),
            frozenset((DRIVER_TOPIC, *sinks)),
            frozenset(topic for topic in sinks if sinks[topic][0].type in MOTION_TYPES),
            self.measured.is_needed,
        )

    def observation(self, tick: Tick[Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the observation; None without some of the joints. Raises `MalformedObservation`."""
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

    def action(self, tick: Tick[Any]) -> Vector:
        """Return the action (A,) that the commands of the tick say, without its measured parts."""
        commands = {t: m for t, m in tick.command.items() if t in self._codec.sinks}
        return self._codec.decode(commands)

    def intervention(self, tick: Tick[Any]) -> bool | None:
        """Return whether a person drove in the policy's place; None if no policy says who drives."""
        message = tick.command.get(DRIVER_TOPIC)
        return None if message is None else bool(message.data == PERSON)

    def executed(self, tick: Tick[Any]) -> Vector | None:
        """Return what the robot reports that it did in the tick before, (A,); None without a report."""
        source = self.contract.executed
        return None if source is None else read_vector(tick.observation[source.topic], source)


class MeasuredMotion:
    """Computes the parts of an action that are no command, but what the robot was measured to do.

    A part says so by the key `measured` of the contract, which names an observation.

    =============================  =====================================================================
    velocity, by a measured pose   displacement, or rotation in the fixed frame, until the next tick
    velocity, by a measured one    the velocity at the next tick
    goal of a joint                where the joint is at the next tick; the nearer one of two goals
    =============================  =====================================================================
    """

    def __init__(self, contract: RobotContract, spec: PolicySpec) -> None:
        self._contract, self._spec = contract, spec
        self._sinks = [sink for sink in contract.actions if sink.measured]

    @property
    def is_needed(self) -> bool:
        """Whether any part of the action is measured."""
        return bool(self._sinks)

    def action(self, commanded: Vector, before: Observation, after: Observation) -> Vector:
        """Return an action (A,) with its measured parts in place of those that were commanded.

        before, after: the observations of its tick and of the next one. Raises `MalformedObservation`
        for an orientation that is none.
        """
        values, goals = commanded.copy(), measured_goals(self._contract, self._spec, after)
        for sink in self._sinks:
            where = self._spec.action_slices[sink.name]
            if sink.type in MOTION_TYPES:
                values[where] = self._moved(sink, before, after)
            else:
                values[where] = goals[where]
        return values

    def _moved(self, sink: ActionSink, before: Observation, after: Observation) -> list[float]:
        tick_s, source = self._spec.control_dt_s, self._contract.vector(sink.measured)
        assert source is not None, "contracts are checked when they are read"
        lasts_s = tick_s if sink.per_second else 1.0
        return [
            _velocity(source, each.path, before, after, tick_s) * lasts_s / each.scale
            for each in sink.fields
        ]


def _velocity(
    source: VectorSource, path: str, before: Observation, after: Observation, tick_s: float
) -> float:
    """Return the measured velocity for a command's field, in the unit of the message."""
    kind, axis = path.split(".")[-2:]
    places = measured_places(source, path)
    was, now = (
        np.array([float(seen[source.name][i]) / source.fields[i].scale for i in places])
        for seen in (before, after)
    )
    if source.fields[places[0]].path.endswith(f"{kind}.{axis}"):
        return float(now[0])
    if len(places) == 1:
        return float(now[0] - was[0]) / tick_s
    rotation = rotation_between(_unit(was, source), _unit(now, source))
    return float(rotation["xyz".index(axis)]) / tick_s


def _unit(quaternion: Numbers, source: VectorSource) -> Numbers:
    length = float(np.linalg.norm(quaternion))
    if not 0.5 < length < 2.0:
        raise MalformedObservation(
            f"'{source.name}' ({source.topic}) has the orientation {quaternion.tolist()}, which is no "
            "rotation; check its driver"
        )
    return quaternion / length
