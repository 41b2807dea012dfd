"""The report page of one policy's evaluation, or of several in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttm.sim.compare import Comparison, comparison_values
from ttm.sim.pages import encoded, video_path, write_page
from ttm.sim.results import Evaluation, Rate, TaskResult, compare, describe_test


@dataclass(frozen=True)
class Section:
    """One policy's evaluation on the page."""

    label: str
    evaluation: Evaluation
    videos: Path | None = None
    """Folder of videos, named as `video_path` does."""


@dataclass(frozen=True)
class Fact:
    """A row of the table of steps: what was done, what came of it, and how long it took."""

    name: str
    finding: str
    seconds: float | None = None


def write_report(
    path: Path,
    title: str,
    sections: Sequence[Section],
    facts: Sequence[Fact] = (),
    intro: str = "",
    chapter: Comparison | None = None,
) -> Path:
    """Write the page to `path` and return that.

    Sections are drawn in their order, and each is compared with the one before it. `facts` are the
    rows of a table of steps, `intro` is a sentence below the title, and `chapter` compares other
    evaluations.
    """
    tasks = list(dict.fromkeys(task for section in sections for task in section.evaluation.tasks))
    results = [result for section in sections for result in section.evaluation.tasks.values()]
    return write_page(
        path,
        "report.html.j2",
        title=title,
        intro=intro,
        charts=[_chart(task, sections) for task in tasks],
        sections=[_section(section) for section in sections],
        choices=any(result.choices for result in results),
        tests=[
            {"task": task, "text": describe_test(test, f"“{one.label}”", f"“{two.label}”")}
            for one, two in pairwise(sections)
            for task, test in compare(one.evaluation, two.evaluation).items()
        ],
        facts=facts,
        chapter=chapter,
        comparison=comparison_values(chapter.entries) if chapter else None,
    )


def _chart(task: str, sections: Sequence[Section]) -> dict[str, Any]:
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
                "instructions": _by_instruction(result),
                "videos": _videos(result, section.videos) if section.videos else [],
            }
            for result in evaluation.tasks.values()
        ],
    }


def _by_instruction(result: TaskResult) -> list[dict[str, Any]]:
    successes: dict[str, list[bool]] = {}
    for outcome in result.outcomes:
        successes.setdefault(outcome.instruction, []).append(outcome.success)
    return [
        {"text": text, "rate": Rate(sum(each), len(each))}
        for text, each in sorted(successes.items())
    ]


def _videos(result: TaskResult, folder: Path) -> list[dict[str, Any]]:
    """Return the videos of this evaluation's episodes. The folder may hold older ones, too."""
    found = [
        {"outcome": outcome, "data": encoded(video_path(folder, outcome.task, outcome.seed))}
        for outcome in result.outcomes
    ]
    return [video for video in found if video["data"]]
