"""Faults of a file of episodes as a whole: no demos, another spec, masks, unfinished recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ttm.datasets.access.leftovers import is_written_in
from ttm.datasets.check.fault import Fault
from ttm.datasets.episode_dataset import spec_difference
from ttm.datasets.episode_file import mask_problems, read_masks
from ttm.policy.files import PARTIAL_SUFFIX
from ttm.policy.spec import PolicySpec


def file_faults(
    file: Any,
    path: Path,
    names: Sequence[str],
    spec: PolicySpec | None,
    specs: dict[Path, PolicySpec],
    *,
    allow_external: bool = False,
) -> Iterator[Fault]:
    """Find the faults of an open file, apart from those of its demos.

    names: those of its demos.
    spec: the data set's, or None if there is none.
    specs: those that files of the data set carry.
    """
    if not names:
        what = "it has no demo (data/demo_0, …)"
        yield Fault(path, None, None, what, "move it elsewhere, or give a robomimic file")
    if spec is None:
        what = "no spec can be inferred from any file"
        yield Fault(path, None, None, what, "repair the files named here, or give --spec")
    yield from _spec_faults(file, path, spec, specs)
    masks = read_masks(file, allow_external=allow_external)
    for what, remedy in mask_problems(masks, names):
        yield Fault(path, None, None, what, remedy)
    for key, members in masks.items():
        for name in sorted(set(members) - set(names)):
            what = f"mask/{key} names it, but it is not there"
            yield Fault(path, name, None, what, f"take it out of mask/{key}")
    for name in sorted(set(masks.get("train", [])) & set(masks.get("valid", []))):
        what = "it is in mask/train and in mask/valid"
        remedy = "take it out of one: the validation error would be too low"
        yield Fault(path, name, None, what, remedy, is_warning=True)


def leftovers(files: Sequence[Path]) -> Iterator[Fault]:
    """Find recordings that were never finished, in the folders of the files."""
    for folder in sorted({file.parent for file in files}):
        partials = sorted(folder.glob(f".*{PARTIAL_SUFFIX}"))
        if not partials:
            continue
        if is_written_in(folder):
            what = "it is being written, or was left by a program that was killed"
            remedy = "check again when nobody writes in this folder; on a drive without locks, delete it then"
        else:
            what = "it was never finished: the program that wrote it was killed"
            remedy = "delete it, or start a recorder, which deletes its own"
        for partial in partials:
            yield Fault(partial, None, None, what, remedy, is_warning=True)


def _spec_faults(
    file: Any, path: Path, spec: PolicySpec | None, specs: dict[Path, PolicySpec]
) -> Iterator[Fault]:
    if path in specs and spec is not None:
        difference = spec_difference(spec, specs[path])
        if difference:
            what = f"another spec: {difference}"
            yield Fault(path, None, None, what, "keep the two kinds in different folders")
    elif specs:
        what = "it carries no ttm_spec, others do"
        yield Fault(
            path, None, None, what, "keep it in another folder, or write the others' into it"
        )
