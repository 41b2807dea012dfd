"""Members of HDF5 files and files of folders, found without following links that lead out of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py

from ttm.datasets.access.unreadable import no_file
from ttm.policy.errors import UserError

MOST_LINKS = 16
"""So many soft links in a row are taken for a loop."""

ALLOW = "--allow-external"
"""The option that allows data from outside of the named files."""


class OutsideLink(UserError):
    """A link that leads to another file."""


def find_member(group: Any, path: str, *, allow_external: bool = False) -> Any | None:
    """Return the group or dataset at `path` in an open group, or None if it is not there.

    Soft links are followed within the file. Raises `OutsideLink` for external links, which could
    show any file of this machine, unless they are allowed.
    """
    if allow_external:
        return group.get(path)
    return _find(group, path, MOST_LINKS)


def _find(group: Any, path: str, links_left: int) -> Any | None:
    current = group.file if path.startswith("/") else group
    for name in filter(lambda part: part not in ("", "."), path.split("/")):
        current = _child(current, name, links_left)
        if current is None:
            return None
    return current


def _child(group: Any, name: str, links_left: int) -> Any | None:
    """Return one member of a group. HDF5 is not asked for it before its kind of link is known."""
    key = name.encode("utf-8", "surrogateescape")
    if not isinstance(group, h5py.Group) or not group.id.links.exists(key):
        return None
    kind = group.id.links.get_info(key).type
    if kind == h5py.h5l.TYPE_HARD:
        return group[name]
    target = group.id.links.get_val(key)
    if kind == h5py.h5l.TYPE_SOFT and links_left:
        return _find(group, target.decode("utf-8", "surrogateescape"), links_left - 1)
    if kind == h5py.h5l.TYPE_SOFT:
        raise UserError(f"{name} is a loop of soft links; remove them")
    other = target[0].decode("utf-8", "replace") if kind == h5py.h5l.TYPE_EXTERNAL else "elsewhere"
    raise OutsideLink(
        f"{name} is an external link to {other}, which is not followed; copy the data into the file "
        f"(h5repack, h5copy), or give {ALLOW} if you trust it"
    )


TRUSTED = f", or give {ALLOW} if you trust it"
"""What else can be done about a link that leads out, where a command has the option."""


def require_inside(items: Iterable[Path], root: Path, *, or_else: str = TRUSTED) -> None:
    """Raise `UserError` for a path that leads out of the folder `root`, by a symbolic link or by its name.

    or_else: the end of the message, beside copying what lies outside.
    """
    real = os.path.realpath(root)
    for item in items:
        target = os.path.realpath(item)
        if os.path.commonpath([real, target]) != real:
            raise UserError(
                f"{item} leads to {target}, outside of {root}, and is not followed; copy that place into "
                f"it{or_else}"
            )


def require_no_way_out(root: Path, *, or_else: str = TRUSTED) -> None:
    """Raise `UserError` if a folder has a symbolic link that leads out of it, or what is no plain file.

    or_else: as for `require_inside`.
    """
    for here, folders, names in os.walk(root):
        items = [Path(here, name) for name in (*folders, *names)]
        require_inside([item for item in items if item.is_symlink()], root, or_else=or_else)
        for item in items:
            if not (item.is_file() or item.is_dir()):
                raise UserError(f"{item} is {no_file(item)}; take it out of the data set")
