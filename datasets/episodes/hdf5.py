"""HDF5 files, as strangers and full disks leave them."""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NoReturn

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.layout import RECORDED
from ttm.policy.errors import UserError, printable
from ttm.policy.files import PARTIAL_SUFFIX

KEPT_BYTES = 2**29
"""Unpacked rows of so many bytes are kept by each process; larger chunks are unpacked for each read."""

_kept: Mapping[Any, npt.NDArray[Any]] = {}
"""Rows that were read last, the newest first. It is replaced and never changed, so it needs no lock."""


def read_rows(dataset: Any, start: int, stop: int) -> npt.NDArray[Any]:
    """Return `dataset[start:stop]` of an open dataset.

    Rows that are unpacked along with these, of the same chunks, are kept for the next reads, also after
    the file was closed.
    """
    global _kept
    stop = min(stop, len(dataset))
    first, last = start, stop
    packed = dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters()
    if packed and dataset.dtype.kind != "O" and start < stop:
        rows = dataset.chunks[0]
        first, last = start // rows * rows, min(-(-stop // rows) * rows, len(dataset))
    row_bytes = dataset.nbytes // max(len(dataset), 1)
    if last - first <= stop - start or (last - first) * row_bytes > KEPT_BYTES:
        return _values(dataset, start, stop)
    try:
        file = os.stat(dataset.file.filename)
    except OSError:  # a file that has been deleted or renamed meanwhile
        return _values(dataset, start, stop)
    state = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    key = (state, dataset.name, first, last)
    rows = _kept[key] if key in _kept else _values(dataset, first, last)
    room, kept = KEPT_BYTES - rows.nbytes, {key: rows}
    for other, values in _kept.items():
        if other != key and (room := room - values.nbytes) >= 0:
            kept[other] = values
    _kept = kept
    return np.array(rows[start - first : stop - first])


def _values(dataset: Any, start: int, stop: int) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = dataset[start:stop]
    return values


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
"""First bytes -> what such a file is, and its remedy."""

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
    """Return why HDF5 refused to open the plain file `path`, and the remedy."""
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
        what = "it is being written by another program, or its writer was killed"
        return what, "wait until it is complete, or run `h5clear -s` on it if no program writes"
    if "truncated file" in text:
        return "it is cut short: HDF5 expects more bytes", "copy it again, or record it again"
    if not head.startswith(HDF5_MAGIC):
        return "it is not an HDF5 file", "give a file in robomimic's layout, or convert it"
    return f"HDF5 cannot open it ({one_line(text)})", "copy it again, or record it again"


def one_line(text: object) -> str:
    """Return a text in one line of at most 200 printable characters."""
    return printable(text, 200)


MOST_LINKS = 16  # so many soft links in a row are taken for a loop

TRUSTED = ", or give --allow-external if you trust it"
"""What else can be done about a link that leads out, where a command has the option."""


class OutsideLink(UserError):
    """A link that leads to another file."""


class Trusted:
    """Marks a file that was opened with --allow-external, and the members found in it.

    Only of these, `find_member` follows links to other files, and `storage_fault` allows values there.
    """


class TrustedFile(Trusted, h5py.File):  # type: ignore[misc]
    """A trusted file."""


class TrustedGroup(Trusted, h5py.Group):  # type: ignore[misc]
    """A group in a trusted file."""


class TrustedDataset(Trusted, h5py.Dataset):  # type: ignore[misc]
    """A dataset in a trusted file."""


def find_member(group: Any, path: str) -> Any | None:
    """Return the group or dataset at `path` in an open group, or None if it is not there.

    Soft links are followed within the file. Raises `OutsideLink` for external links, which could show
    any file of this machine, unless the group is `Trusted`.
    """
    if not isinstance(group, Trusted):
        return _find(group, path, MOST_LINKS)
    found = h5py.Group.get(group, path)
    if isinstance(found, h5py.Group):
        return TrustedGroup(found.id)
    return TrustedDataset(found.id) if isinstance(found, h5py.Dataset) else found


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
    if kind == h5py.h5l.TYPE_SOFT:
        if not links_left:
            raise UserError(f"{name} is a loop of soft links; remove them")
        return _find(group, target.decode("utf-8", "surrogateescape"), links_left - 1)
    other = target[0].decode("utf-8", "replace") if kind == h5py.h5l.TYPE_EXTERNAL else "elsewhere"
    raise OutsideLink(
        f"{name} is an external link to {other}, which is not followed; copy the data into the file "
        f"(h5repack, h5copy){TRUSTED}"
    )


def require_inside(items: Iterable[Path], root: Path, *, or_else: str = TRUSTED) -> None:
    """Raise `UserError` for a path that leads out of the folder `root`, by a symbolic link or by its name.

    or_else: the end of the message.
    """
    real = os.path.realpath(root)
    for item in items:
        target = os.path.realpath(item)
        if os.path.commonpath([real, target]) != real:
            raise UserError(
                f"{item} leads to {target}, outside of {root}; copy that place into it{or_else}"
            )


