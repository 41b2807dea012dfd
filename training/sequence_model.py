"""A model of sequences around a temporal core, cores of equal size, and the loop that trains them.

Studies and benches share it, so that what they compare differs in its memory only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_name, sized_like, with_options
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.errors import UserError


class SequenceModel(nn.Module):
    """An embedding, a core with one input token per tick, and a linear layer on its mean output.

    The embedding has values of order 1, which the Temporal Latent Bottleneck needs to learn copying.
    """

    def __init__(self, config: CoreConfig, num_symbols: int, num_classes: int, width: int) -> None:
        """width: D, of the embedding and of the core."""
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, width)
        self.core = config.build(width, num_inputs=1)
        self.head = nn.Linear(width, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """Return the scores (B, T, classes) of the symbols (B, T) int64."""
        return self.scores(self.embedding(symbols))

    def scores(self, embedded: Tensor) -> Tensor:
        """Return the scores (B, T, classes) of embedded symbols (B, T, D)."""
        outputs, _ = self.core(embedded.unsqueeze(2))  # (B, T, R, D)
        scores: Tensor = self.head(outputs.mean(dim=2))
        return scores

    def loss(self, symbols: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats, of the last ticks with the classes `targets`.

        symbols: (B, T). targets: (B, t), of the last t ticks.
        """
        scores = self(symbols)[:, -targets.shape[1] :]
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    @property
    def num_parameters(self) -> int:
        """The number of parameters of all parts."""
        return sum(parameter.numel() for parameter in self.parameters())


def study_core(
    name: str,
    common: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]],
    options: Sequence[str] = (),
) -> CoreConfig:
    """Return the configuration of the core called `name` at the sizes of a study.

    A field takes the last value that it has in: the core's defaults, `common` (where the core has
    such a field), `own[name]`, and `options`, which the user gave, each "field=value". Raises
    `UserError` if a name, a field or a value is wrong.
    """
    config = sized_like(name, TokenTuringConfig())
    has = {field.name for field in fields(config)}
    values = {field: value for field, value in common.items() if field in has}
    try:
        return with_options(replace(config, **{**values, **own.get(name, {})}), options)
    except UserError as error:
        raise UserError(f"core {name}: {error}") from error


SHORTENED = {
    "hierarchy": "1@1 1@2 1@1",
    "pooling": "average",
    "upsampling": "linear",
    "position": "rotary",
}
"""A small Hourglass, for studies."""

TOLERANCE = 0.02
"""How far numbers of parameters may be apart that count as equal, as a portion of them."""


def num_parameters(config: CoreConfig, width: int, num_inputs: int = 1) -> int:
    """Return the number of parameters of the core alone; width: D, num_inputs: N."""
    core = config.build(width, num_inputs)
    return sum(parameter.numel() for parameter in core.parameters())


def with_parameters(
    config: CoreConfig,
    wanted: int,
    width: int,
    num_inputs: int = 1,
    *,
    advice: str,
    options: Sequence[str] = (),
    field: str = "mlp_size",
) -> CoreConfig:
    """Return `config` with the width of its MLPs, or another field, for about `wanted` parameters.

    A core without such a field, or with one among the user's `options`, each "field=value", stays as it
    is. Raises `UserError`, which ends with `advice`, if the core is larger than that even with the
    narrowest MLPs. For width and num_inputs see `num_parameters`.
    """
    if not hasattr(config, field) or any(each.startswith(f"{field}=") for each in options):
        return config
    least = num_parameters(replace(config, **{field: 1}), width, num_inputs)
    # The number of parameters is linear in the width of the MLPs.
    each = num_parameters(replace(config, **{field: 2}), width, num_inputs) - least
    if least > wanted:
        raise UserError(
            f"core {core_name(config)} has {least:,} parameters even with {field}=1, more than the "
            f"{wanted:,} that all are to have; {advice}"
        )
    return replace(config, **{field: 1 + round((wanted - least) / each)})


def lstm_with_parameters(
    config: CoreConfig, wanted: int, width: int, num_inputs: int, *, advice: str
) -> CoreConfig:
    """Return `config`, of an LSTM, with as many layers as fit into about `wanted` parameters.

    If that leaves a gap, its summary of the inputs becomes wider. See `with_parameters`.
    """
    sizes, depth, layers = (width, num_inputs), "num_layers", 1
    most = (1 + TOLERANCE) * wanted
    while num_parameters(replace(config, **{depth: layers + 1}), *sizes) <= most:
        layers += 1
    config = replace(config, **{depth: layers})
    if abs(num_parameters(config, *sizes) - wanted) <= TOLERANCE * wanted:
        return config
    return with_parameters(config, wanted, *sizes, advice=advice, field="bottleneck")


MAX_GRADIENT_NORM = 1.0

Samples = tuple[Tensor, ...]
"""Tensors of the same first dimension, one row for each sample; the arguments of a loss."""


@dataclass(frozen=True)
class Progress:
    """The state of a training after some steps."""

    steps: int
    loss: float
    """Loss of the newest batch."""
    mean_loss: float
    """Mean loss of the batches since the last report."""
    seconds: float
    """Time of training so far, without what the caller did between two reports."""


def fit(
    model: nn.Module,
    batches: Iterable[Samples],
    loss: Callable[..., Tensor],
    *,
    learning_rate: float | Callable[[int], float],
    report_every: int = 50,
) -> Iterator[Progress]:
    """Train on `batches`; yield every `report_every` steps and at the end.

    loss: called with the model and the tensors of a batch. learning_rate: Adam's, or a function of the
    step, from 0. The model may be in evaluation mode in between. Raises `UserError` at NaN or infinity.
    """
    rate = learning_rate if callable(learning_rate) else lambda step: learning_rate
    if next(model.parameters()).device.type == "cpu":
        quicker_on_cpu(model)
    optimizer = torch.optim.Adam(model.parameters(), rate(0))
    batches, seconds, steps = iter(batches), 0.0, 0
    while True:
        begun, found = time.perf_counter(), list[Tensor]()
        model.train()
        for batch in islice(batches, report_every):
            optimizer.param_groups[0]["lr"] = rate(steps)
            value = loss(model, *batch)
            optimizer.zero_grad()
            value.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            steps += 1
            found.append(torch.stack([value.detach(), norm]))
        seconds += time.perf_counter() - begun
        if not found:
            return
        if len(bad := (~torch.stack(found).isfinite()).any(dim=1).nonzero()):
            where = f"loss or gradient is not finite in step {steps - len(found) + int(bad[0]) + 1}"
            raise UserError(f"{where}; give the core other options, or a lower learning rate")
        losses = [float(value) for value, _ in found]
        yield Progress(steps, losses[-1], sum(losses) / len(losses), seconds)


def split_sight(options: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the options of the core, and the slots of the sight memory, 0 for none.

    options: each FIELD=VALUE, of which the last one of a name counts; `sight_tokens` is the memory's.
    Raises `UserError` if its value is no whole number.
    """
    own, slots = [], "0"
    for option in options:
        name, _, value = option.partition("=")
        if name == "sight_tokens":
            slots = value
        else:
            own.append(option)
    if not slots.isdecimal():
        raise UserError(f"sight_tokens={slots} is no number; give a whole number, such as 6")
    return tuple(own), int(slots)
