"""From the messages of ticks to episode files: their spec, their values, and the thread that writes them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message

from ttm.datasets.dataset import read_spec
from ttm.datasets.description import SpecFile, read_spec_file
from ttm.datasets.frames import MAX_PIXELS, image_size
from ttm.datasets.layout import next_episode_path
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.errors import MalformedObservation, MissingObservation, UserError
from ttm.policy.spec import SHIPPED, ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm_policy.contract import (
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    VectorSource,
    load_contract,
    measured_goals,
    measured_places,
)
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, JointStates, Vector
from ttm_policy.messages import (
    MESSAGE_TYPES,
    CommandCodec,
    check_fields,
    image_to_frame,
    read_vector,
    rotation_between,
)
from ttm_policy.parameters import DrivingParameters, RecorderParameters
from ttm_policy.recording.matching import Tick, Topics

Observation = Mapping[str, npt.NDArray[Any]]
Sizes = Mapping[str, tuple[int, int]]
"""Camera -> height and width of its images."""
JOINTS, SIGNAL = "sensor_msgs/JointState", "std_msgs/Bool"
FLUSH_S = 1.0
"""What was recorded is handed over to the operating system so often, which notices a full disk."""
MOST_WAITING = 200
"""So many ticks may wait to be written; then the machine is too slow for the episode."""
LEAST_FREE_BYTES = 64 * 2**20
"""With less free space than this, no episode is begun."""


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
            raise UserError(f"an image claims {message.width}x{message.height}; check the driver")
        return int(message.height), int(message.width)
    try:
        return image_size(bytes(message.data))
    except OSError as error:
        raise UserError(f"a compressed image cannot be used: {error}; check the driver") from error


@dataclass(frozen=True)
class GivenSpec:
    """What is known of episodes before the first image: the whole spec, or parts of one from a file."""

    contract: RobotContract
    rate_hz: float
    whole: PolicySpec | None = None
    file: SpecFile = field(default_factory=SpecFile)
    cmd_vel_stamped: bool = True

    def values(self, spec: PolicySpec) -> TickValues:
        """Return what reads the messages of episodes of a spec."""
        return TickValues(self.contract, spec, cmd_vel_stamped=self.cmd_vel_stamped)

    def complete(self, sizes: Sizes) -> PolicySpec:
        """Return the spec of episodes with cameras of these sizes. Raises `UserError` if it does not fit."""
        spec = self.whole or spec_of_contract(self.contract, self.file, self.rate_hz, sizes)
        try:
            self.contract.check(spec, whose="the spec")
        except UserError as error:
            if self.whole or self.file.actions:
                raise
            remedy = "if one value goes to several joints, give a spec, a checkpoint or episodes"
            raise UserError(f"{error}; {remedy}") from error
        return spec

    def complete_without_images(self) -> PolicySpec:
        """Return the spec with cameras of any size."""
        return self.complete({source.name: (1, 1) for source in self.contract.images})

    def complete_from(self, newest: Mapping[str, Any]) -> PolicySpec:
        """Return the spec with cameras of the size of their newest images. newest: by topic."""
        images = {s.name: unpacked(s.topic, newest[s.topic], s.type) for s in self.contract.images}
        return self.complete({name: message_image_size(image) for name, image in images.items()})


def given_by(parameters: RecorderParameters | DrivingParameters) -> GivenSpec:
    """Read contract and spec that a node's parameters name. Raises `UserError` if they do not fit."""
    contract = load_contract(parameters.contract)
    check_fields(contract)
    like = parameters.spec or ("" if parameters.contract else SHIPPED)
    given = read_given_spec(like, contract, parameters.rate_hz)
    return replace(given, cmd_vel_stamped=parameters.cmd_vel_stamped)


def read_given_spec(source: str, contract: RobotContract, rate_hz: float) -> GivenSpec:
    """Read what the parameter `spec` names: a checkpoint, a YAML file, episodes, or nothing.

    rate_hz: the control rate; 0 takes that of the contract, or else of the source. Raises `UserError`.
    """
    rate_hz = rate_hz or contract.rate_hz or 0.0
    whole, file = None, SpecFile()
    if source.endswith((".yaml", ".yml")):
        file = read_spec_file(Path(source))
    elif source:
        whole = read_spec(source)
    known = file.rate_hz if whole is None else whole.rate_hz
    if known is None and not rate_hz:
        raise UserError("no control rate is known; set rate_hz here or in the contract")
    require_rate(known, rate_hz or known, source)
    return GivenSpec(contract, rate_hz or known or 0.0, whole, file)


