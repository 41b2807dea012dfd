"""The report page: one HTML file that holds all it needs, so that it can be sent by mail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.files import write_atomically
from ttm.sim.actors import PolicyActor
from ttm.sim.compare import Comparison, comparison_values
from ttm.sim.environment import EXECUTED
from ttm.sim.memory_picture import SeenEpisode, draw_strip, trace_memory
from ttm.sim.pages import encoded, render_page, video_path
from ttm.sim.results import Evaluation, TaskResult, compare, describe_test, wilson_interval
from ttm.sim.rollout import Choice, Outcome
from ttm.sim.shipped import CueName

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


# The picture of what a policy's memory did in an episode that was evaluated.

QUALITY = 85
"""Of the picture, out of 100."""


class EpisodeMemory:
    """Collects what a policy sees in an episode, to draw afterwards what its memory did with it.

    The episode itself is left alone. The picture is of a replay, in which the policy is run by
    PyTorch: whatever engine ran the episode, its memory cannot be looked into without slowing it.
    """

    def __init__(self, actor: PolicyActor) -> None:
        self._actor = actor
        spec = actor.policy.spec
        names = [camera.name for camera in spec.cameras]
        names += [vector.name for vector in spec.proprioception]
        self._seen: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._executed: list[npt.NDArray[np.float32]] = []
        self._began = False

    def on_tick(self, observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Keep a copy of the observation; see `ttm.sim.rollout.OnTick`."""
        for name, values in self._seen.items():
            values.append(np.array(observation[name]))
        if EXECUTED in info and self._began:  # before the first tick, nothing was executed
            self._executed.append(np.array(info[EXECUTED], np.float32))
        self._began = True

    def draw(self, path: Path, outcome: Outcome, cue: CueName) -> None:
        """Write the picture of the episode that ended with `outcome`, and in which the cue was `cue`."""
        # The last observation was shown, and not acted upon.
        observations = {
            name: np.stack(values[: outcome.ticks]) for name, values in self._seen.items()
        }
        seen = SeenEpisode(
            f"{outcome.task}, initial state {outcome.seed}",
            outcome.instruction,
            observations,
            self._actor.embedding(outcome.instruction),
            _moments(outcome.choice, cue),
            np.stack(self._executed) if self._executed else None,
            self._actor.delay_s,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = draw_strip(trace_memory(self._actor.policy, seen))
        figure.savefig(path, pil_kwargs={"quality": QUALITY})


def _moments(choice: Choice | None, cue: CueName) -> dict[str, int]:
    """Return when the cue was gone and when the robot could act, as far as the episode went."""
    if choice is None or choice.go_tick is None:
        return {}
    first_of_gap = choice.go_tick - choice.gap
    gone = {"the cue is gone": first_of_gap} if cue == "hidden" and choice.gap else {}
    return {**gone, "the robot may act": choice.go_tick}
