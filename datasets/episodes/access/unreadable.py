"""Why a path cannot be opened as an HDF5 file, in words, and what to do about it."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ttm.policy.errors import printable

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

KINDS: Mapping[bytes, tuple[str, str]] = MappingProxyType(
    {
        b"version https://git-lfs": ("a Git LFS pointer", "fetch the file with `git lfs pull`"),
        b"PK\x03\x04": ("a zip archive", "unpack it"),
        b"\x1f\x8b": ("a gzip archive", "unpack it"),
        b"<!DOCTYPE": ("a web page", "download the file itself"),
        b"<html": ("a web page", "download the file itself"),
        b"CDF": ("a NetCDF file", "give a file in robomimic's layout"),
        b"SQLite format 3": ("an SQLite database", "see `ttm data bags --help` for rosbag2"),
        b"\x89MCAP": ("an MCAP file", "see `ttm data bags --help` for rosbag2"),
        b"MATLAB 5.0": ("a MATLAB file", "write the episodes with EpisodeWriter"),
    }
)
"""First bytes -> what such a file is, and what to do about it."""

BEING_WRITTEN = (
    "it is being written by another program, or its writer was killed",
    "wait until it is complete, or run `h5clear -s` on it if no program writes",
)
SPECIAL = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def no_file(path: Path) -> str | None:
    """Return why `path` is no plain file, or None if it is one. It is not opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a symbolic link to a file that is not there" if path.is_symlink() else "not there"
    except PermissionError:
        return "in a folder that you may not read"
    except OSError as error:  # a loop of symbolic links, or a name that is too long
        return f"no place that can be read ({error.strerror})"
    if stat.S_ISDIR(mode):
        return "a folder; use open_dataset for it"
    return next((f"{what}, not a file" for is_it, what in SPECIAL if is_it(mode)), None)


def why_unreadable(path: Path, error: Exception) -> tuple[str, str]:
    """Return why HDF5 refused to open the plain file `path`, and what to do."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except PermissionError:
        return "you may not read it", f"run `chmod u+r {path}`, or ask its owner"
    except OSError as reason:
        return f"it cannot be read ({reason.strerror})", "check the disk, or copy the file again"
    if not head:
        return "it is empty (0 bytes)", "copy it again, or record it again"
    for magic, (what, remedy) in KINDS.items():
        if head.startswith(magic):
            return f"it is {what}, not an HDF5 file", remedy
    text = str(error)
    if any(word in text for word in ("unable to lock file", "already open for")):
        return BEING_WRITTEN
    if "truncated file" in text:
        return "it is cut short: HDF5 expects more bytes", "copy it again, or record it again"
    if not head.startswith(HDF5_MAGIC):
        return "it is not an HDF5 file", "give a file in robomimic's layout, or convert it"
    return f"HDF5 cannot open it ({one_line(text)})", "copy it again, or record it again"


def one_line(text: object) -> str:
    """Return an error's text in one line of printable characters, cut off after 200."""
    return printable(text, 200)
