"""The table of formats. A new format is one new file and one line in `FORMATS`.

Nothing here imports a format's file, so that optional packages are needed only by whom they serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.layouts.table import LAYOUTS
from ttm.policy.checks import require_choice
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class Format:
    """One entry of the table."""

    description: str
    layouts: tuple[str, ...] = ()
    """The layouts that are read as this format, by their keys in `LAYOUTS`."""
    reader: str | None = None
    """The module that has `read_source(path, options) -> Source`; None if the format is only written."""
    read_choices: tuple[str, ...] = ()
    """The fields of `ConvertOptions` that reading heeds."""
    writer: str | None = None
    """The module that has `write(source, target, options)`; None if the format is only read."""
    write_choices: tuple[str, ...] = ()
    """The fields of `ConvertOptions` that writing heeds."""
    packages: tuple[str, ...] = ()
    """Packages of the extra `[convert]` that it needs, by the names that are imported."""
    is_file: bool = False
    """Whether it is written as one file rather than as a folder."""
    contents: tuple[str, ...] = ()
    """Glob patterns of all that a folder of this format has at its top. `--overwrite` replaces no
    folder that holds anything else."""


_CONVERT = "ttm.datasets.convert"
_OUR_FILES = ("ttm_spec.json", "ttm_episodes.jsonl")
_LEROBOT = ("data", "meta", "videos", "images", "README.md", ".gitattributes", ".cache")


def _lerobot(description: str, layout: str, writer: str) -> Format:
    """Return one version of LeRobot's format; one reader serves all."""
    return Format(
        description,
        layouts=(layout,),
        reader=f"{_CONVERT}.lerobot.read",
        read_choices=("robot",),
        writer=f"{_CONVERT}.lerobot.{writer}",
        write_choices=("video_codec",),
        packages=("pyarrow", "av"),
        contents=_LEROBOT,
    )


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "ttm": Format(
            "ours: a folder with one HDF5 file for each episode, or one file *.hdf5 with all",
            layouts=("ours",),
            reader=f"{_CONVERT}.hdf5",
            read_choices=("choices",),
            writer=f"{_CONVERT}.hdf5",
            write_choices=("jpeg_quality",),
            contents=("episode_*.hdf5",),
        ),
        "robomimic": Format(
            "one HDF5 file as robomimic, robosuite, MimicGen, LIBERO and RoboCasa have it",
            layouts=("robomimic", "mimicgen", "libero", "robocasa", "isaaclab"),
            reader=f"{_CONVERT}.hdf5",
            read_choices=("choices",),
            writer=f"{_CONVERT}.robomimic",
            is_file=True,
        ),
        "lerobot": _lerobot("LeRobot's data set, version 3.0", "lerobot_v3", "v30"),
        "lerobot-v2.1": _lerobot("LeRobot's data set, version 2.0 or 2.1", "lerobot_v2", "v21"),
        "aloha": Format(
            "a folder of ALOHA's and ACT's HDF5 files, one for each episode",
            layouts=("aloha",),
            reader=f"{_CONVERT}.aloha",
            read_choices=("colour_order", "rate_hz", "robot"),
            writer=f"{_CONVERT}.aloha",
            write_choices=("colour_order", "jpeg_quality"),
            contents=("episode_*.hdf5",),
        ),
        "diffusion-policy": Format(
            "a replay buffer of diffusion_policy in zarr",
            layouts=("diffusion_policy",),
            reader=f"{_CONVERT}.diffusion_policy",
            read_choices=("rate_hz", "robot"),
            writer=f"{_CONVERT}.diffusion_policy",
            packages=("zarr",),
            contents=("data", "meta", ".z*", "zarr.json", *_OUR_FILES),
        ),
    }
)
"""Name -> format. `recognise.py` says which one a path is."""


def reader_of(name: str) -> Any:
    """Return the module that reads a format. Raises `UserError` if a package is missing."""
    return _load(name, FORMATS[name].reader)


def writer_of(name: str) -> Any:
    """Return the module that writes a format. Raises `UserError` if there is none, or no package."""
    if FORMATS[name].writer is None:
        raise UserError(f"{name} is read but not written; take one of {', '.join(writable())}")
    return _load(name, FORMATS[name].writer)


def require_format(name: str, source: Path, target: Path) -> None:
    """Raise `UserError` if no format has this name; for a layout that is not written, with the way there."""
    layout = LAYOUTS.get(name)
    if name not in FORMATS and layout is not None and layout.way_there:
        raise UserError(layout.not_written(source, target))
    require_choice("--to", name, FORMATS)


def writable() -> list[str]:
    """Return the names of the formats that can be written."""
    return [name for name, entry in FORMATS.items() if entry.writer]


def refuse_unheeded(source: str, target: str, options: ConvertOptions) -> None:
    """Raise `UserError` if a choice was made that neither format heeds."""
    heeded = {
        "instruction",
        "allow_external",
        *FORMATS[source].read_choices,
        *FORMATS[target].write_choices,
    }
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    choices = given.pop("choices")
    if "choices" not in FORMATS[source].read_choices:
        given |= {f.name: getattr(choices, f.name) or None for f in fields(choices)}
    for name, value in given.items():
        if value is not None and name not in heeded:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} has no effect from {source} to {target}; leave it out")


def _load(name: str, module: str | None) -> Any:
    assert module is not None
    missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
    if missing:
        raise UserError(
            f"{name} needs {' and '.join(missing)}, which is not installed; "
            'run: pip install "ttm-policy-stack[convert]"'
        )
    return import_module(module)
