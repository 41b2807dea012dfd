"""Results of a study on disk, one file for each core.

Several commands, at any time, can so fill one table.

The fields of `StudySettings`, `CoreResult` and `ActingResult`, their names and their order are the
format of these files; a change would make the files unreadable that users already have.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError


@dataclass(frozen=True)
class StudySettings:
    """What results must have in common to be compared."""

    level: str
    demonstrations: int
    steps: int
    batch_ticks: int
    learning_rate: float
    width: int
    seed: int
    episodes: int
    actions: tuple[str, ...]
    """How the policy acts: "best", "drawn" or both."""
    minigrid: str
    """Version of the package."""

    @property
    def folder(self) -> str:
        """A folder name that no other settings have."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:8]
        return f"{self.level}-{digest}"


@dataclass(frozen=True)
class ActingResult:
    """The results of episodes in which a policy acted in one way, in the order of seeds."""

    success: list[bool]
    lengths: list[int]
    """Number of ticks of each episode."""
    seconds: float
    """Duration of all episodes."""

    @property
    def rate(self) -> float:
        """The portion of the episodes that succeeded."""
        return sum(self.success) / len(self.success)


@dataclass(frozen=True)
class CoreResult:
    """The result of one core, trained and evaluated."""

    core: str
    """The name of the core and the options that it was given."""
    config: dict[str, Any]
    parameters: int
    """Number of parameters of the core."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    loss: float
    """Mean loss of the last batches of the training."""
    training_s: float
    acting: dict[str, ActingResult]
    """"best" or "drawn" -> results."""


class ResultFolder:
    """The results so far with the same settings, in a folder of their own."""

    def __init__(self, root: Path, settings: StudySettings) -> None:
        """root: the folder that holds the results of all settings."""
        self.settings = settings
        self._folder = root / settings.folder

    def save(self, result: CoreResult) -> None:
        """Write the file of one core, so that another process never reads half of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(result.core)
        # The process id is part of the temporary name, because several commands may run at once.
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"settings": asdict(self.settings), **asdict(result)}))
        unfinished.replace(path)

    def find(self, core: str) -> CoreResult | None:
        """Return the result of a core, named with its options; None if there is none.

        Raises `UserError` if the file is damaged.
        """
        path = self._path(core)
        return _read(path) if path.exists() else None

    def all(self) -> list[CoreResult]:
        """Return all results, sorted by name. Raises `UserError` if a file is damaged."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def _path(self, core: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9@=._-]+', '_', core)}.json"


def _read(path: Path) -> CoreResult:
    try:
        values = json.loads(path.read_text())
        del values["settings"]
        acting = {way: ActingResult(**fields) for way, fields in values.pop("acting").items()}
        return CoreResult(**values, acting=acting)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and its core is trained again"
        ) from error
