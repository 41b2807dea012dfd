"""A model of sequences around a temporal core, cores of equal size, and the loop that trains them.

Studies and benches share it, so that what they compare differs in its memory only.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ttm.policy.config import SightName
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import sized_like, with_options
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.errors import UserError, require_choice


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

    @property
    def num_parameters(self) -> int:
        """The number of parameters of all parts."""
        return sum(parameter.numel() for parameter in self.parameters())


def ticks_seen(model: SequenceModel, symbols: Tensor) -> int:
    """Return how many ticks back the last scores for symbols (1, T) depend, by their gradient."""
    # In float32 a gradient through hundreds of ticks may underflow to 0.
    model = copy.deepcopy(model).double()
    embedded = model.embedding(symbols).detach().requires_grad_()
    last = model.scores(embedded)[0, -1]
    (gradient,) = torch.autograd.grad(last @ torch.randn_like(last), embedded)
    seen = gradient[0].abs().sum(dim=1) > 0  # (T,)
    return len(seen) - 1 - int(seen.int().argmax())


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


MLP_SIZE = "mlp_size"
"""The field that `with_parameters` chooses, unless it is named another."""


def has_free_size(config: CoreConfig, options: Sequence[str] = ()) -> bool:
    """Return whether the core has MLPs whose width none of the user's `options` sets."""
    given = {option.partition("=")[0] for option in options}
    return hasattr(config, MLP_SIZE) and MLP_SIZE not in given


def num_parameters(config: CoreConfig, width: int, num_inputs: int = 1) -> int:
    """Return the number of parameters of the core alone; width: D, num_inputs: N."""
    core = config.build(width, num_inputs)
    return sum(parameter.numel() for parameter in core.parameters())


def with_parameters(
    name: str,
    config: CoreConfig,
    wanted: int,
    width: int,
    num_inputs: int = 1,
    *,
    advice: str,
    field: str = MLP_SIZE,
) -> CoreConfig:
    """Return `config` with the width of its MLPs, or another field, for about `wanted` parameters.

    Raises `UserError`, which ends with `advice`, if the core called `name` is larger than that even
    with the narrowest MLPs. For width and num_inputs see `num_parameters`.
    """
    least = num_parameters(replace(config, **{field: 1}), width, num_inputs)
    # The number of parameters is linear in the width of the MLPs.
    each = num_parameters(replace(config, **{field: 2}), width, num_inputs) - least
    if least > wanted:
        raise UserError(
            f"core {name} has {least:,} parameters without its MLPs, more than the {wanted:,} that "
            f"all are to have; {advice}"
        )
    return replace(config, **{field: 1 + round((wanted - least) / each)})


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

    loss: called with the model and the tensors of a batch. learning_rate: Adam's, constant or as a
    function of the step, counted from 0. The caller may put the model into evaluation mode in between.
    """
    rate = learning_rate if callable(learning_rate) else lambda step: learning_rate
    if next(model.parameters()).device.type == "cpu":
        quicker_on_cpu(model)
    optimizer = torch.optim.Adam(model.parameters(), rate(0))
    batches, seconds, steps = iter(batches), 0.0, 0
    while True:
        begun, losses = time.perf_counter(), list[Tensor]()
        model.train()
        for batch in islice(batches, report_every):
            optimizer.param_groups[0]["lr"] = rate(steps)
            value = loss(model, *batch)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            steps += 1
            losses.append(value.detach())
        seconds += time.perf_counter() - begun
        if not losses:
            return
        values = [float(value) for value in losses]
        yield Progress(steps, values[-1], sum(values) / len(values), seconds)


def within(batches: Iterable[Samples], seconds: float) -> Iterator[Samples]:
    """Yield from `batches`, at least once, until the time since the first one is up."""
    end = time.perf_counter() + seconds
    for batch in batches:
        yield batch
        if time.perf_counter() >= end:
            return


def repeated(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Samples]:
    """Yield batches of the same samples without end, in a new order after each pass over them."""
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(len(samples[0]), generator=generator)])
        rows, order = order[:batch_size], order[batch_size:]
        yield tuple(part[rows] for part in samples)


KIND, TOKENS, CELLS = "sight", "sight_tokens", "sight_cells"
"""Options of a sight memory, which are no fields of a core."""
SIGHT_TOKENS = 6
"""Selectors where only the kind is given."""


@dataclass(frozen=True)
class SightSize:
    """The kind and the size of a sight memory."""

    tokens: int = 0
    """J, its selectors; 0 for no sight memory."""
    cells: int | None = None
    """Cells along each side of a frame; None for the checkpoint's, or else the default."""

    kind: SightName = "colours"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a `PolicyConfig`, and of `TrainOptions`, that it sets."""
        return {TOKENS: self.tokens, CELLS: self.cells, KIND: self.kind}

    @property
    def options(self) -> tuple[str, ...]:
        """The options that give it, each FIELD=VALUE."""
        given = {k: v for k, v in self.fields.items() if v not in (None, "colours")}
        return tuple(f"{k}={v}" for k, v in given.items()) if self.tokens else ()


NO_SIGHT = SightSize()


def split_sight(options: Sequence[str]) -> tuple[tuple[str, ...], SightSize]:
    """Return the options of the core, and the sight memory.

    options: each FIELD=VALUE, of which the last one of a name counts. Without `TOKENS` and `KIND` there is
    no sight memory. Raises `UserError` if a value is no whole number or no kind, or if there are 0 cells.
    """
    own, given = [], dict[str, int]()
    kind: Any = None
    for option in options:
        name, _, value = option.partition("=")
        if name == KIND:
            require_choice(KIND, value, get_args(SightName))
            kind = value
        elif name not in (TOKENS, CELLS):
            own.append(option)
        elif not value.isdecimal():
            raise UserError(f"{option} is no number; give a whole number, such as {name}=6")
        else:
            given[name] = int(value)
    if given.get(CELLS) == 0:
        raise UserError(f"{CELLS}=0: a frame has at least one cell; give a number such as 12 or 16")
    tokens = given.get(TOKENS, 0 if kind is None else SIGHT_TOKENS)
    if not tokens:
        return tuple(own), NO_SIGHT
    return tuple(own), SightSize(tokens, given.get(CELLS), kind or "colours")
