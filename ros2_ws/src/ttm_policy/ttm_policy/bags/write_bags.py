"""Episodes to bags: each episode becomes one bag. `ttm data bags --to` runs this module as a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from std_msgs.msg import String

from ttm.datasets.convert.demo_group import fits_spec
from ttm.datasets.convert.hdf5 import recording_of, source_of
from ttm.datasets.convert.output import require_apart, write_whole
from ttm.datasets.convert.recording import Recording, require_fit
from ttm.datasets.episode_dataset import open_dataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.progress import track
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag_facts import BagFacts, Split, custom_data
from ttm_policy.bags.bag_messages import Changes, TickMessages
from ttm_policy.bags.bag_topics import INSTRUCTION_TOPIC, BagTopics, Storage, new_bag
from ttm_policy.bags.tick_stamps import TickStamps, tick_stamps
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields, ns_to_stamp
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.inputs.person_command import DRIVER_TOPIC, PERSON, POLICY
from ttm_policy.replay.stamps import FIRST_S, stamps_ns
from ttm_policy.ros_program import run_for_ttm


@dataclass(frozen=True)
class WriteOptions:
    """What `ttm data bags --to` asks for."""

    source: str
    out: str
    contract: str
    to: Storage
    overwrite: bool = False


@dataclass
class Losses:
    """What bags do not hold of the episodes that were written."""

    values: Changes = field(default_factory=Changes)
    members: set[str] = field(default_factory=set)
    """What has no place in a bag."""
    moved_s: float = 0.0
    """How far a stamp is at most from when its observation was captured."""

    def notes(self, contract: RobotContract) -> list[str]:
        """Return all of it, each in one sentence."""
        found = []
        for sink in contract.actions:
            if sink.name in self.values.counts:
                found.append(
                    f"{self.values.counts[sink.name]} values of '{sink.name}' return changed by up to "
                    f"{self.values.largest[sink.name]:.3g}, as {sink.type} holds no others"
                )
        if measured := [sink.name for sink in contract.actions if sink.measured]:
            found.append(
                f"{contract.path} takes {', '.join(measured)} from what is measured, and not from the "
                "commands; episodes of the bags then end earlier"
            )
        if self.moved_s:
            found.append(f"stamps are up to {self.moved_s:.3g} s from the capture times")
        if self.members:
            found.append(f"not converted: {', '.join(sorted(self.members))}")
        return found


def write_bags(options: WriteOptions) -> tuple[int, list[str]]:
    """Write a bag for each episode into the folder `out`; return how many, and what they do not hold.

    Raises `UserError` if the contract does not fit the episodes, or if they are damaged.
    """
    contract = load_contract(options.contract)
    check_fields(contract)
    out = Path(options.out)
    episodes = open_dataset(options.source)
    source = source_of(episodes, options.source)
    contract.check(source.spec, whose="the data set")
    require_apart(options.source, out)
    with_spec, losses = fits_spec(source), Losses()

    def write(folder: Path) -> None:
        folder.mkdir()
        for number, episode in enumerate(track(episodes, "converting")):
            recording = require_fit(recording_of(episode), source.spec)
            stamps = _stamps(episode, losses)
            _note_members(recording, contract, losses)
            messages = TickMessages(recording, contract, source.spec, losses.values)
            custom = custom_data(
                _facts(recording, stamps, source.spec), source.spec if with_spec else None
            )
            with new_bag(folder / f"bag_{number:05d}", options.to, custom) as writer:
                _write_ticks(BagTopics(writer, contract), messages, recording, stamps)

    write_whole(out, write, contents=("bag_*",), overwrite=options.overwrite)
    return len(episodes), [*source.notes, *losses.notes(contract)]


def _stamps(episode: EpisodeReader, losses: Losses) -> TickStamps:
    captured_ns = stamps_ns(episode)
    stamps = tick_stamps(captured_ns, episode.spec.rate_hz)
    losses.moved_s = max(losses.moved_s, stamps.moved_s)
    return stamps


def _write_ticks(
    topics: BagTopics, messages: TickMessages, recording: Recording, stamps: TickStamps
) -> None:
    if recording.instruction:
        text = {INSTRUCTION_TOPIC: String(data=recording.instruction)}
        topics.write(text, int(stamps.observed_ns[0]))
    drivers = _drivers(recording.interventions)
    for tick, values in enumerate(messages.observations()):
        seen_ns, done_ns = int(stamps.observed_ns[tick]), int(stamps.commanded_ns[tick])
        topics.write(messages.observed(values, ns_to_stamp(seen_ns)), seen_ns)
        topics.write(messages.commanded(tick, ns_to_stamp(done_ns)), done_ns)
        if drivers and (not tick or drivers[tick] != drivers[tick - 1]):
            topics.write({DRIVER_TOPIC: String(data=drivers[tick])}, done_ns)


def _drivers(interventions: Any) -> Sequence[str]:
    """Return who drives at each tick, (T,), as `policy_node` tells it; nothing if nobody knows."""
    known = () if interventions is None else interventions.tolist()
    return [PERSON if each else POLICY for each in known]


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
    """Return the one mask that a bag tells."""
    return next((name for name in get_args(Split) if name in recording.masks), None)


def _note_members(recording: Recording, contract: RobotContract, losses: Losses) -> None:
    """Note what of an episode has no place in a bag."""
    executed, actions = recording.executed_actions, recording.actions
    rewards = recording.rewards
    there = {
        "loss_weights": recording.loss_weights is not None,
        "language_embedding": recording.language_embedding is not None,
        "rewards": rewards is not None and bool(rewards.any()),
        "executed_actions, for which the contract has no executed_action": executed is not None
        and contract.executed is None,
        "executed_actions of the last tick": executed is not None
        and contract.executed is not None
        and not np.array_equal(executed[-1], actions[-1]),
        **{f"mask/{name}": name != _split(recording) for name in recording.masks},
    }
    losses.members |= {name for name, is_there in there.items() if is_there}


def main(arguments: str) -> int:
    """Write what the JSON object of `WriteOptions` says; print the result; return the exit code."""
    options = WriteOptions(**json.loads(arguments))

    def run() -> int:
        count, notes = write_bags(options)
        print(f"{options.out}: {count} episodes, ttm to rosbag2 ({options.to})")
        for note in notes:
            print(f"note: {note}")
        return 0

    return run_for_ttm(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
