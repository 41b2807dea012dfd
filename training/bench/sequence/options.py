"""The options of `ttm bench sequence`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy

Part = Literal["cost", "quality"]
HIERARCHY = "2@1 4@4 2@1"


@dataclass(frozen=True)
class SequenceOptions:
    """Which models are compared, and at which sizes."""

    parts: tuple[Part, ...] = ("cost", "quality")
    """What is measured."""
    chunk_sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    """K of the Temporal Latent Bottleneck."""
    hierarchies: tuple[str, ...] = (
        "8@1",
        "1@1 6@2 1@1",
        "2@1 4@2 2@1",
        HIERARCHY,
        "2@1 8@4 2@1",
        "2@1 1@2 4@4 1@2 2@1",
    )
    """Hierarchies of Hourglass, each in quotes: layers@scale from the input to the output."""
    layers: int = 8
    """Layers of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
    cross_every: int = 4
    """R: the Temporal Latent Bottleneck attends to its latents after every R-th layer."""
    num_latents: int = 16
    """N of the Temporal Latent Bottleneck."""
    window: int = 64
    """Number of elements, of its own scale, that each attention of Hourglass sees."""
    ticks: int = 512
    """T for the cost: the length of the sequences, and the number of ticks before a tick is timed."""
    batch: int = 2
    """Sequences of a training pass, for the cost."""
    width: int = 128
    """Channels of a token, for the cost."""
    rounds: int = 5
    """Number of training passes of each model that are timed."""
    tick_blocks: int = 10
    """Blocks of 10 ticks of each model that are timed; the first two ticks of a block do not count."""
    text_chunk_sizes: tuple[int, ...] = (8, 32)
    """K of the Temporal Latent Bottleneck, for the quality."""
    text_hierarchies: tuple[str, ...] = ("8@1", "1@1 6@2 1@1", HIERARCHY, "2@1 1@2 4@4 1@2 2@1")
    """Hierarchies of Hourglass, for the quality."""
    steps: int = 300
    """Steps of each training."""
    text_ticks: int = 128
    """Length of the sequences of the training, in bytes."""
    text_batch: int = 8
    """Sequences in a batch of the training."""
    text_width: int = 64
    """Channels of a token, for the quality."""
    learning_rate: float = 3e-3
    """Learning rate of Adam."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the trainings; each seed adds one training of every model, and a column."""
    threads: int = 1
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the models run."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "parts", "seeds"))
        require_at_least(1, options(self, "layers", "cross_every", "num_latents", "ticks", "batch"))
        require_at_least(1, options(self, "width", "rounds", "tick_blocks", "steps", "threads"))
        require_at_least(1, options(self, "text_ticks", "text_batch", "text_width"))
        require_above_0(options(self, "learning_rate"))
        for hierarchy in (*self.hierarchies, *self.text_hierarchies):
            parse_hierarchy(hierarchy)
