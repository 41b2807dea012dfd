"""`ttm train`: behaviour cloning of a policy from episodes in HDF5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.training.cloning.options import TrainOptions
from ttm.training.common.threads import hide_hints, wait_passively


@dataclass(frozen=True)
class TrainCommand(TrainOptions):
    """Train a policy on demonstrations, or fine-tune one with --init.

    OUT receives best.safetensors (lowest error on held-out episodes), last.safetensors, result.json
    (errors, and those of two baselines), run.yaml (all options, for --config), tensorboard/ and
    resume/ (for --resume). Ctrl-C saves all of that and leaves with exit code 130 (SIGTERM: 143);
    the same command with --resume continues exactly there.
    """

    config: Path | None = None
    """A YAML file of options, such as the run.yaml of another training, or with lines such as
    `batch-size: 32`. Options of the command line count more."""

    def run(self) -> int:
        """Train; return the exit code."""
        self.check()
        wait_passively()
        hide_hints()
        from ttm.training.cloning.assembly import train

        return train(self)