def require_rate(known: float | None, rate_hz: float | None, source: str) -> None:
    """Raise `UserError` if `source` says another rate, in Hz, than the one that is used; None says none."""
    if known not in (None, rate_hz):
        raise UserError(f"{source} says {known:g} Hz, but the rate is {rate_hz:g}; give the same")


def spec_of_contract(
    contract: RobotContract, given: SpecFile, rate_hz: float, sizes: Sizes
) -> PolicySpec:
    """Return a spec with the names of a contract.

    Parts of the action are those of the spec file, or else one for each entry of the contract.
    """
    labels = given.proprioception or {}
    cameras = [CameraSpec(source.name, *sizes[source.name]) for source in contract.images]
    vectors = [
        ProprioceptionSpec(v.name, labels.get(v.name) or tuple(each.path for each in v.fields))
        for v in contract.vectors
    ]
    parts = [
        ActionPart(s.name, len(s.fields), "unknown", "binary" if s.type == SIGNAL else "continuous")
        for s in contract.actions
    ]
    actions = given.actions or tuple(parts)
    return PolicySpec(contract.robot, tuple(cameras), tuple(vectors), actions, rate_hz)


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
    """Reads messages by a contract, as `policy_node` does. cmd_vel_stamped: as its parameter.

    A part of the action with the key `measured` in the contract is no command, but what the robot was
    measured to do:

    =============================  =====================================================================
    velocity, by a measured pose   displacement, or rotation in the fixed frame, until the next tick
    velocity, by a measured one    the velocity at the next tick
    goal of a joint                where the joint is at the next tick; the nearer one of two goals
    =============================  =====================================================================
    """

    def __init__(
        self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True
    ) -> None:
        self.contract, self.spec = contract, spec
        self._codec = CommandCodec(contract, spec, cmd_vel_stamped=cmd_vel_stamped)
        self._measured = [sink for sink in contract.actions if sink.measured]
        sinks = self._codec.sinks
        inputs = {source.topic: source.type for source in contract.inputs}
        self.types = inputs | {topic: of_topic[0].type for topic, of_topic in sinks.items()}
        """The message type of each topic, also of the one that says who drives."""
        self.types[DRIVER_TOPIC] = "std_msgs/String"
        self.topics = Topics(
            frozenset(inputs),
            frozenset((DRIVER_TOPIC, *sinks)),
            frozenset(topic for topic in sinks if sinks[topic][0].type in MOTION_TYPES),
            bool(self._measured),
        )
        """The topics of ticks. Who drives counts as a command."""

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

    def measured(self, commanded: Vector, before: Observation, after: Observation) -> Vector:
        """Return an action (A,) with its measured parts in place of those that were commanded.

        before, after: the observations of its tick and of the next one. Raises `MalformedObservation`.
        """
        values, goals = commanded.copy(), measured_goals(self.contract, self.spec, after)
        for sink in self._measured:
            where = self.spec.action_slices[sink.name]
            moves = sink.type in MOTION_TYPES
            values[where] = self._moved(sink, before, after) if moves else goals[where]
        return values

    def _moved(self, sink: ActionSink, before: Observation, after: Observation) -> list[float]:
        tick_s, source = self.spec.control_dt_s, self.contract.vector(sink.measured)
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
    for quaternion in (was, now):
        if not 0.5 < np.linalg.norm(quaternion) < 2.0:
            raise MalformedObservation(
                f"'{source.name}' ({source.topic}) has orientation {quaternion.tolist()}; check its driver"
            )
    was, now = (quaternion / np.linalg.norm(quaternion) for quaternion in (was, now))
    return float(rotation_between(was, now)["xyz".index(axis)]) / tick_s


class EpisodeRows:
    """Appends ticks to an `EpisodeWriter`, one behind: what was done in it is known at the next one.

    What was executed is the newest report at that tick, as it is for `policy_node`. `skipped` counts the
    ticks at the start that lacked some of the joints.
    """

    def __init__(self, writer: EpisodeWriter, values: TickValues) -> None:
        self.writer, self._values = writer, values
        self._waiting: tuple[Observation, Vector, float, bool | None] | None = None
        self.skipped = 0

    def add(self, tick: Tick[Any]) -> None:
        """Take the next tick, whose messages may be serialised. Raises `UserError` if it does not fit."""
        values = self._values

        def messages(part: Mapping[str, Any]) -> dict[str, Any]:
            return {name: unpacked(name, each, values.types[name]) for name, each in part.items()}

        observed, commands = messages(tick.observation), messages(tick.command)
        tick = replace(tick, observation=observed, command=commands)
        observation = values.observation(tick)
        if observation is None and self._waiting is None:
            self.skipped += 1
            return
        self._write(values.executed(tick), observation or {})
        action, intervention = values.action(tick), values.intervention(tick)
        self._waiting = observation or {}, action, tick.captured_ns / 1_000_000_000, intervention

    def end(self, num_ticks: int) -> int:
        """Write the last tick, unless it is measured; keep `num_ticks`; return how many are left."""
        if not self._values.topics.measured:
            self._write(None, {})
        self.writer.end_at(max(num_ticks - self.skipped, 0))
        return self.writer.num_samples

    def _write(self, executed: Vector | None, after: Observation) -> None:
        """Write the waiting tick. after: the observation of the next one."""
        if self._waiting is not None:
            observation, action, timestamp_s, intervention = self._waiting
            if self._values.topics.measured:
                action = self._values.measured(action, observation, after)
            self.writer.append(
                observation,
                action,
                timestamp_s=timestamp_s,
                executed_action=executed,
                intervention=intervention,
            )


