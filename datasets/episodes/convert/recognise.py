"""Which format a file or folder has."""

from __future__ import annotations

import os
from pathlib import Path

from ttm.datasets.convert.formats import FORMATS
from ttm.datasets.episode_file import open_file
from ttm.datasets.layouts.find_files import find_files
from ttm.datasets.layouts.recognition import layout_of_file, layout_of_path
from ttm.datasets.layouts.table import LAYOUTS, Layout
from ttm.policy.errors import UserError


def recognise(path: Path, *, allow_external: bool = False) -> str:
    """Return the name of the format in `FORMATS`.

    Raises `UserError` for layouts that are known but not converted, with the next command to run,
    and for a path that has nothing of any known layout.
    """
    layout = layout_of_path(path) if os.path.exists(path) else None
    if layout is None:
        layout = _layout_of_files(path, allow_external)
    key = next(key for key, known in LAYOUTS.items() if known is layout)
    for name, entry in FORMATS.items():
        if key in entry.layouts:
            return name
    raise UserError(layout.refusal(path))


def _layout_of_files(path: Path, allow_external: bool) -> Layout:
    first = find_files(path, allow_external=allow_external)[0]
    with open_file(first) as file:
        layout = layout_of_file(file, allow_external=allow_external)
        members = ", ".join(sorted(file)) or "nothing"
    if layout is None:
        raise UserError(
            f"{first} has {members} at its top, which is none of the known layouts; they are listed "
            "in datasets/README.md"
        )
    return layout
