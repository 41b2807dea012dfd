"""Which episodes `ttm data filter` keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ttm.policy.checks import require_at_least


class Judged(Protocol):
    """The facts of an episode that it is chosen by, as `EpisodeReader` has them."""

    @property
    def success(self) -> bool | None: ...
    @property
    def task(self) -> str: ...
    @property
    def instruction(self) -> str: ...
    @property
    def masks(self) -> frozenset[str]: ...
    @property
    def num_samples(self) -> int: ...


@dataclass(frozen=True)
class Wanted:
    """Which episodes of a data set are kept. None keeps all."""

    success: Literal["true", "false", "unknown"] | None = None
    """Keep episodes that succeeded, failed, or were not judged."""
    task: str | None = None
    """Keep episodes of this task."""
    instruction: str | None = None
    """Keep episodes whose instruction has this text in it."""
    mask: str | None = None
    """Keep the episodes of this mask, such as train or valid."""
    min_ticks: int | None = None
    """Keep episodes of at least this many ticks."""
    max_ticks: int | None = None
    """Keep episodes of at most this many ticks."""

    def validate(self) -> None:
        """Raise `UserError` for a number that makes no sense."""
        require_at_least(1, {"--min-ticks": self.min_ticks, "--max-ticks": self.max_ticks})

    def keeps(self, episode: Judged) -> bool:
        """Return whether an episode is wanted."""
        judged = {True: "true", False: "false", None: "unknown"}[episode.success]
        return (
            self.success in (None, judged)
            and self.task in (None, episode.task)
            and (self.instruction or "") in episode.instruction
            and (self.mask is None or self.mask in episode.masks)
            and (self.min_ticks or 0) <= episode.num_samples
            and (self.max_ticks is None or episode.num_samples <= self.max_ticks)
        )
