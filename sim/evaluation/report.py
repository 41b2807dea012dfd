"""The report page: one HTML file with everything inlined, so that it opens from a disk and can be sent by mail."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from ttm.sim.evaluation.intervals import wilson_interval
from ttm.sim.evaluation.result import Evaluation, TaskResult, compare, describe_test

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Section:
    """One policy's evaluation on the page. `videos` is a folder of mp4 files named <task>_<seed>.mp4, or None."""

    label: str
    evaluation: Evaluation
    videos: Path | None = None


@dataclass(frozen=True)
class Fact:
    """A row of the table of steps: what was done, what came out, how long it took (s, or None)."""

    name: str
    finding: str
    seconds: float | None = None


def write_report(
    path: Path, title: str, sections: Sequence[Section], facts: Sequence[Fact] = (), intro: str = ""
) -> Path:
    """Write the page to `path`; sections are drawn in their order, and each is compared with the one before it."""
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _chart(task: str, sections: Sequence[Section]) -> dict[str, Any]:
    """One row for each policy that was evaluated on the task."""
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
    """The films of this evaluation's episodes; others that lie in the folder from before are left out."""
    for outcome in result.outcomes if folder else ():
        path = video_path(folder, outcome.task, outcome.seed)
        if path and path.is_file():
            yield {"outcome": outcome, "data": base64.b64encode(path.read_bytes()).decode()}


def video_path(folder: Path | None, task: str, seed: int) -> Path | None:
    """Where the film of one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}.mp4" if folder else None


def _tests(sections: Sequence[Section]) -> list[dict[str, str]]:
    tests = []
    for first, second in pairwise(sections):
        for task, test in compare(first.evaluation, second.evaluation).items():
            tests.append(
                {"task": task, "text": describe_test(test, f"“{first.label}”", f"“{second.label}”")}
            )
    return tests
