"""The options of `ttm data trim`, `ttm data label`, `ttm data delete` and `ttm data undo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ttm.policy.checks import options, require_at_least
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class DataTrimCommand:
    """Cut off the start or the end of a recorded episode.

    The ticks from --start up to, but without, --stop are kept, with all that the file has for each
    tick. `ttm data undo` takes it back.

    For example:
      ttm data play my_episodes/episode_00003.hdf5 --out episode.mp4     # shows the ticks' numbers
      ttm data trim my_episodes/episode_00003.hdf5 --start 4 --stop 31
    """

    episode: Annotated[Positional[Path], arg(metavar="EPISODE")]
    """An HDF5 file."""

    start: int = 0
    """The first tick that is kept, counted from 0."""

    stop: int | None = None
    """The first tick after those that are kept. None keeps all to the end."""

    demo: str | None = None
    """Which episode of the file, such as demo_3, if it has several."""

    def run(self) -> int:
        """Trim and print how many ticks are left; return the exit code."""
        require_at_least(0, options(self, "start", "stop"))
        from ttm.datasets.edit.report import trim_and_report

        return trim_and_report(self.episode, self.start, self.stop, self.demo)


@dataclass(frozen=True)
class DataLabelCommand:
    """Write instruction, success or task into recorded episodes.

    What is not given stays as it is. With a new instruction, the sentence embedding of the old one is
    dropped. `ttm data undo` takes it back.

    For example:
      ttm data label my_episodes --instruction "open the top drawer"
      ttm data label my_episodes/episode_00003.hdf5 --success false
    """

    path: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    instruction: str | None = None
    """What the robot was told to do."""

    success: Literal["true", "false", "unknown"] | None = None
    """Whether the robot did it; unknown takes the fact out of the file."""

    task: str | None = None
    """A name for statistics, and for `ttm data filter` and `split`."""

    demo: str | None = None
    """Only this episode, such as demo_3, of one file that has several."""

    def run(self) -> int:
        """Label and print how many episodes there are; return the exit code."""
        if self.demo is not None and not Path(self.path).expanduser().is_file():
            raise UserError(f"--demo {self.demo} is of one file, and {self.path} is none; name it")
        from ttm.datasets.edit.report import label_and_report

        return label_and_report(
            self.path, self.demo, instruction=self.instruction, success=self.success, task=self.task
        )


@dataclass(frozen=True)
class DataDeleteCommand:
    """Delete recorded episodes. Damaged files can be deleted too.

    They are kept in the hidden folder .ttm_undo beside them, from which `ttm data undo` brings them
    back, until `ttm data undo FOLDER --forget` frees their space.

    For example:
      ttm data delete my_episodes/episode_00003.hdf5 my_episodes/episode_00007.hdf5
      ttm data delete week.hdf5 --demo demo_12
    """

    episodes: Annotated[Positional[tuple[Path, ...]], arg(metavar="EPISODE …")]
    """HDF5 files."""

    demo: str | None = None
    """Delete only this episode, such as demo_3, of one file that has several."""

    def run(self) -> int:
        """Delete and print how many episodes went; return the exit code."""
        if not self.episodes:
            raise UserError("no file is named; give the HDF5 files to delete")
        from ttm.datasets.edit.report import delete_and_report

        return delete_and_report(self.episodes, self.demo)


@dataclass(frozen=True)
class DataUndoCommand:
    """Take back the newest of the edits by trim, label and delete, or by the recorder's undo.

    Run it again for the one before. A file that was changed or recorded again since then is not
    overwritten.

    For example:
      ttm data undo my_episodes
      ttm data undo my_episodes --forget       # nothing can be undone afterwards
    """

    place: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """The folder that was edited, or the file."""

    forget: bool = False
    """Do not undo, but delete all earlier versions, which frees their space."""

    def run(self) -> int:
        """Undo and print what; return the exit code."""
        from ttm.datasets.edit.report import undo_and_report

        return undo_and_report(self.place, self.forget)
