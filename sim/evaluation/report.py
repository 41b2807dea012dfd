"""The report page: one HTML file that holds all it needs, so that it can be sent by mail."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from ttm.policy.files import write_atomically
from ttm.sim.evaluation.intervals import wilson_interval
from ttm.sim.evaluation.result import Evaluation, TaskResult, compare, describe_test

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Section:
    """One policy's evaluation on the page."""

    label: str
    evaluation: Evaluation
    videos: Path | None = None
    """Folder of videos, named as `video_path` does."""


@dataclass(frozen=True)
class Fact:
    """A row of the table of steps."""

    name: str
    """What was done."""
    finding: str
    """What came of it."""
    seconds: float | None = None
    """How long it took."""


def write_report(
    path: Path, title: str, sections: Sequence[Section], facts: Sequence[Fact] = (), intro: str = ""
) -> Path:
    """Write the page to `path` and return that.

    Sections are drawn in their order, and each is compared with the one before it. `facts` are the
    rows of a table of steps, `intro` is a sentence below the title.
    """
    tasks = list(dict.fromkeys(task for section in sections for task in section.evaluation.tasks))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda rate: f"{100 * rate:.0f} %"
    template = environment.from_string(
        resources.files("ttm.sim.evaluation").joinpath(TEMPLATE).read_text("utf-8")
    )
    page = template.render(
        title=title,
        intro=intro,
        charts=[_chart(task, sections) for task in tasks],
        sections=[_section(section) for section in sections],
        tests=_tests(sections),
        facts=facts,
    )
    write_atomically(path, page)
    return path


def _chart(task: str, sections: Sequence[Section]) -> dict[str, Any]:
    """Return one row for each policy that was evaluated on the task."""
    rows = [(section.label, section.evaluation.tasks.get(task)) for section in sections]
    return {
        "task": task,
        "rows": [{"label": label, "result": result} for label, result in rows if result],
    }


def _section(section: Section) -> dict[str, Any]:
    evaluation = section.evaluation
    return {
        "label": section.label,
        "checkpoint": Path(evaluation.checkpoint).name,
        "sha256": evaluation.sha256,
        "tasks": [
            {
                "result": result,
                "instructions": list(_by_instruction(result)),
                "videos": list(_videos(result, section.videos)),
            }
            for result in evaluation.tasks.values()
        ],
    }


def _by_instruction(result: TaskResult) -> Iterable[dict[str, Any]]:
    for text in sorted({outcome.instruction for outcome in result.outcomes}):
        successes = [outcome.success for outcome in result.outcomes if outcome.instruction == text]
        yield {
            "text": text,
            "successes": sum(successes),
            "episodes": len(successes),
            "interval": wilson_interval(sum(successes), len(successes)),
        }


def _videos(result: TaskResult, folder: Path | None) -> Iterable[dict[str, Any]]:
    """Yield the videos of this evaluation's episodes. The folder may hold older ones, too."""
    for outcome in result.outcomes if folder else ():
        path = video_path(folder, outcome.task, outcome.seed)
        if path and path.is_file():
            yield {"outcome": outcome, "data": base64.b64encode(path.read_bytes()).decode()}


def video_path(folder: Path | None, task: str, seed: int) -> Path | None:
    """Return where the video of one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}.mp4" if folder else None


def _tests(sections: Sequence[Section]) -> list[dict[str, str]]:
    tests = []
    for first, second in pairwise(sections):
        for task, test in compare(first.evaluation, second.evaluation).items():
            tests.append(
                {"task": task, "text": describe_test(test, f"“{first.label}”", f"“{second.label}”")}
            )
    return tests
