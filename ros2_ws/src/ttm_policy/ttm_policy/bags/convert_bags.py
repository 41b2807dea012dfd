"""Bags to episodes: one bag is one episode. `ttm data bags` runs this module as a program."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosbags.rosbag2 import ReaderError

from ttm.datasets.convert.output import write_whole
from ttm.datasets.episode_writer import EpisodeWriter
from ttm.datasets.layout import natural_key
from ttm.datasets.progress import track
from ttm.policy.errors import MissingObservation, UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag_file import BagFile
from ttm_policy.bags.bag_spec import spec_of_bag
from ttm_policy.bags.ticks import NOTHING, Ticks, find_ticks
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields, image_to_frame, read_vector
from ttm_policy.contract.robot_contract import (
    MOTION_TYPES,
    ImageSource,
    RobotContract,
    VectorSource,
)
from ttm_policy.control.inputs import JointStates

JOINTS = "sensor_msgs/JointState"


@dataclass(frozen=True)
class BagOptions:
    """What `ttm data bags` asks for."""

    source: str
    out: str
    contract: str
    rate_hz: float
    instruction: str
    spec: str | None = None
    overwrite: bool = False


def convert_bags(options: BagOptions) -> int:
    """Write an episode for each bag into the folder `out`; return how many there are.

    Raises `UserError` if a bag lacks a topic of the contract, or holds other values than it says.
    """
    contract = load_contract(options.contract)
    check_fields(contract)
    bags, out = find_bags(Path(options.source)), Path(options.out)
    with closing(_open(bags[0], contract)) as first:
        spec = spec_of_bag(first, contract, options.rate_hz, options.spec)
    contract.check(spec, whose="the spec of the bags")

    def write(folder: Path) -> None:
        folder.mkdir()
        for number, path in enumerate(track(bags, "converting")):
            with closing(_open(path, contract)) as bag:
                file = folder / f"episode_{number:05d}.hdf5"
                _write_episode(bag, contract, spec, file, options.instruction)

    write_whole(out, write, contents=("episode_*.hdf5",), overwrite=options.overwrite)
    return len(bags)


def find_bags(path: Path) -> list[Path]:
    """Return the bags that a folder is or holds: folders with `metadata.yaml`."""
    found = [path] if (path / "metadata.yaml").is_file() else []
    found = found or [file.parent for file in path.rglob("metadata.yaml")]
    if not found:
        raise UserError(f"{path} has no bag, which is a folder with metadata.yaml; check the path")
    return sorted(found, key=natural_key)


def _open(path: Path, contract: RobotContract) -> BagFile:
    types: dict[str, tuple[str, ...]] = {
        source.topic: (source.type,) for source in _sources(contract)
    }
    for sink in contract.actions:
        plain = sink.type == "geometry_msgs/TwistStamped" and not sink.per_second
        types[sink.topic] = (sink.type, "geometry_msgs/Twist") if plain else (sink.type,)
    return BagFile(path, types)


def _sources(contract: RobotContract) -> list[ImageSource | VectorSource]:
    return [*contract.images, *contract.vectors]


def _write_episode(
    bag: BagFile, contract: RobotContract, spec: PolicySpec, file: Path, instruction: str
) -> None:
    sources = _sources(contract)
    sinks = {sink.topic: bag.types[sink.topic] for sink in contract.actions}
    moving = [topic for topic, kind in sinks.items() if kind in MOTION_TYPES]
    stamps = bag.stamps()
    observed = {source.topic for source in sources}
    ticks = find_ticks(stamps, observed, sinks, moving, spec.rate_hz, bag.path)
    stamped = "geometry_msgs/Twist" not in sinks.values()
    codec = CommandCodec(contract, spec, cmd_vel_stamped=stamped)
    with EpisodeWriter(file, spec) as writer:
        for tick, row in _rows(bag, contract, spec, ticks, {t: len(s) for t, s in stamps.items()}):
            observation = {source.name: row.get(source.name) for source in sources}
            if any(value is None for value in observation.values()) and not writer.num_samples:
                continue  # some joints were not seen yet
            commands = {topic: row[f"/{topic}"] for topic in sinks if f"/{topic}" in row}
            writer.append(
                {name: value for name, value in observation.items() if value is not None},
                codec.decode(commands),
                timestamp_s=ticks.captured_ns[tick] / 1e9,
                done=tick == len(ticks.captured_ns) - 1,
            )
        writer.finish(instruction=instruction, split=None)


def _rows(
    bag: BagFile,
    contract: RobotContract,
    spec: PolicySpec,
    ticks: Ticks,
    counts: Mapping[str, int],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (tick, values) in order: the observation by name, the command messages by topic.

    Only ticks that wait for a message are in memory.
    """
    users = _users(ticks)
    missing = Counter(tick for using in users.values() for tick in using)
    # Messages with some of the joints are merged, so that all of them are needed.
    joints = {topic: JointStates() for topic, kind in bag.types.items() if kind == JOINTS}
    wanted = ticks.wanted() | {topic: set(range(counts[topic])) for topic in joints}
    rows: dict[int, dict[str, Any]] = {}
    done = 0
    for topic, number, message in bag.messages(wanted):
        if topic in joints:
            joints[topic].add(message)
        using = users.get((topic, number), [])
        values = _values(topic, message, contract, spec, joints) if using else {}
        for tick in using:
            rows.setdefault(tick, {}).update(values)
            missing[tick] -= 1
        while done in rows and not missing[done]:
            yield done, rows.pop(done)
            done += 1


def _users(ticks: Ticks) -> dict[tuple[str, int], list[int]]:
    """Return (topic, number of the message) -> the ticks that it belongs to."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topics in (ticks.observations, ticks.commands):
        for topic, numbers in topics.items():
            for tick, number in enumerate(numbers.tolist()):
                if number != NOTHING:
                    found[topic, number].append(tick)
    return found


def _values(
    topic: str,
    message: Any,
    contract: RobotContract,
    spec: PolicySpec,
    joints: Mapping[str, JointStates],
) -> dict[str, Any]:
    """Return what a message says: observations by name, a command as the message by "/" + topic."""
    values: dict[str, Any] = {}
    for source in contract.images:
        if source.topic == topic:
            values[source.name] = image_to_frame(message, source, spec.camera(source.name))
    for vector in contract.vectors:
        if vector.topic == topic:
            whole = joints[topic].merged(vector)[0] if topic in joints else message
            values[vector.name] = _vector(whole, vector)
    if any(sink.topic == topic for sink in contract.actions):
        values[f"/{topic}"] = message
    return values


def _vector(message: Any, source: VectorSource) -> Any:
    """Return the vector, or None while some of its joints were not seen."""
    try:
        return read_vector(message, source)
    except MissingObservation:
        return None


def main(arguments: str) -> int:
    """Convert what the JSON object of `BagOptions` says; print the result; return the exit code."""
    options = BagOptions(**json.loads(arguments))
    try:
        count = convert_bags(options)
    except (UserError, ReaderError) as error:
        print(f"ttm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # `ttm`, which gets Ctrl-C too, says so
        return 130
    print(f"{options.out}: {count} episodes, rosbag2 to ttm")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
