"""How well the models predict a text after equal trainings: bits for each byte that was held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.training.bench.sequence.cost import CostRow, CostSizes, measure_cost
from ttm.training.bench.sequence.models import Contender
from ttm.training.bench.sequence.python_help import (
    SYMBOLS,
    all_windows,
    help_text,
    random_windows,
    split_text,
)
from ttm.training.common.fit import fit
from ttm.training.common.progress import print_progress
from ttm.training.common.sequence_model import SequenceModel

EVALUATED_AT_ONCE = 32
"""Number of windows in a batch of the evaluation; results do not depend on it."""


@dataclass(frozen=True)
class Training:
    """The training, which is the same for all models."""

    steps: int
    learning_rate: float
    seeds: Sequence[int]


@dataclass(frozen=True)
class QualityRow:
    """One model, trained once for each seed."""

    cost: CostRow
    """The cost of a pass at the sizes of the training."""
    bits: list[float]
    """Bits for each held-out byte, by seed. Every window begins with an empty memory."""


def measure_quality(
    models: Sequence[Contender], sizes: CostSizes, training: Training
) -> list[QualityRow]:
    """Measure the cost of all models, and train them. sizes: of the batches of the training."""
    costs = measure_cost(models, sizes)
    text, held_out = split_text(help_text())
    rows = []
    for model, cost in zip(models, costs, strict=True):
        bits = [_train(model, text, held_out, sizes, training, seed) for seed in training.seeds]
        rows.append(QualityRow(cost, bits))
    return rows


def single_byte_bits(ticks: int) -> float:
    """Return the bits for each held-out byte by the frequencies of single bytes.

    This is the baseline that any memory must beat.
    """
    text, held_out = split_text(help_text())
    counts = torch.bincount(text, minlength=SYMBOLS) + 1.0  # so that no byte is impossible
    scores = (counts / counts.sum()).log()
    _, following = all_windows(held_out, ticks)
    return float(-scores[following].mean() / math.log(2))


def _train(
    model: Contender,
    text: Tensor,
    held_out: Tensor,
    sizes: CostSizes,
    training: Training,
    seed: int,
) -> float:
    """Train one model, and return its bits for each held-out byte."""
    torch.manual_seed(seed)
    network = SequenceModel(model.config, SYMBOLS, SYMBOLS, sizes.width).to(sizes.device)
    batches = random_windows(text, sizes.ticks, sizes.batch, training.steps, seed)
    moved = ((symbols.to(sizes.device), next_.to(sizes.device)) for symbols, next_ in batches)
    *_, last = fit(
        network, moved, _loss, learning_rate=training.learning_rate, report_every=training.steps
    )
    bits = bits_per_byte(network, held_out, sizes.ticks)
    print_progress(
        f"quality: {model.name}, seed {seed}: {bits:.3f} bits after {last.seconds:.0f} s"
    )
    return bits


@torch.no_grad()
def bits_per_byte(network: nn.Module, text: Tensor, ticks: int) -> float:
    """Return the mean over all windows of `ticks` bytes of `text`."""
    network.eval()
    symbols, following = all_windows(text, ticks)
    device = next(network.parameters()).device
    parts = zip(symbols.split(EVALUATED_AT_ONCE), following.split(EVALUATED_AT_ONCE), strict=True)
    total = sum(float(_loss(network, s.to(device), f.to(device))) * s.numel() for s, f in parts)
    return total / symbols.numel() / math.log(2)


def _loss(network: nn.Module, symbols: Tensor, following: Tensor) -> Tensor:
    """Return the mean negative log likelihood of `following`, in nats. symbols, following: (B, T)."""
    return F.cross_entropy(network(symbols).flatten(0, 1), following.flatten())
