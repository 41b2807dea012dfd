"""What other formats have no place for: the spec, and facts about episodes, in files beside their data.

Other programs take no notice of these files. `SPEC` is the PolicySpec; `EPISODES` has one JSON object a
line for each episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.convert.recording import Recording
from ttm.datasets.episode_file import plain_text
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

SPEC, EPISODES = "ttm_spec.json", "ttm_episodes.jsonl"

Facts = dict[int, dict[str, Any]]
"""Number of the episode -> its facts."""


def facts_line(number: int, recording: Recording) -> str:
    """Return the line of one episode."""
    facts = {
        "episode_index": number,
        "length": len(recording.actions),
        "instruction": recording.instruction,
        "task": recording.task,
        "success": recording.success,
        "seed": recording.seed,
        "masks": sorted(recording.masks),
        "interventions": None
        if recording.interventions is None
        else recording.interventions.tolist(),
    }
    return json.dumps(facts, ensure_ascii=False) + "\n"


def read_facts(folder: Path, lengths: Mapping[int, int]) -> tuple[Facts, str]:
    """Return the facts in a folder, and a note if they are of another state of the data.

    lengths: number of each episode -> its ticks.
    """
    path = folder / EPISODES
    if not path.is_file():
        return {}, ""
    try:
        facts = {line["episode_index"]: line for line in read_lines(path)}
        for line in facts.values():
            texts = {key: plain_text(line.get(key, ""), key) for key in ("instruction", "task")}
            line.update(texts)
        known = {number: line["length"] for number, line in facts.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); move it away to do without it") from error
    if known != lengths:
        return {}, f"{EPISODES} is of another state of the data set and is not used"
    return facts, ""


def interventions_of(facts: Mapping[str, Any]) -> npt.NDArray[np.uint8] | None:
    """Return where a person drove, as in `Recording`, by the facts of an episode."""
    stored = facts.get("interventions")
    return None if stored is None else np.asarray(stored, np.uint8)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def read_spec(folder: Path) -> PolicySpec | None:
    """Return the spec in a folder, or None if there is none."""
    path = folder / SPEC
    return PolicySpec.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_spec(folder: Path, spec: PolicySpec) -> None:
    """Write the spec into a folder."""
    (folder / SPEC).write_text(spec.to_json() + "\n", encoding="utf-8")
