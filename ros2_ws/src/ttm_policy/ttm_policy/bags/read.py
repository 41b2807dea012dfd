"""Bags to episodes: one bag is one episode. `ttm data bags` runs this module as a program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
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
from ttm_policy.messages import check_fields
from ttm_policy.programs import run_for_ttm
from ttm_policy.recording.episodes import (
    EpisodeRows,
    JointTopics,
    TickValues,
    message_image_size,
    require_rate,
    spec_of_contract,
)
from ttm_policy.recording.matching import Tick, TickMatcher, Topics


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
    """Write an episode for each bag into the folder `out`; return how many. Raises `UserError`."""
    contract = load_contract(options.contract)
    check_fields(contract)
    bags, out = _find_bags(Path(options.source)), Path(options.out)
    with closing(BagFile(bags[0], contract)) as first:
        spec = _spec(first, options)
    contract.check(spec, whose="the spec of the bags")

    def write(folder: Path) -> None:
        folder.mkdir()
        for number, path in enumerate(track(bags, "converting")):
            with closing(BagFile(path, contract)) as bag:
                _require_same(bag, spec, options)
                file = folder / f"episode_{number:05d}.hdf5"
                _write_episode(bag, spec, file, _instruction(bag, options))

    write_whole(out, write, contents=("episode_*.hdf5",), overwrite=options.overwrite)
    return len(bags)


def _find_bags(path: Path) -> list[Path]:
    """Return the bags that a folder is or holds: folders with `metadata.yaml`."""
    found = [path] if (path / "metadata.yaml").is_file() else []
    found = found or [file.parent for file in path.rglob("metadata.yaml")]
    if not found:
        raise UserError(f"{path} has no bag, which is a folder with metadata.yaml; check the path")
    return sorted(found, key=natural_key)


def _spec(bag: BagFile, options: BagOptions) -> PolicySpec:
    """Return the spec of the episodes: of the spec file, or else the bag, or else the first images."""
    contract = bag.contract
    rate_hz = contract.rate_hz if bag.facts is None else bag.facts.rate_hz
    rate_hz = rate_hz if options.rate_hz is None else options.rate_hz
    if rate_hz is None:
        raise UserError(f"{bag.path} and {contract.path} lack the control rate; give --rate-hz")
    if options.spec is None and bag.spec is not None:
        require_rate(bag.spec.rate_hz, rate_hz, str(bag.path))
        return bag.spec
    given = SpecFile()
    if options.spec is not None:
        given = read_spec_file(Path(options.spec))
        require_rate(given.rate_hz, rate_hz, options.spec)
        _require_fit(given, contract, options.spec)
    first = {topic: message for topic, _, message in bag.messages({t: {0} for t in bag.types})}
    for source in contract.images:
        if source.topic not in first:
            raise UserError(f"{bag.path}: topic '{source.topic}' has no message; record it, too")
    sizes = {source.name: message_image_size(first[source.topic]) for source in contract.images}
    return spec_of_contract(contract, given, rate_hz, sizes)


def _require_fit(given: SpecFile, contract: RobotContract, spec_file: str) -> None:
    """Raise `UserError` if a spec file says of robot or cameras what a bag is not converted to."""
    if given.robot not in (None, contract.robot):
        raise UserError(f"{spec_file} is for '{given.robot}', the contract for '{contract.robot}'")
    names = [source.name for source in contract.images]
    if given.cameras is not None and set(given.cameras) != set(names):
        has, wanted = (", ".join(each) or "none" for each in (given.cameras, names))
        raise UserError(f"{spec_file} has cameras {has}, but the contract {wanted}; use the same")
    for name, stored in (given.cameras or {}).items():
        if stored.orientation in ("upside-down", "rotated") or stored.colours != "rgb":
            kind = f"{stored.orientation or 'upright'} and {stored.colours}"
            raise UserError(
                f"{spec_file}: camera {name} is {kind}, but images of bags are taken as they are; "
                "give this spec to ttm train"
            )


def _require_same(bag: BagFile, spec: PolicySpec, options: BagOptions) -> None:
    """Raise `UserError` if a bag says that it is of another rate or spec than is written."""
    if options.spec is None and bag.spec not in (None, spec):
        raise UserError(f"{bag.path} is of another spec than the bags before it; convert it alone")
    if bag.facts is not None and bag.facts.rate_hz != spec.rate_hz:
        raise UserError(
            f"{bag.path} says {bag.facts.rate_hz:g} Hz, not {spec.rate_hz:g}; convert it alone"
        )


def _instruction(bag: BagFile, options: BagOptions) -> str:
    """Return what --instruction says, or else the bag on the topic `instruction`."""
    if options.instruction is not None:
        return options.instruction
    texts = bag.texts(INSTRUCTION_TOPIC) - {""}
    if len(texts) > 1 or not (texts or bag.facts):
        found = "several instructions" if texts else f"no topic '{INSTRUCTION_TOPIC}' with a text"
        raise UserError(f"{bag.path} has {found}; give --instruction, which holds for all bags")
    return texts.pop() if texts else ""


def _write_episode(bag: BagFile, spec: PolicySpec, file: Path, instruction: str) -> None:
    plain = any(bag.types.get(s.topic) == "geometry_msgs/Twist" for s in bag.contract.actions)
    values = TickValues(bag.contract, spec, cmd_vel_stamped=not plain)
    topics = replace(values.topics, commands=values.topics.commands & bag.types.keys())
    stamps, facts = bag.stamps(), bag.facts
    ticks = _ticks(bag, stamps, topics, spec.rate_hz)
    if facts is not None and facts.late_ns:
        ticks = [tick.earlier(facts.late_ns) for tick in ticks]
    with EpisodeWriter(file, spec) as writer:
        rows = EpisodeRows(writer, values)
        for tick in _with_messages(bag, ticks, stamps, JointTopics(bag.contract)):
            rows.add(tick)
        rows.end(len(ticks) - topics.measured)
        keys = ("task", "success", "seed", "split")
        known = {key: getattr(facts, key) for key in keys} if facts else {"split": None}
        writer.finish(instruction=instruction, **known)


def _ticks(
    bag: BagFile, stamps: Mapping[str, Stamps], topics: Topics, rate_hz: float
) -> list[Tick[int]]:
    """Return the numbers of the messages of each tick. stamps: in the order of recording."""
    matcher = TickMatcher[int](topics, rate_hz)
    for topic, values in stamps.items():
        for number, stamp_ns in enumerate(values.tolist()):
            matcher.add(topic, stamp_ns, number)
    for topic in matcher.unseen:
        raise UserError(f"{bag.path}: topic '{topic}' has no message; record it with the others")
    if bag.facts is not None:
        matcher.begin_at(bag.facts.first_tick_ns)
    if not topics.measured and not any(len(stamps[topic]) for topic in topics.commands):
        raise UserError(f"{bag.path} has no command of the contract, and so nothing to learn")
    try:
        ticks = list(matcher.finish())
    except UserError as error:
        raise UserError(f"{bag.path}: {error}") from error
    if not ticks:
        what = "no whole observation after" if topics.measured else "no command after"
        raise UserError(f"{bag.path} has {what} the first whole observation")
    return ticks


def _with_messages(
    bag: BagFile, ticks: Sequence[Tick[int]], stamps: Mapping[str, Stamps], joints: JointTopics
) -> Iterator[Tick[Any]]:
    """Yield the ticks with messages in place of their numbers; only those that wait are in memory."""
    users: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, tick in enumerate(ticks):
        for used in {*tick.observation.items(), *tick.command.items()}:
            users[used].append(place)
    missing = Counter(place for using in users.values() for place in using)
    wanted = {topic: set[int]() for topic in bag.types}
    wanted |= {topic: set(range(len(stamps[topic]))) for topic in joints.topics}
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
            tick, messages = ticks[done], found.pop(done)
            observed, commands = (
                {topic: messages[topic, number] for topic, number in part.items()}
                for part in (tick.observation, tick.command)
            )
            yield Tick(observed, tick.stamps_ns, commands)
            done += 1


def _run(options: BagOptions) -> int:
    print(f"{options.out}: {convert_bags(options)} episodes, rosbag2 to ttm")
    return 0


main = partial(run_for_ttm, BagOptions, _run)
"""Converts what the JSON of `BagOptions` says; prints the result; returns the exit code."""
