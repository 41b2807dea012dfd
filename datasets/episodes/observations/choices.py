"""What the user chooses of a data set, beside what is inferred from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NONE = "none"
"""The name that stands for no camera, or no proprioception."""


@dataclass(frozen=True)
class Choices:
    """Options of all commands that read episodes."""

    cameras: tuple[str, ...] = ()
    """Use only these cameras; `none` for none. Default: all (with --init: the checkpoint's)."""
    proprioception: tuple[str, ...] = ()
    """Use only these vectors of `obs`, which may be such that are left out by default; `none` for
    none. Default: all measurements of the robot (with --init: the checkpoint's)."""
    spec: Path | None = None
    """A YAML file that adds to or replaces what the data say: rate, units, parts of the action,
    orientation of cameras. `ttm data show DATA --spec FILE` writes one to start from."""
    allow_external: bool = False
    """Read also what lies outside of the named files and folders: external links, external storage,
    virtual datasets, symbolic links that lead out of the folder."""

    @property
    def changes_spec(self) -> bool:
        """Whether anything is chosen that changes the spec of the files."""
        return bool(self.cameras or self.proprioception or self.spec)
