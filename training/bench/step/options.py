"""The options of `ttm bench step`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.policy.checks import options, require_at_least, require_some
from ttm.policy.errors import UserError

OURS = "ttm write=gated read=attend process_memory=true"
"""The options of the Token Turing Machine that learn to remember; see `UnitConfig`."""


@dataclass(frozen=True)
class StepOptions:
    """Which cores are trained, on what, and how often a step is timed."""

    cores: tuple[str, ...] = (OURS, "ttm")
    """Cores, each in quotes: its name, and options as of `ttm train --core-options`. Each is compared
    with an LSTM of as many weights."""
    data: tuple[str, ...] = ()
    """Episodes: HDF5 files, folders of them, or globs in quotes. Default: made-up episodes of the
    robot of --init, in which no two frames are equal."""
    ticks: tuple[int, int] = (30, 60)
    """Without --data: the ticks of the shortest and of the longest episode."""
    episodes: int = 32
    """Without --data: how many episodes are made up, of which every tenth is held out."""
    init: Path = Path("shipped")
    """The checkpoint whose vision is frozen; `shipped` is the policy that comes with the project."""
    batch_size: int = 16
    """Episodes in a batch."""
    recall_weight: float = 2.0
    """Weight of the recall loss; 0: none."""
    trained_vision: bool = False
    """Also time steps of the first core in which vision is trained, from augmented frames, and without
    recall loss."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of CPU threads; all is timed with each of them."""
    rounds: int = 10
    """Steps of each core that are timed with each number of threads, in turns."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "cores", "threads"))
        require_at_least(1, options(self, "episodes", "batch_size", "rounds"))
        require_at_least(0, options(self, "recall_weight"))
        for count in self.threads:
            require_at_least(1, {"--threads": count})
        shortest, longest = self.ticks
        require_at_least(2, {"--ticks": shortest})
        if longest < shortest:
            raise UserError(f"--ticks is {shortest} {longest}; give the smaller number first")
