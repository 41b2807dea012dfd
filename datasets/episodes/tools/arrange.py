"""`ttm data merge`, `split` and `filter`: data sets in HDF5 whose demos are copied whole."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import h5py
import numpy as np
from tyro.conf import Positional, arg

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset, open_dataset, same_episodes
from ttm.datasets.episode_file import decoded, open_file
from ttm.datasets.formats.hdf5 import has_own_spec
from ttm.datasets.hdf5 import new_file, reserve
from ttm.datasets.layout import SUFFIXES
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.spec_inference import json_object
from ttm.datasets.tools.convert import require_apart, write_whole
from ttm.policy.errors import UserError, options, require_at_least

MEANING = ("macros_image_convention", "ttm_spec")
"""Attributes of `data` without which a file's arrays mean something else."""

OWN = ("total", "problem_info")
"""Attributes of `data` that are not taken over: the new file counts its own ticks, and LIBERO's
instruction, which stands once a file, becomes that of each demo."""

ROOM_A_MEMBER, ROOM_A_ROW = 2**14, 2**8
"""Bytes that HDF5 may take beside the values of a member, and of a row of varying length."""


@dataclass(frozen=True)
class DataMergeCommand:
    """Merge data sets of one robot into one HDF5 file.

    Demos are copied whole, with all their members, and keep their masks, instructions and success.
    A few large files open faster than many small ones.

    For example:
      ttm data merge monday tuesday --out week.hdf5
    """

    writes_file: ClassVar[bool] = True
    sources: Annotated[Positional[tuple[str, ...]], arg(metavar="EPISODES …")]
    """HDF5 files, folders of them, or globs in quotes."""
    out: Path
    """The HDF5 file to write."""
    overwrite: bool = False
    """Replace the file if it is there."""

    def run(self) -> int:
        """Merge and print how many episodes there are; return the exit code."""
        count, _ = merge_episodes(self.sources, self.out, overwrite=self.overwrite)
        print(f"{self.out}: {count} episodes")
        return 0


@dataclass(frozen=True)
class DataSplitCommand:
    """Split a data set into train.hdf5 and valid.hdf5 in one folder, with the masks train and valid.

    Copies of an episode go to the same side.

    For example:
      ttm data split demos --out demos_split --valid 0.1
    """

    source: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""
    out: Path
    """The folder to write."""
    valid: float = 0.1
    """The portion of the episodes that is held out for validation."""
    seed: int = 0
    """Which episodes are held out; the same seed chooses the same ones."""
    overwrite: bool = False
    """Replace the folder if it is there and holds HDF5 files only."""

    def run(self) -> int:
        """Split and print the files; return the exit code."""
        for name, count in split_episodes(self).items():
            print(f"{self.out / name}: {count} episodes")
        return 0


@dataclass(frozen=True)
class Wanted:
    """Which episodes of a data set are kept. None keeps all."""

    success: Literal["true", "false", "unknown"] | None = None
    """Keep episodes that succeeded, failed, or were not judged."""
    task: str | None = None
    """Keep episodes of this task."""
    instruction: str | None = None
    """Keep episodes whose instruction has this text in it."""
    mask: str | None = None
    """Keep the episodes of this mask, such as train or valid."""
    min_ticks: int | None = None
    """Keep episodes of at least this many ticks."""
    max_ticks: int | None = None
    """Keep episodes of at most this many ticks."""

    def keeps(self, episode: EpisodeReader) -> bool:
        """Return whether an episode is wanted."""
        judged = {True: "true", False: "false", None: "unknown"}[episode.success]
        return (
            self.success in (None, judged)
            and self.task in (None, episode.task)
            and (self.instruction or "") in episode.instruction
            and (self.mask is None or self.mask in episode.masks)
            and (self.min_ticks or 0) <= episode.num_samples
            and (self.max_ticks is None or episode.num_samples <= self.max_ticks)
        )


@dataclass(frozen=True)
class DataFilterCommand:
    """Write those episodes of a data set that are wanted to one HDF5 file.

    For example:
      ttm data filter demos --success true --out good.hdf5
      ttm data filter demos --instruction drawer --min-ticks 10 --out drawers.hdf5
    """

    writes_file: ClassVar[bool] = True
    source: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""
    out: Path
    """The HDF5 file to write."""
    wanted: Annotated[Wanted, arg(name="")] = field(default_factory=Wanted)
    overwrite: bool = False
    """Replace the file if it is there."""

    def run(self) -> int:
        """Filter and print how many episodes were kept; return the exit code."""
        kept, total = merge_episodes([self.source], self.out, self.wanted, overwrite=self.overwrite)
        print(f"{self.out}: {kept} of {total} episodes")
        return 0


