"""The HDF5 files that a path means: a file, a folder of files, or a glob."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ttm.datasets.access.links import require_inside
from ttm.datasets.access.unreadable import no_file, one_line
from ttm.datasets.layout import SUFFIXES, natural_key
from ttm.datasets.layouts.recognition import layout_of_path
from ttm.policy.errors import UserError

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a terminal may take for a command."""


def find_files(path: str | Path, *, allow_external: bool = False) -> list[Path]:
    """Return the HDF5 files that a file, folder or glob means, demo_2 before demo_10.

    Hidden files are left out, because episodes in progress are such. Raises `UserError` if there
    is no file, if a symbolic link leads out of the folder and this is not allowed, or if the data
    are in a layout that is not HDF5.
    """
    place = Path(path).expanduser()
    _require_printable(place)
    kind = _kind(place)
    if kind == "file":
        return [_known(place)]
    root = place
    if kind == "folder":
        found = list(_below(place, allow_external))
    elif glob.has_magic(str(place)):
        found = [Path(item) for item in glob.glob(str(place), recursive=True)]
        root = _fixed_part(place)
    else:
        raise UserError(_no_such_place(path, place))
    files = [item for item in found if not item.name.startswith(".") and not item.is_dir()]
    if not files:
        _refuse_other_layout(place)
        what = "folder has no *.hdf5 or *.h5 in it" if kind == "folder" else "glob matches no file"
        raise UserError(
            f"{path}: this {what}; record episodes there with `ttm collect`, or check the name"
        )
    if not allow_external:
        require_inside(files, root)
    return sorted(files, key=natural_key)


def _kind(place: Path) -> str:
    try:
        return "folder" if place.is_dir() else "file" if place.is_file() else "other"
    except OSError:  # such as a name that is too long
        return "other"


def _known(file: Path) -> Path:
    if file.suffix not in SUFFIXES:
        _refuse_other_layout(file)
    return file


def _refuse_other_layout(place: Path) -> None:
    layout = layout_of_path(place) if os.path.exists(place) else None
    if layout is not None:
        raise UserError(layout.refusal(place))


def _no_such_place(path: str | Path, place: Path) -> str:
    what = no_file(place)
    if what is None or what == "not there":
        return f"{path} does not exist; give an HDF5 file, a folder of them, or a glob in quotes"
    return f"{path} is {what}; give an HDF5 file, a folder of them, or a glob in quotes"


def _below(folder: Path, allow_external: bool) -> Iterator[Path]:
    """Yield the files with a suffix of HDF5 in a folder and all folders in it.

    A folder that is a symbolic link is entered if it leads to a place within `folder`, or if this
    is allowed; otherwise it is refused, because its episodes would be missing without a word.
    """
    seen = set()
    for here, folders, names in os.walk(folder, followlinks=True, onerror=_refuse_unreadable):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(set(folders) - set(hidden))
        if not allow_external:
            links = [Path(here, name) for name in folders if Path(here, name).is_symlink()]
            require_inside(links, folder)
        for name in names:
            _require_printable(Path(here, name))
            if Path(name).suffix in SUFFIXES:
                yield Path(here, name)


def _refuse_unreadable(error: OSError) -> None:
    raise UserError(
        f"{error.filename}: the folder cannot be read ({error.strerror}); change its permissions, "
        "or name the files that you may read"
    )


def _fixed_part(place: Path) -> Path:
    """Return the folder in which a glob looks: what stands before the first wildcard."""
    fixed = []
    for part in place.parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _require_printable(place: Path) -> None:
    name = str(place)
    if name != name.encode("utf-8", "replace").decode() or CONTROL.search(name):
        raise UserError(
            f"{one_line(place)}: the name is not UTF-8 or has control characters, and cannot be printed; "
            "rename it"
        )
