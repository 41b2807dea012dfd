"""Donors: the episodes whose memory the probe `swap` gives to another one.

A donor in the same initial state differs from the episode in its cue alone: when the robot may act,
all that it sees and all that it has done is equal in both, and only the memory is not. If the choice
follows the donor, the memory is what carries it. A donor in another initial state has seen another
scene, too, so that the probe then asks for more: that what was remembered there serves here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ttm.policy.errors import UserError
from ttm.sim.evaluation.condition import SAME_STATE
from ttm.sim.evaluation.probes.trial import Memory, Trial, begin, run_to_go

MOST_DONORS = 200
"""Initial states that are looked through for one of another cue."""


@dataclass(frozen=True)
class Donor:
    """An episode whose memory is taken."""

    seed: int
    choice: str
    """What its cue asked for."""
    gap: int
    """Ticks between its cue and the first tick at which the robot may act."""
    is_other_cue: bool
    """Whether its initial state would ask for something else by itself, so that the cue is to be set."""

    def memory(self, trial: Trial) -> Memory:
        """Drive the episode with the actor until the robot may act, and return the memory there."""
        run_to_go(trial, self.seed, self.gap, self.choice if self.is_other_cue else None)
        return trial.actor.memory()


def find_donor(trial: Trial) -> Donor:
    """Return the donor that the trial's condition asks for.

    Its gap is that of the episode. Raises `UserError` if there is none.
    """
    _, info = begin(trial, trial.seed, trial.condition.gap)
    find = _of_same_state if trial.condition.donor == SAME_STATE else _of_other_state
    return find(trial, info)


def _of_same_state(trial: Trial, info: dict[str, Any]) -> Donor:
    """Return the same initial state with another cue, which the number of the state picks."""
    own, gap = info["right_choice"], int(info["gap"])
    others = [choice for choice in info.get("choices", ()) if choice != own]
    if others:
        theirs = others[trial.seed % len(others)]
        _, shown = begin(trial, trial.seed, gap, theirs)
        if shown["right_choice"] == theirs:
            return Donor(trial.seed, theirs, gap, is_other_cue=True)
    raise UserError(
        f"task '{trial.task}': the environment cannot show another cue in the same initial state (see "
        "`choices` and `right_choice` of ttm.sim.environment.PolicyEnv); take --donor other-state"
    )


def _of_other_state(trial: Trial, info: dict[str, Any]) -> Donor:
    """Return the next initial state of another right choice, which must be one of this state's."""
    own, gap, choices = info["right_choice"], int(info["gap"]), info.get("choices")
    for seed in range(trial.seed + 1, trial.seed + 1 + MOST_DONORS):
        _, found = begin(trial, seed, gap)
        theirs = found["right_choice"]
        if theirs != own and (choices is None or theirs in choices):
            return Donor(seed, theirs, gap, is_other_cue=False)
    raise UserError(
        f"task '{trial.task}': the {MOST_DONORS} initial states after {trial.seed} all ask for '{own}', or "
        "for what is not there, so that there is no memory of another cue; leave --probe swap out"
    )