def merge_episodes(
    sources: Sequence[str | Path],
    out: Path,
    wanted: Wanted | None = None,
    *,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Write the wanted episodes of all sources to the one file `out`; return their number, and that of all.

    Raises `UserError` if none is wanted, or if the data sets differ in what is observed or commanded.
    """
    wanted = wanted or Wanted()
    require_at_least(1, options(wanted, "min_ticks", "max_ticks"))
    if out.suffix not in SUFFIXES:
        raise UserError(f"{out}: one file is written; give a name that ends in .hdf5")
    for source in sources:
        require_apart(source, out)
    opened = [open_dataset(source) for source in sources]
    for other in opened[1:]:
        _require_same(opened[0], other)
    episodes = [episode for dataset in opened for episode in dataset]
    kept = [episode for episode in episodes if wanted.keeps(episode)]
    if not kept:
        raise UserError(
            f"none of the {len(episodes)} episodes is as asked for; see `ttm data show {sources[0]}`"
        )
    write_whole(out, lambda path: write_demos(path, kept), contents=(), overwrite=overwrite)
    return len(kept), len(episodes)


def split_episodes(options: DataSplitCommand) -> dict[str, int]:
    """Write the episodes to two files in a folder; return file name -> episodes.

    Those that are held out are chosen at random by the seed.
    """
    if not 0 < options.valid < 1:
        raise UserError(f"--valid is {options.valid}; give a portion between 0 and 1, such as 0.1")
    require_apart(options.source, options.out)
    episodes = open_dataset(options.source)
    copies = same_episodes(episodes)
    alone = set(range(len(episodes))).difference(*copies)
    groups = sorted([*copies, *([index] for index in alone)])
    if len(groups) < 2:
        raise UserError("the episodes are all copies of one; nothing can be held out of them")
    order = np.random.default_rng(options.seed).permutation(len(groups)).tolist()
    count = min(max(round(options.valid * len(groups)), 1), len(groups) - 1)
    held_out = {episodes[index] for i in order[:count] for index in groups[i]}
    parts = {
        "train": [episode for episode in episodes if episode not in held_out],
        "valid": [episode for episode in episodes if episode in held_out],
    }

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, members in parts.items():
            masks = {each: (each.masks - {"train", "valid"}) | {name} for each in members}
            write_demos(folder / f"{name}.hdf5", members, masks)

    write_whole(
        options.out,
        write,
        contents=[f"*{suffix}" for suffix in SUFFIXES],
        overwrite=options.overwrite,
    )
    return {f"{name}.hdf5": len(members) for name, members in parts.items()}


def _require_same(ours: EpisodeDataset, theirs: EpisodeDataset) -> None:
    carries, others_carry = has_own_spec(ours), has_own_spec(theirs)
    if carries != others_carry:
        bare = theirs if carries else ours
        raise UserError(
            f"{bare.source} carries no spec, others do; first: ttm data convert {bare.source} TO"
        )
    other_spec = theirs.spec
    if not carries and other_spec.action_size == ours.spec.action_size:
        # What is binary is inferred from the values, and may differ between parts of one data set.
        other_spec = replace(other_spec, actions=ours.spec.actions)
    ours.spec.require_compatible(other_spec, ours=ours.source, theirs=theirs.source)


def write_demos(
    path: Path,
    episodes: Sequence[EpisodeReader],
    masks: Mapping[EpisodeReader, Iterable[str]] | None = None,
) -> None:
    """Copy the demos of `episodes` to the new file `path`, as demo_0, demo_1, … in their order.

    Every member and attribute of a demo is copied. Of the files' attributes those are kept that all
    files share. masks: the filter keys of each episode; None keeps those that it has.
    """
    attributes = shared_attributes({episode.path for episode in episodes})
    members: dict[str, list[bytes]] = defaultdict(list)
    with new_file(path) as target:
        data = target.create_group("data")
        for number, episode in enumerate(track(episodes, "copying")):
            name = f"demo_{number}"
            with open_file(episode.path) as source:
                size = most_bytes(source["data"][episode.name])
            reserve(target, size)  # while no source is open, which would be blamed for a full disk
            with open_file(episode.path) as source:
                source.copy(source["data"][episode.name], data, name)
            if episode.instruction and "language_instruction" not in data[name].attrs:
                data[name].attrs["language_instruction"] = episode.instruction
            for key in sorted(episode.masks if masks is None else masks[episode]):
                members[key].append(name.encode())
        data.attrs.update({**attributes, "total": sum(each.num_samples for each in episodes)})
        for key, names in members.items():
            target.create_dataset(f"mask/{key}", data=np.array(names))


def most_bytes(demo: h5py.Group) -> int:
    """Return how much space a copy of a demo takes at most."""
    file = demo.file
    if len(file["data"]) == 1:
        return int(file.id.get_filesize())
    sizes = [0]

    def add(name: str, member: Any) -> None:
        if not isinstance(member, h5py.Dataset):
            return
        sizes.append(member.id.get_storage_size() + ROOM_A_MEMBER)
        if h5py.check_vlen_dtype(member.dtype) is not None:  # values lie elsewhere in the file
            sizes.extend(row.nbytes + ROOM_A_ROW for row in member[()].ravel())

    demo.visititems(add)
    return min(sum(sizes), int(file.id.get_filesize()))


def shared_attributes(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the attributes of `data` that all the files have alike; of `env_args`, what is alike in them.

    Raises `UserError` if they differ in one of `MEANING`.
    """
    found: dict[Path, dict[str, Any]] = {}
    for path in sorted(paths):
        with open_file(path) as file:
            found[path] = dict(file["data"].attrs)
    (first, shared), *others = found.items()
    for path, attributes in others:
        for name in MEANING:
            if decoded(shared.get(name)) != decoded(attributes.get(name)):
                raise UserError(
                    f"{first} and {path} differ in the attribute '{name}'; keep them apart, or convert one"
                )
        known = _alike(json_object(shared.get("env_args")), json_object(attributes.get("env_args")))
        both = {key: value for key, value in shared.items() if key in attributes}
        shared = {key: each for key, each in both.items() if np.array_equal(each, attributes[key])}
        if "env_args" not in shared and known:
            shared["env_args"] = json.dumps(known)
    return {name: value for name, value in shared.items() if name not in OWN}


def _alike(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in mine.items():
        if isinstance(value, dict) and isinstance(other.get(key), dict):
            found[key] = _alike(value, other[key])
        elif key in other and value == other[key]:
            found[key] = value
    return found
