"""What every command takes unless told otherwise, and the conditions of an evaluation.

Nothing here imports a simulator: a robot's computer has none, and the command line lists the probes quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ttm.datasets.layout import next_episode_path
from ttm.policy.config import LONGEST_DELAY_S
from ttm.policy.errors import require_above_0, require_at_least, require_at_most, require_some
from ttm.policy.execution import NEWEST, parse_execution

KITCHEN = "ttm/Kitchen-v0"
"""The Gymnasium ID of the simulated Fetch in its kitchen."""
FIRST_DEMONSTRATION_SEED = 1_000_000
"""The first initial state that demonstrations are recorded from. Evaluation takes 0, 1, 2, …, so that
no evaluated state was ever trained on."""
CueName = Literal["hidden", "left_on", "held_out"]
"""Whether memory tasks hide their cue before the robot may act, leave it on as a control, or hide a cue
whose colour or shape they do not show otherwise."""
ProbeName = Literal["live", "zero", "erase", "freeze", "swap", "noise", "interrupt"]
LIVE: ProbeName = "live"
DonorName = Literal["same-state", "other-state"]
"""Whose memory the probe "swap" takes: that of the same initial state under another cue, or that of the
next numbered initial state that asks for something else."""
SAME_STATE: DonorName = "same-state"
OTHER_STATE: DonorName = "other-state"
NOISE = 0.5
"""The share of each token's norm that the probe "noise" adds unless told otherwise."""

PROBE_DESCRIPTIONS: Mapping[ProbeName, str] = {
    "live": "left as it is",
    "zero": "reset to the initial memory before every tick",
    "erase": "reset once, at the first tick at which the robot may act",
    "freeze": "not written from the end of the cue until the robot may act",
    "swap": "exchanged, when the robot may act, with that of an episode of another cue",
    "noise": "disturbed by Gaussian noise before every tick",
    "interrupt": "kept while the policy sees seven other episodes, just before the robot may act",
}
"""Probe -> what is done to the memory, for help texts and pages."""
PROBES_OF_MEMORY_TASKS: frozenset[ProbeName] = frozenset({"erase", "freeze", "swap", "interrupt"})
"""The probes that act when the robot may act, which only memory tasks say."""


@dataclass(frozen=True)
class Condition:
    """How the episodes of an evaluation are run."""

    gap: int | None = None
    """The ticks for which memory tasks hide their cue; None for those that each task draws."""
    probe: ProbeName = LIVE
    cue: CueName = "hidden"
    noise: float | None = None
    """Of the probe "noise": the share of each token's norm that is added as noise."""
    execution: str = NEWEST
    """Which of the predicted actions are carried out; see `PolicyRunner.execute_by`."""
    delay_s: float = 0.0
    """The time from an observation until its command is in force; see `DelayedActor`."""
    donor: DonorName = OTHER_STATE
    """Of the probe "swap". This default is that of results that do not name it, and commands ask for
    `SAME_STATE`."""
    vary: str = ""
    """What varies beside the initial state, as "camera=1 light=2"; see `EnvFacts.variants`."""

    @property
    def levels(self) -> dict[str, int]:
        """What varies -> its level."""
        return {name: int(level) for name, level in re.findall(r"(\w+)=(\d+)", self.vary)}

    @property
    def series(self) -> str:
        """The condition in words, without its gap: one curve over the gap is of one series."""
        words = [self.probe if self.noise is None else f"{self.probe} {self.noise:g}"]
        words = ["swap with another state"] if self.swaps_states else words
        words += [f"cue {self.cue.replace('_', ' ')}"] if self.cue != "hidden" else []
        words += [f"{self.delay_s:g} s late"] if self.delay_s else []
        levels = [*self.levels.values()]
        alike = f"{len(levels)} variations at level {max(levels, default=0)}"
        words += [alike if len(levels) > 3 and len({*levels}) == 1 else self.vary] if levels else []
        return ", ".join(words + ([] if self.execution == NEWEST else [self.execution]))

    @property
    def folder(self) -> str:
        """A name for the folder of its results among those of other conditions."""
        gap = [] if self.gap is None else [f"gap_{self.gap}"]
        execution = [] if self.execution == NEWEST else [self.execution.replace(":", "_")]
        donor = ["other_state"] if self.swaps_states else []
        return "_".join([*gap, self.probe, *donor, *execution, *self.vary.split()])

    @property
    def swaps_states(self) -> bool:
        """Whether the memory is exchanged with that of another initial state."""
        return self.probe == "swap" and self.donor == OTHER_STATE

    @property
    def needs_memory_task(self) -> str | None:
        """The first option that only memory tasks understand, or None."""
        if self.gap is not None:
            return f"--gap {self.gap}"
        if self.cue != "hidden":
            return f"--cue {self.cue}"
        return f"--probe {self.probe}" if self.probe in PROBES_OF_MEMORY_TASKS else None

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the plain evaluation, as plain data for JSON."""
        plain = asdict(Condition())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


def conditions_of(
    gaps: Sequence[int],
    probes: Sequence[ProbeName],
    cue: CueName,
    noise: float,
    executions: Sequence[str] = (NEWEST,),
    delay_s: float = 0.0,
    donor: DonorName = SAME_STATE,
    variants: Sequence[str] = ("",),
) -> list[Condition]:
    """Return all combinations of gaps, probes, executions and variations, "live" first, each once.

    noise and donor count for the probes that they belong to. Raises `UserError` for values out of range,
    an unknown execution, or if there is no probe or no execution.
    """
    require_some({"--probe": probes, "--execution": executions})
    for execution in executions:
        parse_execution(execution)
    require_above_0({"--noise": noise})
    require_at_least(0, {"--delay": delay_s})
    require_at_most(LONGEST_DELAY_S, {"--delay": delay_s})
    require_at_least(0, {"--gap": min(gaps, default=0)})
    ordered = sorted(dict.fromkeys(probes), key=lambda probe: probe != LIVE)
    plain = Condition(cue=cue, delay_s=delay_s)
    of_probe: dict[str, Condition] = {
        "noise": replace(plain, noise=noise),
        "swap": replace(plain, donor=donor),
    }
    some: Sequence[int | None] = gaps or (None,)
    combinations = product(some, ordered, executions, variants)
    found = [
        replace(of_probe.get(probe, plain), gap=gap, probe=probe, execution=execution, vary=vary)
        for gap, probe, execution, vary in combinations
    ]
    return list(dict.fromkeys(found))


PATIENT_MAX_AGE_S = 5.0
"""The least `max_age_s` while a person drives the simulated robot: a busy machine simulates slowly."""


def next_seed(folder: str | Path) -> int:
    """Return the first initial state for a session in which a person records into the folder.

    No evaluation uses it, and episodes that were recorded there from here on have others.
    """
    (number,) = re.findall(r"\d+", next_episode_path(Path(folder).expanduser()).stem)
    return FIRST_DEMONSTRATION_SEED + int(number)
