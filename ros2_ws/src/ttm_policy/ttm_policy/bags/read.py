"""Bags to episodes: one bag is one episode. `ttm data bags` runs this module as a program."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.datasets.console import track
from ttm.datasets.description import SpecFile, read_spec_file
from ttm.datasets.layout import natural_key
from ttm.datasets.tools.convert import write_whole
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag import INSTRUCTION_TOPIC, BagFile, Stamps
from ttm_policy.contract import RobotContract, load_contract
from ttm_policy.inputs import DRIVER_TOPIC
from ttm_policy.messages import check_fields
from ttm_policy.programs import run_for_ttm
from ttm_policy.recording.matching import (
    JointTopics,
    Tick,
    TickMatcher,
    TickValues,
    message_image_size,
)
from ttm_policy.recording.sink import EpisodeRows
from ttm_policy.recording.topics import require_rate, spec_of_contract

# The spec of a bag: from its contract, its first images, and what a spec file says.


def spec_of_bag(
    bag: BagFile, contract: RobotContract, rate_hz: float, spec_file: str | None
) -> PolicySpec:
    """Return the spec of the episodes that bags of a contract become, at the control rate.

    Without a spec file, it is that of the bag if it carries one. Otherwise,
    cameras have the size of their first image. What a spec file says of robot and cameras must be what
    the contract says, and images are taken as they are. Parts of the action are those of the spec file, or
    else one for each entry of the contract, with a value for each field; a `std_msgs/Bool` is binary.
    """
    if spec_file is None and bag.spec is not None:
        require_rate(bag.spec.rate_hz, rate_hz, str(bag.path))
        return bag.spec
    given = SpecFile() if spec_file is None else read_spec_file(Path(spec_file))
    require_rate(given.rate_hz, rate_hz, str(spec_file))
    _require_fit(given, contract, spec_file)
    first = {topic: message for topic, _, message in bag.messages({t: {0} for t in bag.types})}
    for source in contract.images:
        if source.topic not in first:
            raise UserError(
                f"{bag.path}: topic '{source.topic}' has no message; record it with the others"
            )
    sizes = {source.name: message_image_size(first[source.topic]) for source in contract.images}
    return spec_of_contract(contract, given, rate_hz, sizes)


def _require_fit(given: SpecFile, contract: RobotContract, spec_file: str | None) -> None:
    """Raise `UserError` if a spec file says of robot or cameras what a bag is not converted to."""
    if given.robot not in (None, contract.robot):
        raise UserError(
            f"{spec_file} is for the robot '{given.robot}', but the contract for '{contract.robot}'; "
            "give the same name in both"
        )
    names = [source.name for source in contract.images]
    if given.cameras is not None and set(given.cameras) != set(names):
        raise UserError(
            f"{spec_file} has the cameras {', '.join(given.cameras) or 'none'}, but the contract "
            f"{', '.join(names) or 'none'}; give the same in both"
        )
    for name, stored in (given.cameras or {}).items():
        if stored.orientation in ("upside-down", "rotated") or stored.colours != "rgb":
            raise UserError(
                f"{spec_file}: camera {name} is {stored.orientation or 'upright'} and {stored.colours}, but "
                "images of bags are taken as their messages say; turn them in the camera's driver, or "
                "give this spec to ttm train"
            )


# The ticks of a bag: the numbers of the messages that belong to each.


def find_ticks(
    stamps: Mapping[str, Stamps],
    observed: Collection[str],
    commands: Collection[str],
    moving: Collection[str],
    rate_hz: float,
    path: Path,
    *,
    measured: bool = False,
    first_tick_ns: int | None = None,
) -> list[Tick[int]]:
    """Match messages to ticks; return the numbers of the messages of each tick.

    stamps: topic -> stamps in ns, in the order of recording. moving: the commands that move the
    robot by velocity. measured: whether actions are measured, and need no command; the last tick then only
    measures the one before. first_tick_ns: when the first tick begins; None for when every
    topic was seen. Raises `UserError` if a topic has no message, or there is no whole tick.
    """
    matcher = TickMatcher[int](observed, commands, moving, rate_hz, measured=measured)
    for topic, values in stamps.items():
        for number, stamp_ns in enumerate(values.tolist()):
            matcher.add(topic, stamp_ns, number)
    for topic in matcher.unseen:
        raise UserError(f"{path}: topic '{topic}' has no message; record it with the others")
    if first_tick_ns is not None:
        matcher.begin_at(first_tick_ns)
    if not measured and not any(len(stamps[topic]) for topic in commands):
        raise UserError(f"{path} has no command of the contract; nothing can be learned from it")
    try:
        ticks = list(matcher.finish())
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not ticks:
        what = (
            "there is no whole observation after" if measured else "the last command is older than"
        )
        raise UserError(f"{path}: {what} the first whole observation")
    return ticks


def users_of(ticks: Sequence[Tick[int]]) -> dict[tuple[str, int], list[int]]:
    """Return (topic, number of the message) -> the ticks that it belongs to."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, tick in enumerate(ticks):
        for topic, number in {*tick.observation.items(), *tick.command.items()}:
            found[topic, number].append(place)
    return found


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
