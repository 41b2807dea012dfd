"""What the studies share: sizes of those on symbols, the copying task, and how results are printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ttm.policy.cores.baselines import CausalTransformer, CausalTransformerConfig
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore
from ttm.policy.errors import UserError
from ttm.policy.layers import AttentionBlock, layer_norm, waves
from ttm.sim.results import Rate
from ttm.training.console import write_figures
from ttm.training.runtime import keep_freed_memory
from ttm.training.sequence_model import SequenceModel

SMALL_CORE = {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128}
"""Sizes of every core that has such fields, so that one CPU core trains it within minutes."""
HELD_OUT_SEED = 2**40
"""Seed of held-out sequences, which are the same for all trainings."""
NUM_DIGITS = 10  # to copy
HELD_OUT_COPIES = 200  # sequences of each length
BLANK, LARGEST, GO = 0, 8, 9  # an empty tick, the largest digit, the signal to repeat the digits


def prepare_process() -> None:
    """Set up this process for training on one CPU core, on whose number rounded sums depend a little."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # gradients over many ticks would take thrice as long


def seeded(seed: int) -> torch.Generator:
    """Return a generator of random numbers."""
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def predicted(model: SequenceModel, symbols: Tensor, batch_size: int) -> Tensor:
    """Return the class with the highest score at each tick, (B, T), for symbols (B, T)."""
    model.eval()
    return torch.cat([model(part).argmax(dim=2) for part in symbols.split(batch_size)])


def print_results(*parts: str | Table, figures: Any = None, json_path: Path | None = None) -> None:
    """Print notes and tables in this order; write `figures` to `json_path`, if it is not None.

    Raises `UserError` if the file cannot be written.
    """
    console = Console(highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), markup=False)
    write_figures(console, json_path, json.dumps(figures, indent=2))


def percent(rate: Rate, digits: int = 1) -> str:
    """Return a rate in per cent, with Wilson's interval in parentheses; "—" without episodes."""
    if not rate.episodes:
        return "—"
    rates = (f"{100 * each:.{digits}f}" for each in (rate.rate, *rate.interval))
    return "{} ({} to {})".format(*rates)


def p_text(p_value: float) -> str:
    """Return a p value with three digits."""
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def require_svg(plot: Path | None) -> None:
    """Raise `UserError` if `--plot` is no name of an SVG file."""
    if plot is not None and plot.suffix != ".svg":
        raise UserError(f"--plot is {plot}; give a file that ends with .svg")


def copy_sequences(count: int, blanks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` (B) sequences of the copying task (Hochreiter & Schmidhuber 1997) with T = `blanks`.

    Returns the symbols (B, T + 21): ten digits from 1 to 8, T zeros, a 9 and ten zeros, at which the
    digits are to be repeated; and the digits (B, 10), both int64. By chance 1 of 8 digits is right.
    """
    digits = torch.randint(1, LARGEST + 1, (count, NUM_DIGITS), generator=generator)
    symbols = digits.new_full((count, 2 * NUM_DIGITS + blanks + 1), BLANK)
    symbols[:, :NUM_DIGITS] = digits
    symbols[:, NUM_DIGITS + blanks] = GO
    return symbols, digits


def copy_accuracy(
    model: SequenceModel, symbols: Tensor, digits: Tensor, batch_size: int
) -> tuple[float, float]:
    """Return the portions of digits and of whole sequences that the model repeats correctly."""
    right = predicted(model, symbols, batch_size)[:, -NUM_DIGITS:] == digits
    return right.double().mean().item(), right.all(dim=1).double().mean().item()


@dataclass(frozen=True)
class PlainTransformerConfig(CausalTransformerConfig):
    """The sizes of the Transformer; `window` has no effect."""

    def build(self, width: int, num_inputs: int) -> PlainTransformer:
        return PlainTransformer(width, num_inputs, self)


class PlainTransformer(CausalTransformer):
    """Tokens attend to all ticks before them: the cache of keys and values grows with every tick."""

    def initial_state(self, batch_size: int) -> CoreState:
        return self.empty_cache(batch_size)

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; the new state is T ticks longer."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        return self.extend(tokens, state, episode_start)


@dataclass(frozen=True)
class FeedbackConfig(SequenceConfig):
    """The sizes of the Feedback Transformer."""

    num_layers: int = 2
    num_heads: int = 4
    mlp_size: int = 128

    def build(self, width: int, num_inputs: int) -> FeedbackTransformer:
        return FeedbackTransformer(width, num_inputs, self)


class FeedbackTransformer(SequenceCore):
    """All layers attend to one memory of each tick before, a learned mean of all layers (Fan et al. 2020).

    The layers share its keys and values. Positions are sines and cosines, which are added to the inputs.
    The state, "memory", (B, 1 + ticks, 2 D), keys and values, begins with learned ones and grows.
    """

    def __init__(self, width: int, num_inputs: int, config: FeedbackConfig) -> None:
        super().__init__(width, num_inputs, config)
        sizes = config.num_heads, config.mlp_size
        self.blocks: Any = nn.ModuleList(
            AttentionBlock(width, *sizes) for _ in range(config.num_layers)
        )
        self.mixture = nn.Parameter(torch.zeros(config.num_layers + 1))
        self.start = nn.Parameter(torch.randn(width))
        self.norm = layer_norm(width)

    def initial_state(self, batch_size: int) -> CoreState:
        first = torch.cat(self.blocks[0].keys_values(self.start))
        return {"memory": first.expand(batch_size, 1, -1)}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; no episode may start within the window."""
        assert episode_start is None
        memory = (state or self.initial_state(len(tokens)))["memory"]
        place = torch.arange(tokens.shape[1]) + (memory.shape[1] - 1) // self.num_outputs
        position = torch.cat(waves(place, tokens.shape[-1]), 1)[:, None]
        inputs = self.read_all(tokens) + position.float()
        outputs, weights = [], self.mixture.softmax(dim=0)
        for x in inputs.unbind(dim=1):
            keys, values = memory.chunk(2, dim=-1)
            levels = [x]  # each (B, r, D)
            for block in self.blocks:
                levels.append(block(levels[-1], keys, values))
            mean = sum(weight * level for weight, level in zip(weights, levels, strict=True))
            new = torch.cat(self.blocks[0].keys_values(mean), dim=-1)
            memory = torch.cat([memory, new], dim=1)
            outputs.append(self.norm(levels[-1]))
        return torch.stack(outputs, dim=1), {"memory": memory}
