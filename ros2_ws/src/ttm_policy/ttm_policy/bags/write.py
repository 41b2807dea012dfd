"""Episodes to bags: each episode becomes one bag. `ttm data bags --to` runs this module as a program."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from ttm.datasets.console import track
from ttm.datasets.dataset import open_dataset
from ttm.datasets.formats.hdf5 import fits_spec, recording_of, source_of
from ttm.datasets.formats.recording import Recording, require_fit
from ttm.datasets.tools.convert import require_apart, write_whole
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag import INSTRUCTION_TOPIC, BagFacts, BagTopics, Split, Storage, new_bag
from ttm_policy.contract import EXECUTED_ACTION, RobotContract, load_contract
from ttm_policy.inputs import DRIVER_TOPIC, PERSON, POLICY
from ttm_policy.messages import CommandCodec, check_fields, ns_to_stamp, observation_messages
from ttm_policy.programs import run_for_ttm
from ttm_policy.replay import FIRST_S, stamps_ns

Vector = npt.NDArray[np.float32]
Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WriteOptions:
    """What `ttm data bags --to` asks for."""

    source: str
    out: str
    contract: str
    to: Storage
    overwrite: bool = False


def write_bags(options: WriteOptions) -> tuple[int, list[str]]:
    """Write a bag for each episode; return how many, and what they do not hold. Raises `UserError`."""
    contract = load_contract(options.contract)
    check_fields(contract)
    out, episodes = Path(options.out), open_dataset(options.source)
    source = source_of(episodes, options.source)
    spec = source.spec
    contract.check(spec, whose="the data set")
    require_apart(options.source, out)
    losses = Losses(contract)
    stored_spec = spec if fits_spec(source) else None

    def write(folder: Path) -> None:
        folder.mkdir()
        for number, episode in enumerate(track(episodes, "converting")):
            recording = require_fit(recording_of(episode), spec)
            stamps = tick_stamps(stamps_ns(episode), episode.spec.rate_hz)
            losses.note(recording, stamps)
            messages = TickMessages(recording, spec, losses)
            path, facts = folder / f"bag_{number:05d}", _facts(recording, stamps, spec)
            with new_bag(path, options.to, facts, stored_spec) as writer:
                _write_ticks(BagTopics(writer, contract), messages, recording, stamps)

    write_whole(out, write, contents=("bag_*",), overwrite=options.overwrite)
    return len(episodes), [*source.notes, *losses.notes()]


def _write_ticks(
    topics: BagTopics, messages: TickMessages, recording: Recording, stamps: TickStamps
) -> None:
    if recording.instruction:
        text = {INSTRUCTION_TOPIC: String(data=recording.instruction)}
        topics.write(text, int(stamps.observed_ns[0]))
    known = [] if recording.interventions is None else recording.interventions.tolist()
    drivers = [PERSON if each else POLICY for each in known]  # nothing if nobody knows
    for tick, values in enumerate(messages.observations()):
        seen_ns, done_ns = int(stamps.observed_ns[tick]), int(stamps.commanded_ns[tick])
        topics.write(messages.observed(values, ns_to_stamp(seen_ns)), seen_ns)
        topics.write(messages.commanded(tick, ns_to_stamp(done_ns)), done_ns)
        if drivers and (not tick or drivers[tick] != drivers[tick - 1]):
            topics.write({DRIVER_TOPIC: String(data=drivers[tick])}, done_ns)


def _facts(recording: Recording, stamps: TickStamps, spec: PolicySpec) -> BagFacts:
    first_s = 0.0 if recording.timestamps is None else float(recording.timestamps[0])
    is_late = first_s < FIRST_S
    return BagFacts(
        rate_hz=spec.rate_hz,
        first_tick_ns=stamps.first_tick_ns,
        late_ns=int(stamps.observed_ns[0]) - round(first_s * 1e9) if is_late else 0,
        task=recording.task,
        success=recording.success,
        seed=recording.seed,
        split=_split(recording),
    )


def _split(recording: Recording) -> Split | None:
    """Return the one mask that a bag holds."""
    return next((name for name in get_args(Split) if name in recording.masks), None)


class Losses:
    """What bags do not hold of the episodes that were written."""

    def __init__(self, contract: RobotContract) -> None:
        self.contract = contract
        self._counts: Counter[str] = Counter()
        """How many values of each action part do not return from their messages,"""
        self._largest: dict[str, float] = {}
        """and by how much."""
        self._members: set[str] = set()
        self._moved_s = 0.0

    def note(self, recording: Recording, stamps: TickStamps) -> None:
        """Note what of an episode has no place in a bag."""
        self._moved_s = max(self._moved_s, stamps.moved_s)
        for name in ("loss_weights", "language_embedding"):
            if getattr(recording, name) is not None:
                self._members.add(name)
        if recording.rewards is not None and recording.rewards.any():
            self._members.add("rewards")
        if (executed := recording.executed_actions) is not None:
            if self.contract.executed is None:
                self._members.add("executed_actions, for which the contract has no executed_action")
            elif not np.array_equal(executed[-1], recording.actions[-1]):
                self._members.add("executed_actions of the last tick")
        split = _split(recording)
        self._members |= {f"mask/{name}" for name in recording.masks if name != split}

    def compare(self, spec: PolicySpec, action: Vector, back: Vector) -> None:
        """Take an action (A,) and what its messages say."""
        difference = np.abs(action - back)
        for name, where in spec.action_slices.items():
            if number := int(np.count_nonzero(difference[where])):
                self._counts[name] += number
                largest = float(difference[where].max())
                self._largest[name] = max(largest, self._largest.get(name, 0.0))

    def notes(self) -> list[str]:
        """Return all of it, each in one sentence."""
        found = [
            f"{self._counts[sink.name]} values of '{sink.name}' return changed by up to "
            f"{self._largest[sink.name]:.3g}, as {sink.type} holds no others"
            for sink in self.contract.actions
            if sink.name in self._counts
        ]
        if measured := [sink.name for sink in self.contract.actions if sink.measured]:
            found.append(f"{', '.join(measured)} will be measured, and episodes end earlier")
        if self._moved_s:
            found.append(f"stamps are up to {self._moved_s:.3g} s from the capture times")
        if self._members:
            found.append(f"not converted: {', '.join(sorted(self._members))}")
        return found


class TickMessages:
    """Makes the messages of an episode's ticks; `losses` learns of what they do not hold."""

    def __init__(self, recording: Recording, spec: PolicySpec, losses: Losses) -> None:
        self._recording, self._spec, self._losses = recording, spec, losses
        contract = losses.contract
        self._codec = CommandCodec(contract, spec)
        compressed = [s for s in contract.images if s.type == "sensor_msgs/CompressedImage"]
        self._kept = [s for s in compressed if recording.cameras[s.name].jpegs is not None]
        others = tuple(source for source in contract.images if source not in self._kept)
        self._contract = replace(contract, images=others)
        executed = recording.executed_actions
        self._executed = recording.actions if executed is None else executed

    def observations(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the inputs of each tick, JPEGs where messages take them, and what the tick before did."""
        recording = self._recording
        kept = {source.name for source in self._kept}
        streams = {
            name: recording.each_jpeg(name) if name in kept else recording.each_frame(name)
            for name in recording.cameras
        }
        for tick in range(len(recording.actions)):
            did = self._executed[tick - 1] if tick else np.zeros_like(self._executed[0])
            images = {name: next(stream) for name, stream in streams.items()}
            vectors = {name: values[tick] for name, values in recording.vectors.items()}
            yield {**images, **vectors, EXECUTED_ACTION: did}

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
        self._losses.compare(self._spec, action, self._codec.decode(messages))
        return messages


@dataclass(frozen=True)
class TickStamps:
    """When the messages of T ticks are made, in ns: observations (T,) and commands (T,).

    The first tick begins at the stamp of its observation or later. `moved_s` is how far an observation is at
    most from when it was captured.
    """

    observed_ns: Stamps
    commanded_ns: Stamps
    first_tick_ns: int
    moved_s: float


def tick_stamps(captured_ns: Stamps, rate_hz: float) -> TickStamps:
    """Return stamps whose ticks, at the rate, have one observation and one command each.

    captured_ns: (T,), increasing. The stamps of the observations, unless they are so irregular that a tick
    of the rate would see none or two of them; all then follow the first at the rate.
    """
    count = len(captured_ns)
    offsets = np.round(np.arange(count + 1) * (1e9 / rate_hz)).astype(np.int64)
    observed = captured_ns
    begins = offsets + (observed - offsets[:-1]).max()
    if (begins[:-2] >= observed[1:]).any():
        observed, begins = captured_ns[0] + offsets[:-1], captured_ns[0] + offsets
    # A command is made in its tick, and before the next observation.
    ends = np.append(np.minimum(begins[1:-1], observed[1:]), begins[-1])
    return TickStamps(
        observed,
        (begins[:-1] + ends) // 2,
        int(begins[0]),
        float(np.abs(observed - captured_ns).max()) / 1e9,
    )


def _run(options: WriteOptions) -> int:
    count, notes = write_bags(options)
    print(f"{options.out}: {count} episodes, ttm to rosbag2 ({options.to})")
    for note in notes:
        print(f"note: {note}")
    return 0


main = partial(run_for_ttm, WriteOptions, _run)
"""Writes what the JSON of `WriteOptions` says; prints the result; returns the exit code."""
