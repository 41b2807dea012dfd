"""Bags to episodes: one bag is one episode. `ttm data bags` runs this module as a program."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.datasets.convert.output import write_whole
from ttm.datasets.episode_writer import EpisodeWriter
from ttm.datasets.layout import natural_key
from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag_file import BagFile
from ttm_policy.bags.bag_spec import spec_of_bag
from ttm_policy.bags.bag_topics import INSTRUCTION_TOPIC
from ttm_policy.bags.ticks import find_ticks, users_of
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.inputs.person_command import DRIVER_TOPIC
from ttm_policy.recording.episode_rows import EpisodeRows
from ttm_policy.recording.matching import Tick
from ttm_policy.recording.tick_values import JointTopics, TickValues
from ttm_policy.ros_program import run_for_ttm


@dataclass(frozen=True)
class BagOptions:
    """What `ttm data bags` asks for."""

    source: str
    out: str
    contract: str
    rate_hz: float | None = None
    instruction: str | None = None
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
        spec = spec_of_bag(first, contract, _rate_hz(first, options, contract), options.spec)
    contract.check(spec, whose="the spec of the bags")

    def write(folder: Path) -> None:
        folder.mkdir()
        for number, path in enumerate(track(bags, "converting")):
            with closing(_open(path, contract)) as bag:
                _require_same(bag, spec, options)
                file = folder / f"episode_{number:05d}.hdf5"
                _write_episode(bag, contract, spec, file, _instruction(bag, options))

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
    types: dict[str, tuple[str, ...]] = {source.topic: (source.type,) for source in contract.inputs}
    for sink in (each for each in contract.actions if not each.measured):
        plain = sink.type == "geometry_msgs/TwistStamped" and not sink.per_second
        types[sink.topic] = (sink.type, "geometry_msgs/Twist") if plain else (sink.type,)
    return BagFile(path, types, extra={DRIVER_TOPIC: "std_msgs/String"})


def _rate_hz(bag: BagFile, options: BagOptions, contract: RobotContract) -> float:
    said = contract.rate_hz if bag.facts is None else bag.facts.rate_hz
    rate_hz = said if options.rate_hz is None else options.rate_hz
    if rate_hz is None:
        raise UserError(
            f"neither {bag.path} nor {contract.path} says the control rate; give it by --rate-hz"
        )
    return rate_hz


def _require_same(bag: BagFile, spec: PolicySpec, options: BagOptions) -> None:
    """Raise `UserError` if a bag says that it is of another rate or spec than is written."""
    if options.spec is None and bag.spec not in (None, spec):
        raise UserError(
            f"{bag.path} is of another spec than the bags before it; convert it by itself, or give --spec"
        )
    if bag.facts is not None and bag.facts.rate_hz != spec.rate_hz:
        raise UserError(
            f"{bag.path} says {bag.facts.rate_hz:g} Hz, but the rate is {spec.rate_hz:g}; convert it by "
            "itself, without --rate-hz"
        )


def _instruction(bag: BagFile, options: BagOptions) -> str:
    """Return what --instruction says, or else the bag on the topic `instruction`."""
    if options.instruction is not None:
        return options.instruction
    texts = bag.texts(INSTRUCTION_TOPIC) - {""}
    if len(texts) > 1 or not (texts or bag.facts):
        told = "several instructions" if texts else f"no topic '{INSTRUCTION_TOPIC}' with a text"
        raise UserError(f"{bag.path} has {told}; give --instruction, which holds for all bags")
    return texts.pop() if texts else ""


def _write_episode(
    bag: BagFile, contract: RobotContract, spec: PolicySpec, file: Path, instruction: str
) -> None:
    commanded = {sink.topic for sink in contract.actions}
    sinks = {topic: kind for topic, kind in bag.types.items() if topic in commanded}
    facts = bag.facts
    stamped = "geometry_msgs/Twist" not in sinks.values()
    values = TickValues(contract, spec, cmd_vel_stamped=stamped)
    stamps = bag.stamps()
    observed = {source.topic for source in contract.inputs}
    measured = values.measured.is_needed
    ticks = find_ticks(
        stamps,
        observed,
        bag.types.keys() & {*sinks, DRIVER_TOPIC},
        values.moving,
        spec.rate_hz,
        bag.path,
        measured=measured,
        first_tick_ns=None if facts is None else facts.first_tick_ns,
    )
    if facts is not None and facts.late_ns:
        ticks = [tick.earlier(facts.late_ns) for tick in ticks]
    with EpisodeWriter(file, spec) as writer:
        rows = EpisodeRows(writer, values)
        joints = JointTopics(contract)
        everything = {topic: set(range(len(stamps[topic]))) for topic in joints.topics}
        for tick in _with_messages(bag, ticks, joints, everything):
            rows.add(tick)
        rows.end(len(ticks) - measured)
        if facts is None:
            writer.finish(instruction=instruction, split=None)
        else:
            writer.finish(
                instruction=instruction,
                task=facts.task,
                success=facts.success,
                seed=facts.seed,
                split=facts.split,
            )


def _with_messages(
    bag: BagFile, ticks: Sequence[Tick[int]], joints: JointTopics, needed: Mapping[str, set[int]]
) -> Iterator[Tick[Any]]:
    """Yield the ticks in order, with messages in place of their numbers.

    Only messages of ticks that wait for others are in memory. needed: messages that are read besides.
    """
    users = users_of(ticks)
    missing = Counter(place for using in users.values() for place in using)
    wanted = {topic: set(needed.get(topic, ())) for topic in bag.types}
    for topic, number in users:
        wanted[topic].add(number)
    found: dict[int, dict[tuple[str, int], Any]] = defaultdict(dict)
    done = 0
    for topic, number, message in bag.messages(wanted):
        whole = joints.completed(topic, message)
        for place in users.get((topic, number), []):
            found[place][topic, number] = whole
            missing[place] -= 1
        while done < len(ticks) and not missing[done]:
            yield _filled(ticks[done], found.pop(done))
            done += 1


def _filled(tick: Tick[int], messages: Mapping[tuple[str, int], Any]) -> Tick[Any]:
    """Return the tick with `messages`, (topic, number) -> message, in place of numbers."""
    return Tick(
        {topic: messages[topic, number] for topic, number in tick.observation.items()},
        tick.stamps_ns,
        {topic: messages[topic, number] for topic, number in tick.command.items()},
    )


def main(arguments: str) -> int:
    """Convert what the JSON object of `BagOptions` says; print the result; return the exit code."""
    options = BagOptions(**json.loads(arguments))

    def run() -> int:
        print(f"{options.out}: {convert_bags(options)} episodes, rosbag2 to ttm")
        return 0

    return run_for_ttm(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
