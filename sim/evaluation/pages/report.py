"""The report page: one HTML file that holds all it needs, so that it can be sent by mail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttm.policy.files import write_atomically
from ttm.sim.evaluation.intervals import wilson_interval
from ttm.sim.evaluation.pages.comparison import Comparison, comparison_values
from ttm.sim.evaluation.pages.media import encoded, video_path
from ttm.sim.evaluation.pages.page import render_page
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
    page = render_page(
        TEMPLATE,
        title=title,
        intro=intro,
        charts=[_chart(task, sections) for task in tasks],
        sections=[_section(section) for section in sections],
        choices=any(result.choices for result in results),
        tests=_tests(sections),
        facts=facts,
        chapter=chapter,
        comparison=comparison_values(chapter.entries) if chapter else None,
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
            yield {"outcome": outcome, "data": encoded(path)}


def _tests(sections: Sequence[Section]) -> list[dict[str, str]]:
    tests = []
    for first, second in pairwise(sections):
        for task, test in compare(first.evaluation, second.evaluation).items():
            tests.append(
                {"task": task, "text": describe_test(test, f"“{first.label}”", f"“{second.label}”")}
            )
    return tests
