"""The cores that are timed, each with an LSTM of as many weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttm.policy.cores.configs import sized_like, with_options
from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.network.sight import SightMemory
from ttm.training.bench.torch_counter import counted_step
from ttm.training.common.sight_option import NO_SIGHT, SightSize, split_sight

LSTM = "lstm"
TOLERANCE = 0.02
"""The largest relative difference between the weights of a core and of its LSTM."""


@dataclass(frozen=True)
class Contender:
    """A core with its options, as text."""

    name: str
    options: tuple[str, ...]
    parameters: int
    """Number of weights of the core and the sight memory."""
    multiply_adds: int
    """Multiply-adds of the matrix products of one tick of the core, forward."""
    sight: SightSize = NO_SIGHT
    trains_vision: bool = False
    """Whether the step trains vision too, from frames instead of features."""

    @property
    def label(self) -> str:
        """Name and options, as the user gives them."""
        core = " ".join((self.name, *self.options, *self.sight.options))
        return f"{core} (vision trained, no recall loss)" if self.trains_vision else core


def parsed(cores: Sequence[str], policy: Policy) -> list[Contender]:
    """Return the cores that the texts name, at the sizes that they get in `policy`.

    Raises `UserError` if there is no such core, or it has no such options.
    """
    found = []
    for text in cores:
        name, *options = text.split() or [""]
        found.append(contender(name, tuple(options), policy))
    return found


def contender(name: str, options: tuple[str, ...], policy: Policy) -> Contender:
    """Return a core with its size in `policy`, counted without making its weights.

    options: of the core, each FIELD=VALUE, and perhaps the size of a sight memory.
    """
    config = policy.config
    of_core, size = split_sight(options)
    core = with_options(sized_like(name, config.core), of_core)
    tokens, weights = policy.num_encoded, 0
    if size.tokens:
        sight = SightMemory(config.width, size.tokens)
        tokens += sight.num_tokens
        weights = sum(parameter.numel() for parameter in sight.parameters())
    counted = counted_step(core, config.width, tokens)
    return Contender(name, of_core, counted.parameters + weights, counted.multiply_adds, size)


def equal_lstm(core: Contender, policy: Policy) -> Contender:
    """Return an LSTM with as many weights and as many output tokens as `core`.

    It has as many layers as fit, and if that leaves a gap, a wider summary of its inputs. Raises
    `UserError` if no LSTM has as many weights.
    """
    outputs = [option for option in core.options if option.startswith("process_size=")]

    def lstm(layers: int, *more: str) -> Contender:
        return contender(LSTM, (*outputs, f"num_layers={layers}", *more), policy)

    layers = 1
    while lstm(layers + 1).parameters <= core.parameters * (1 + TOLERANCE):
        layers += 1
    found = lstm(layers)
    if not _equal(found, core):
        widths = [lstm(layers, f"bottleneck={width}").parameters for width in (1, 2)]
        width = 1 + round((core.parameters - widths[0]) / (widths[1] - widths[0]))
        found = lstm(layers, f"bottleneck={max(width, 1)}")
    if not _equal(found, core):
        raise UserError(
            f"core {core.label} has {core.parameters:,} weights, fewer than an LSTM of width "
            f"{policy.config.width} can have; give a larger core"
        )
    return found


def _equal(one: Contender, other: Contender) -> bool:
    return abs(one.parameters - other.parameters) <= TOLERANCE * other.parameters
