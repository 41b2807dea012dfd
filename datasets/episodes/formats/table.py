"""The table of formats. A new format is one new file and one line in `FORMATS`.

Nothing here imports a format's file, so that optional packages are needed only by whom they serve.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tyro.conf import OmitArgPrefixes

from ttm.datasets.description import Choices
from ttm.datasets.episode_file import open_file
from ttm.datasets.files import LAYOUTS, find_files, layout_of_file, layout_of_path
from ttm.policy.errors import UserError, require_choice

ColourOrder = Literal["rgb", "bgr"]
VideoCodec = Literal["av1", "h264", "none"]


@dataclass(frozen=True)
class ConvertOptions:
    """Choices for one conversion. None is the format's own default.

    A choice that neither of the two formats heeds is an error.
    """

    rate_hz: float | None = None
    """The control rate of data that carry none."""
    instruction: str | None = None
    """The instruction of episodes that carry none."""
    colour_order: ColourOrder | None = None
    """The order of the channels that an ordinary image decoder gives for the files."""
    jpeg_quality: int | None = None
    """1 to 95 writes JPEGs; None writes frames as they are, and JPEGs as they were recorded."""
    video_codec: VideoCodec | None = None
    """How LeRobot's frames are written; "none" writes PNGs, which are lossless."""
    robot: str | None = None
    """The name of the robot of data that carry none."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)


@dataclass(frozen=True)
class Format:
    """One entry of the table. Its module has `read_source(path, options) -> Source`."""

    description: str
    layouts: tuple[str, ...]
    """The layouts that are read as this format, by their keys in `LAYOUTS`."""
    reader: str
    """The module with `read_source`, in this package."""
    writer: str
    """"module:function" of `write(source, target, options)`, in this package."""
    read_choices: tuple[str, ...] = ()
    """The fields of `ConvertOptions` that reading heeds."""
    write_choices: tuple[str, ...] = ()
    """The fields of `ConvertOptions` that writing heeds."""
    packages: tuple[str, ...] = ()
    """Packages of the extra `[convert]` that it needs, by the names that are imported."""
    is_file: bool = False
    """Whether it is written as one file rather than as a folder."""
    contents: tuple[str, ...] = ()
    """Glob patterns of all that a folder of this format has at its top. `--overwrite` replaces no
    folder that holds anything else."""


def _lerobot(description: str, layout: str, writer: str) -> Format:
    """Return one version of LeRobot's format; one reader serves all."""
    return Format(
        description,
        (layout,),
        "lerobot_read",
        f"lerobot_write:{writer}",
        read_choices=("robot",),
        write_choices=("video_codec",),
        packages=("pyarrow", "av"),
        contents=("data", "meta", "videos", "images", "README.md", ".gitattributes", ".cache"),
    )


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "ttm": Format(
            "ours: a folder with one HDF5 file for each episode, or one file *.hdf5 with all",
            ("ours",),
            "hdf5",
            "hdf5:write",
            read_choices=("choices",),
            write_choices=("jpeg_quality",),
            contents=("episode_*.hdf5",),
        ),
        "robomimic": Format(
            "one HDF5 file as robomimic, robosuite, MimicGen, LIBERO and RoboCasa have it",
            ("robomimic", "mimicgen", "libero", "robocasa", "isaaclab"),
            "hdf5",
            "hdf5:write_robomimic",
            read_choices=("choices",),
            is_file=True,
        ),
        "lerobot": _lerobot("LeRobot's data set, version 3.0", "lerobot_v3", "write_v30"),
        "lerobot-v2.1": _lerobot(
            "LeRobot's data set, version 2.0 or 2.1", "lerobot_v2", "write_v21"
        ),
        "aloha": Format(
            "a folder of ALOHA's and ACT's HDF5 files, one for each episode",
            ("aloha",),
            "aloha",
            "aloha:write",
            read_choices=("colour_order", "rate_hz", "robot"),
            write_choices=("colour_order", "jpeg_quality"),
            contents=("episode_*.hdf5",),
        ),
        "diffusion-policy": Format(
            "a replay buffer of diffusion_policy in zarr",
            ("diffusion_policy",),
            "diffusion_policy",
            "diffusion_policy:write",
            read_choices=("rate_hz", "robot"),
            packages=("zarr",),
            contents=("data", "meta", ".z*", "zarr.json", "ttm_spec.json", "ttm_episodes.jsonl"),
        ),
    }
)
"""Name -> format. `recognise` says which one a path is."""


def load(name: str, function: str) -> Any:
    """Return a function of a format, "module:function". Raises `UserError` if a package is missing."""
    missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
    if missing:
        what = f"{name} needs {' and '.join(missing)}, which is not installed"
        raise UserError(f'{what}; run: pip install "ttm-policy-stack[convert]"')
    module, _, attribute = function.partition(":")
    return getattr(import_module(f"ttm.datasets.formats.{module}"), attribute)


def require_format(name: str, source: Path, target: Path) -> None:
    """Raise `UserError` if no format has this name; for a layout that is not written, with the way there."""
    layout = LAYOUTS.get(name)
    if name not in FORMATS and layout is not None and layout.way_there:
        step = layout.way_there.format(path=source, out=target.with_suffix(""))
        raise UserError(f"`ttm data convert` does not write {layout.name}; {step}")
    require_choice("--to", name, FORMATS)


def refuse_unheeded(source: str, target: str, options: ConvertOptions) -> None:
    """Raise `UserError` if a choice was made that neither format heeds."""
    heeded = {"instruction", "allow_external"}
    heeded |= {*FORMATS[source].read_choices, *FORMATS[target].write_choices}
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    choices = given.pop("choices")
    if "choices" not in FORMATS[source].read_choices:
        given |= {f.name: getattr(choices, f.name) or None for f in fields(choices)}
    for name, value in given.items():
        if value is not None and name not in heeded:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} has no effect from {source} to {target}; leave it out")


def recognise(path: Path, *, allow_external: bool = False) -> str:
    """Return the name of the format in `FORMATS` that a file or folder has.

    Raises `UserError` for other layouts, with the next command to run if it is known.
    """
    layout = layout_of_path(path) if os.path.exists(path) else None
    if layout is None:
        first = find_files(path, allow_external=allow_external)[0]
        with open_file(first, allow_external=allow_external) as file:
            layout = layout_of_file(file)
            members = ", ".join(sorted(file)) or "nothing"
        if layout is None:
            what = f"{first} has {members} at its top, which is none of the known layouts"
            raise UserError(f"{what}; they are listed in datasets/README.md")
    for name, entry in FORMATS.items():
        if any(LAYOUTS[key] is layout for key in entry.layouts):
            return name
    raise UserError(layout.refusal(path))
