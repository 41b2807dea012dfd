"""`ttm bench sequence`: what long sequences cost, by chunk size and by hierarchy, and how well they are predicted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ttm.policy.errors import UserError
from ttm.training.option_checks import require_1_or_more, require_above_0, require_some

if TYPE_CHECKING:
    from rich.console import Console

    from ttm.training.bench.sequence.cost import CostSizes
    from ttm.training.bench.sequence.models import Choices

Part = Literal["cost", "quality"]
POSITIVE = (
    "layers",
    "cross_every",
    "num_latents",
    "ticks",
    "batch",
    "width",
    "rounds",
    "tick_blocks",
    "steps",
    "text_ticks",
    "text_batch",
    "text_width",
    "threads",
)
HIERARCHY = "2@1 4@4 2@1"


@dataclass(frozen=True)
class BenchSequenceCommand:
    """Compare the cost of long sequences: TLB by chunk size, Hourglass by hierarchy, against a plain Transformer.

    The plain one is causal and has no window; all figures are ratios to its own in the same run.

    cost: time and memory of a training pass, time and state of a control tick late in an episode; the counterpart of
    the TLB paper's table 5. Takes two minutes. quality: bits for each byte of a text after equal trainings, beside
    memory and time; the counterpart of the Hourglass paper's figure 6, scaled down. Takes five minutes. Run them
    while nothing else runs.
    """

    parts: tuple[Part, ...] = ("cost", "quality")
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
    """Of Hourglass, each in quotes: layers@scale from the input to the output."""
    layers: int = 8
    """Of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
    cross_every: int = 4
    """R: the Temporal Latent Bottleneck attends to its latents after every R-th layer."""
    num_latents: int = 16
    """N of the Temporal Latent Bottleneck."""
    window: int = 64
    """Elements of its own scale that each attention of Hourglass sees."""
    ticks: int = 512
    """T, length of the sequences for the cost, and the tick after which a tick is timed."""
    batch: int = 2
    """Sequences of a training pass, for the cost."""
    width: int = 128
    """Channels of a token, for the cost."""
    rounds: int = 5
    """Training passes that are timed, of each model."""
    tick_blocks: int = 10
    """Blocks of 10 ticks that are timed, of each model, of which the first two do not count."""
    text_chunk_sizes: tuple[int, ...] = (8, 32)
    """K, for the quality."""
    text_hierarchies: tuple[str, ...] = ("8@1", "1@1 6@2 1@1", HIERARCHY, "2@1 1@2 4@4 1@2 2@1")
    """For the quality."""
    steps: int = 300
    """Of the trainings."""
    text_ticks: int = 128
    """Length of the sequences trained on, in bytes."""
    text_batch: int = 8
    text_width: int = 64
    learning_rate: float = 3e-3
    seeds: tuple[int, ...] = (0,)
    """Of the trainings; each of them is another column."""
    threads: int = 1
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Measures; returns the exit code."""
        self._validate()
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.bench.timing import cpu_threads
        from ttm.training.common.tables import write_figures

        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError(
                "--device is cuda, but PyTorch finds no GPU here; leave it out to run on the CPU"
            )
        console = Console(highlight=False)
        figures: dict[str, Any] = {"options": {**asdict(self), "json": None}}
        with cpu_threads(self.threads):
            if "cost" in self.parts:
                figures["cost"] = self._cost(console)
            if "quality" in self.parts:
                figures["quality"] = self._quality(console)
        write_figures(console, self.json, json.dumps(figures, indent=2))
        return 0

    def _validate(self) -> None:
        from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy

        require_some(self, "parts", "seeds")
        require_1_or_more(self, *POSITIVE)
        require_above_0(self, "learning_rate")
        for hierarchy in (*self.hierarchies, *self.text_hierarchies):
            parse_hierarchy(hierarchy)

    def _cost(self, console: Console) -> list[dict[str, Any]]:
        from ttm.training.bench.sequence.cost import CostSizes, measure_cost
        from ttm.training.bench.sequence.models import contenders
        from ttm.training.bench.sequence.report import cost_notes, cost_table

        sizes = CostSizes(
            self.width, self.ticks, self.batch, self.rounds, self.tick_blocks, self.device
        )
        choices = self._choices(self.chunk_sizes, self.hierarchies)
        rows = measure_cost(contenders(choices, self.width), sizes)
        console.print(cost_table(rows, sizes))
        console.print(cost_notes(rows[0], choices, sizes), soft_wrap=True)
        return [asdict(row) for row in rows]

    def _quality(self, console: Console) -> dict[str, Any]:
        from ttm.training.bench.sequence.models import contenders
        from ttm.training.bench.sequence.quality import Training, measure_quality, single_byte_bits
        from ttm.training.bench.sequence.report import quality_notes, quality_table

        sizes = self._text_sizes()
        training = Training(self.steps, self.learning_rate, self.seeds)
        models = contenders(
            self._choices(self.text_chunk_sizes, self.text_hierarchies), self.text_width
        )
        rows, single = measure_quality(models, sizes, training), single_byte_bits(sizes.ticks)
        console.print(quality_table(rows, training))
        console.print(quality_notes(rows[0].cost, sizes, training, single), soft_wrap=True)
        return {"single_byte_bits": single, "rows": [asdict(row) for row in rows]}

    def _text_sizes(self) -> CostSizes:
        from ttm.training.bench.sequence.cost import CostSizes

        return CostSizes(
            self.text_width, self.text_ticks, self.text_batch, self.rounds, 0, self.device
        )

    def _choices(self, chunk_sizes: tuple[int, ...], hierarchies: tuple[str, ...]) -> Choices:
        from ttm.training.bench.sequence.models import Choices

        return Choices(
            chunk_sizes=chunk_sizes,
            hierarchies=hierarchies,
            layers=self.layers,
            cross_every=self.cross_every,
            num_latents=self.num_latents,
            window=self.window,
        )
