"""What a policy chose at the end of the corridor, told by how its episodes ended."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.minigrid.results import ActingResult


@dataclass(frozen=True)
class Choices:
    """How many episodes ended at an object, and at how many of them it was the matching one."""

    made: int
    right: int

    @classmethod
    def of(cls, acting: ActingResult, max_steps: int) -> Choices:
        """Return the choices in episodes of at most `max_steps` ticks.

        A Memory level ends when the agent steps to an object or when its time is up. An episode
        that failed earlier than that has therefore ended at the wrong object.
        """
        made = sum(
            success or length < max_steps
            for success, length in zip(acting.success, acting.lengths, strict=True)
        )
        return cls(made, sum(acting.success))