def require_no_way_out(root: Path, *, or_else: str = TRUSTED) -> None:
    """Raise `UserError` if a folder has a symbolic link that leads out of it, or what is no plain file."""
    for here, folders, names in os.walk(root):
        items = [Path(here, name) for name in (*folders, *names)]
        require_inside([item for item in items if item.is_symlink()], root, or_else=or_else)
        for item in items:
            if not (item.is_file() or item.is_dir()):
                raise UserError(f"{item} is {no_file(item)}; take it out of the data set")


MOST_CHUNK_BYTES = 2**30  # a larger chunk would be unpacked as a whole to read one value
MOST_VALUES_BYTES = 4 * 2**30
"""Actions, vectors and timestamps of one episode are read as a whole, and never take so much."""
FILTERS = {32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd"}
"""Names of filters that HDF5 itself does not have; the package `hdf5plugin` brings them."""


def require_readable(file: Any) -> None:
    """Raise `UserError` if anything in an open file leads out of it, or has values that must not be read.

    Members that are not read are judged, too. No value is read.
    """
    links: list[tuple[bytes, int]] = []
    file.id.links.visit(lambda path, link: links.append((path, link.type)), info=True)
    for path, kind in links:
        if kind == h5py.h5l.TYPE_SOFT:
            continue  # what it leads to is judged where it lies
        name = path.decode("utf-8", "surrogateescape")
        stored = find_member(file, name)
        if kind != h5py.h5l.TYPE_HARD or not isinstance(stored, h5py.Dataset):
            continue
        # Frames, which are uint8, are read one by one.
        if fault := storage_fault(stored, whole=stored.dtype != np.uint8):
            raise UserError(f"{one_line(name)}: {fault[0]}; {fault[1]}")


def storage_fault(dataset: Any, *, whole: bool) -> tuple[str, str] | None:
    """Return why the values of a dataset cannot or must not be read, with a remedy; or None.

    No value is read. whole: the dataset is small enough to be read as a whole, unlike frames.
    """
    if fault := outside_fault(dataset):
        return fault
    if missing := _missing_filter(dataset):
        return f"it is compressed by {missing}, which is not installed", (
            "run `h5repack -f GZIP=1` where it is, or install hdf5plugin and import it"
        )
    if whole and dataset.nbytes > MOST_VALUES_BYTES:
        return f"it declares {dataset.nbytes / 2**30:.0f} GiB", "write it in its real size"
    if dataset.chunks is None:
        needed, written = 1, int(dataset.id.get_storage_size() > 0)
    else:
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if chunk_bytes > MOST_CHUNK_BYTES:
            return f"its chunks unpack to {chunk_bytes / 2**30:.1f} GiB each", (
                "rewrite it in small chunks, such as one frame each (h5repack -l)"
            )
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        needed = math.prod(-(-size // chunk) for size, chunk in pairs)
        written = dataset.id.get_num_chunks() if needed else 0
    if not dataset.size or dataset.external or dataset.is_virtual or written >= needed:
        return None
    # The values would be read as zeros that nobody recorded.
    part = "none of its values were" if not written else f"only {written} of {needed} chunks were"
    what = f"it declares shape {dataset.shape}, but {part} written"
    return what, "its writer was stopped; take the rows that were written, or record it again"


def outside_fault(dataset: Any) -> tuple[str, str] | None:
    """Return in which other file the values of a dataset lie, with a remedy; None if it may be read."""
    if isinstance(dataset, Trusted) or not (dataset.external or dataset.is_virtual):
        return None
    outside = "it is a virtual dataset, made of other ones"
    if dataset.external:
        outside = f"its values lie in another file ({dataset.external[0][0]})"
    return f"{outside}, which is not followed", f"copy the data into the file (h5repack){TRUSTED}"


def _missing_filter(dataset: Any) -> str:
    """Return the filter that is not installed and that the values went through; empty if none."""
    properties = dataset.id.get_create_plist()
    for index in range(properties.get_nfilters()):
        code = properties.get_filter(index)[0]
        if h5py.h5z.filter_avail(code) or not dataset.id.get_num_chunks():
            continue
        if not dataset.id.get_chunk_info(0).filter_mask & (1 << index):  # it was not left out
            return FILTERS.get(code, f"filter {code}")
    return ""


HELD_BACK = 2**22  # bytes of an episode that HDF5 has not written yet, at most
ROOM = 2**18  # bytes that HDF5 may take beside the values that are written at a time


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """Open the new file `path` as an `h5py.File` for writing.

    After any error the file is closed without further writes, and is of no use. Raises `OSError` if a
    write fails, also the last one.
    """
    guard = WriteGuard(path)
    file = h5py.File(path, "w")
    try:
        yield file
        file.flush()
        end = file.id.get_filesize()
    except BaseException as error:
        guard.broken = True
        guard.discard(file)
        if isinstance(error, RuntimeError) and "write" in str(error):  # so h5py says it at times
            raise OSError(one_line(error)) from error
        raise
    file.close()
    os.truncate(path, end)  # of what was reserved, the last bit may be left


def reserve(file: Any, num_bytes: int) -> None:
    """Let a file of `new_file` have so many more bytes of the disk, and some for HDF5 beside them.

    HDF5 crashes the process at times if the disk becomes full while it writes. Raises `OSError` if
    there is no space. What is not needed is given back when the file is closed.
    """
    file.flush()
    os.posix_fallocate(file.id.get_vfd_handle(), file.id.get_filesize(), num_bytes + ROOM)


class WriteGuard:
    """Turns failed writes to the file `path` into errors of one line, and lets the file be closed then."""

    def __init__(self, path: Path) -> None:
        self.failed = False  # whether no more can be written, and the file can only be discarded
        self.broken = False  # whether HDF5 has failed to write, and would crash when it goes on
        self._path = path

    def require_space(self, num_bytes: int) -> None:
        """Raise `UserError` if the disk has no space for so many bytes and what HDF5 holds back.

        HDF5 crashes the process at times if the disk becomes full while it writes.
        """
        if shutil.disk_usage(self._path.parent).free < num_bytes + HELD_BACK:
            self._fail(os.strerror(ENOSPC))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise `UserError` if HDF5 cannot write what the `with` block gives it."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.broken = True
            why = re.search("error message = '(.*?)'", str(error))
            self._fail(why[1] if why else one_line(error), error)

    def _fail(self, why: str, error: Exception | None = None) -> NoReturn:
        self.failed = True
        raise UserError(
            f"cannot write {self._path} ({why}); the episode is lost: make space"
        ) from error

    def discard(self, file: Any) -> None:
        """Close the open `h5py.File`, which is to be deleted.

        After a failed write, HDF5 writes to nowhere, because it would otherwise crash the process.
        """
        if not self.broken:
            file.close()
            return
        descriptor = os.open(os.devnull, os.O_RDWR)
        os.dup2(descriptor, file.id.get_vfd_handle())
        os.close(descriptor)
        with suppress(OSError, RuntimeError):  # a flush that failed may keep it from closing
            file.close()


def available_memory_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return how much memory can be allocated without swapping, and without leaving a container's limit.

    Limits are those of the control groups (versions 1 and 2) of this process. Pages of files that the
    kernel can drop count as free. proc, groups: where the kernel tells about processes and control groups.
    """
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        free = [int(fields["MemAvailable"].split()[0]) * 1024]
    except (OSError, KeyError, ValueError):
        free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2]
    lines: list[str] = []
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top, limit, usage, prefix = groups, "memory.max", "memory.current", ""
        if "memory" in controllers.split(","):  # version 1
            top, prefix = groups / "memory", "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif controllers:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # Within a container, the path may be that of the host; the container's own group is the top.
        for group in (top / folder for folder in (inner, *inner.parents)):
            with suppress(OSError, ValueError):  # no such group, or "max" for no limit
                most, used = (int((group / name).read_text()) for name in (limit, usage))
                counts = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                files = (f"{prefix}{kind}_file" for kind in ("active", "inactive"))
                free.append(most - used + sum(int(counts.get(name, 0)) for name in files))
    return max(0, min(free))


# Whoever writes in a folder holds a shared lock on it, from before the partial file is made until it has its
# final name; the kernel releases it with the process. Whoever gets the exclusive lock knows that all partial
# files are left over, and keeps writers waiting meanwhile. Network drives (NFS, SMB) do not show this lock to
# other computers, but that which HDF5 holds on a file; so it is tried, too. Without locks, all files stay.


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Let nobody take the partial files in a folder for left over ones.

    Raises `OSError` if the folder cannot be opened.
    """
    with _opened(folder) as descriptor:
        with suppress(OSError):  # without locks, nobody gets the exclusive one either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def is_written_in(folder: Path) -> bool:
    """Return whether a living process writes in the folder, or nobody can tell."""
    try:
        with _alone(folder) as alone:
            return not alone
    except OSError:
        return True


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete the recordings that killed recorders have left in a folder, and return their paths.

    Nothing is deleted while anybody writes in the folder, or if it cannot be read or changed. Other
    partial files than those of `next_episode_path` stay.
    """
    removed: list[Path] = []
    with suppress(OSError), _alone(folder) as alone:
        for path in _partial_files(folder) if alone else ():
            if RECORDED.fullmatch(path.name):
                path.unlink()
                removed.append(path)
    return removed


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield whether nobody else writes in the folder, and let nobody begin meanwhile."""
    with _opened(folder) as descriptor:
        alone = _gets_lock(descriptor)
        for path in _partial_files(folder) if alone else ():
            with path.open("rb+") as file:  # NFS gives the exclusive lock for writing only
                alone = alone and _gets_lock(file.fileno())
        yield alone


def _partial_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f".*{PARTIAL_SUFFIX}") if path.is_file())


def _gets_lock(descriptor: int) -> bool:
    """Take the exclusive lock, which ends when the file is closed; return whether it was to be had."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