class Result(NamedTuple):
    """What became of an episode, by its number from `EpisodeSink.begin`: its file, or the problem."""

    number: int
    path: Path | None = None
    num_samples: int = 0
    problem: str = ""


class EpisodeSink:
    """Takes ticks at once, so that disks never keep messages waiting; its thread fills `results`."""

    def __init__(self, folder: Path, given: GivenSpec, jpeg_quality: int | None = None) -> None:
        """folder: where the episodes go. Their numbers go on after those that are there."""
        self._folder, self._given, self._jpeg_quality = folder, given, jpeg_quality
        self.results: Queue[Result] = Queue()
        self._jobs: Queue[tuple[int, Callable[[], None]] | None] = Queue()
        self._number = 0
        self._rows: EpisodeRows | None = None
        self._flushed_s = 0.0
        self._thread = threading.Thread(target=self._work, name="episode writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of ticks that are not written yet."""
        return self._jobs.qsize()

    def begin(self, newest: Mapping[str, Any]) -> int:
        """Begin an episode and return its number.

        newest: the newest message of each topic, by which its cameras have their sizes. Raises `UserError`
        if one of them is damaged, or the folder cannot take an episode.
        """
        values = self._given.values(self._given.complete_from(newest))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise UserError(
                f"cannot record to {self._folder} ({error.strerror}); name another folder"
            ) from error
        if free < LEAST_FREE_BYTES:
            raise UserError(f"only {free / 2**20:.0f} MiB are free in {self._folder}; name another")
        self._number += 1
        self._do(self._begin, values)
        return self._number

    def put(self, tick: Tick[Any]) -> None:
        """Write one tick. Raises `UserError` if too many wait already."""
        if self.waiting > MOST_WAITING:
            raise UserError(
                f"{MOST_WAITING} ticks wait to be written; set jpeg_quality, or a lower rate_hz"
            )
        self._do(self._write, tick)

    def finish(self, num_ticks: int, instruction: str, success: bool | None) -> None:
        """Complete the episode with the first `num_ticks` that were put."""
        self._do(self._finish, self._number, num_ticks, instruction, success)

    def discard(self) -> None:
        """Delete the episode."""
        self._do(self._abandon)

    def close(self) -> None:
        """Complete what was finished, delete an episode that was not, and end the thread."""
        self._do(self._abandon)
        self._jobs.put(None)
        self._thread.join()

    def _do(self, job: Callable[..., None], *arguments: Any) -> None:
        """Have the thread do something for the episode in hand."""
        self._jobs.put((self._number, partial(job, *arguments)))

    def _work(self) -> None:
        while (next_job := self._jobs.get()) is not None:
            number, job = next_job
            try:
                job()
            except Exception as error:  # nobody else would see it in this thread
                reason = str(error) if isinstance(error, UserError) else repr(error)
                self._abandon()
                self.results.put(Result(number, problem=" ".join(reason.split())))

    def _begin(self, values: TickValues) -> None:
        self._abandon()
        path = next_episode_path(self._folder)
        writer = EpisodeWriter(path, values.spec, jpeg_quality=self._jpeg_quality)
        self._rows, self._flushed_s = EpisodeRows(writer, values), time.monotonic()

    def _write(self, tick: Tick[Any]) -> None:
        if self._rows is None:
            return  # a tick before it failed
        self._rows.add(tick)
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self._rows.writer.flush()
            self._flushed_s = time.monotonic()

    def _finish(self, number: int, num_ticks: int, instruction: str, success: bool | None) -> None:
        if self._rows is None:
            return
        count = self._rows.end(num_ticks)
        path = self._rows.writer.finish(instruction=instruction, success=success, split=None)
        self._rows = None
        self.results.put(Result(number, path, count))

    def _abandon(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.writer.abandon()
