"""The folder of one core and seed: what it holds, and what of it is done.

Everything in it is written atomically, so that a kill at any moment leaves it whole. A lock keeps
other processes away while one works in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ttm.policy.errors import UserError
from ttm.policy.files import write_json
from ttm.sim.evaluation.condition import Condition
from ttm.sim.evaluation.result import Evaluation, load_evaluation
from ttm.training.cloning.loop.run_folder import LAST, resume_path
from ttm.training.common.folders import make_folder

FACTS, START, TRAINING, EVALUATIONS = "run.json", "start.safetensors", "training", "evaluation"
"""The names of what the folder holds."""

LATER_SETTINGS = {"window": "episode"}
"""Settings that did not exist at first, and what they were then."""


@dataclass(frozen=True)
class RunFacts:
    """What a training is of. The fields are the format of `FACTS`."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    """The configuration of the core, as `core_to_dict` returns it."""
    sight_tokens: int
    """J of the sight memory; 0 for none."""
    parameters: int
    """Number of parameters of the core and the sight memory."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    settings: Mapping[str, Any]
    """What all trainings that are compared have in common."""
    sight_cells: int | None = None
    """Cells along each side of a frame for the sight memory; None for those of the checkpoint of --init."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one core and seed."""

    path: Path

    @property
    def start(self) -> Path:
        """The checkpoint that the training begins with."""
        return self.path / START

    @property
    def training(self) -> Path:
        """The folder of the training, as `ttm train --out` leaves it."""
        return self.path / TRAINING

    @property
    def checkpoint(self) -> Path:
        """The checkpoint after the last step, which is evaluated."""
        return self.training / LAST

    @property
    def can_resume(self) -> bool:
        """Whether a training has begun, and saved its state."""
        return resume_path(self.training).exists()

    @property
    def facts(self) -> RunFacts | None:
        """What the folder is of; None if nothing has begun. Raises `UserError` if it is damaged."""
        path = self.path / FACTS
        if not path.exists():
            return None
        needed = [field.name for field in fields(RunFacts) if field.default is MISSING]
        values = _read(path, needed)
        values["settings"] = LATER_SETTINGS | values["settings"]
        return RunFacts(
            **{each.name: values[each.name] for each in fields(RunFacts) if each.name in values}
        )

    @property
    def training_result(self) -> Mapping[str, Any] | None:
        """What the finished training tells of itself; None if it is not finished."""
        path = self.training / "result.json"
        result = _read(path, ["finished"]) if path.exists() else {"finished": False}
        return result if result["finished"] else None

    def write_facts(self, facts: RunFacts) -> None:
        """Say what the folder is of."""
        write_json(self.path / FACTS, asdict(facts))

    def evaluation(self, task: str, condition: Condition) -> Path:
        """Return the folder of the evaluation of one task under one condition."""
        return self.path / EVALUATIONS / task / condition.folder

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations that there are. Raises `UserError` if one is damaged."""
        found = (self.path / EVALUATIONS).glob("*/*/result.json")
        return [load_evaluation(path) for path in sorted(found)]

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Keep other processes from working here. Yields False if one does so already."""
        lock = FileLock(make_folder(self.path) / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def run_folders(out: Path) -> list[RunFolder]:
    """Return the folders of all trainings in `out` that have begun, in the order of their names."""
    return [RunFolder(path.parent) for path in sorted(out.glob(f"*/seed_*/{FACTS}"))]


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a JSON object, which must have those called `names`."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not values.keys() >= set(names):
            raise ValueError(f"there must be values called {', '.join(names)}")
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete its folder, which is then made again"
        ) from error
    return values
