"""`ttm bench drift`: whether a memory drifts in episodes that are much longer than those trained on.

Recorded episodes are laid end to end, as chains. At each seam between two of them the instruction
changes. With the memory kept, it continues over the seam, as by `PolicyRunner.reset(instruction,
keep_memory=True)`, and so does the previous action. What changes with the tick number is then the age
of the memory. As a control, the same ticks run with the memory reset at every seam. Previous actions
are those of the demonstrator, as in validation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain as joined
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.dataset import VectorStatistics, dataset_statistics
from ttm.datasets.windows import WindowDataset, policy_inputs
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.core import reset_where
from ttm.policy.errors import UserError, options, require_at_least, require_some
from ttm.policy.inputs import FeatureMaps
from ttm.policy.policy import PREVIOUS_ACTION, Policy
from ttm.policy.spec import checkpoint_path
from ttm.sim.workers import usable_cores
from ttm.training.bench.common import BenchCommand, Cell, Figures, Report, rows_table
from ttm.training.data import open_all, split
from ttm.training.validation import squared_errors

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]

SEED = 0
"""Of the order of the episodes, the same for all checkpoints, and of the resampling."""
TICKS_AT_ONCE = 32
"""Ticks that pass through the vision at once. This limits its use of memory; results do not depend on it."""
RESAMPLINGS = 2000
EARLY_TICKS, LATE_TICKS = 20, 100
"""The ticks that are compared: the last ones of a chain, and the first ones at which all chains have left
their first episode. These are the same tick numbers in all chains, so that both sets of ticks lie
anywhere in their episodes."""
NEGLIGIBLE = 1.1
"""Growth by less than this factor, with confidence, is no drift."""


class Stretch(NamedTuple):
    """The ticks of an episode from `first` to `stop` (exclusive)."""

    episode: int
    first: int
    stop: int


Chain = list[Stretch]


def lay_chains(lengths: list[int], count: int, ticks: int) -> list[Chain]:
    """Return `count` chains of `ticks` ticks over episodes of `lengths` ticks.

    Each chain depends on its number alone. A chain enters its first episode at a random tick,
    so that every tick number meets the same mixture of situations.
    """
    chains = []
    for number in range(count):
        rng = np.random.default_rng([SEED, number])
        entry, ends = int(rng.integers(sum(lengths))), np.cumsum(lengths)  # of the whole data set
        first = int(np.searchsorted(ends, entry, side="right"))
        chain = [Stretch(first, entry - int(ends[first]) + lengths[first], lengths[first])]
        orders = (rng.permutation(len(lengths)).tolist() for _ in range(ticks))
        episodes = joined.from_iterable(orders)
        while (missing := ticks - sum(s.stop - s.first for s in chain)) > 0:
            episode = next(episodes)
            chain.append(Stretch(episode, 0, lengths[episode]))
        chains.append([*chain[:-1], chain[-1]._replace(stop=chain[-1].stop + missing)])
    return chains


def seams(chain: Chain) -> Bools:
    """Return, for each tick (T,), whether it is the first tick of an episode, except for the chain's own."""
    ends = np.cumsum([stretch.stop - stretch.first for stretch in chain])
    found = np.zeros(ends[-1], bool)
    found[ends[:-1]] = True
    return found


class ChainRun(NamedTuple):
    """C chains of T ticks, run in one way."""

    norms: Floats
    """(C, T): mean Euclidean norm of the tokens of the memory after the tick."""
    errors: Floats
    """(C, T): mean over action dimensions of the squared normalised error; see `squared_errors`."""


class DriftRuns(NamedTuple):
    """The same ticks with the memory kept over the seams, and with it reset there, as in use."""

    kept: ChainRun
    control: ChainRun
    seams: Bools
    """(C, T): True at the first tick of every episode but the first of the chain."""


def run_chains(
    policy: Policy, episodes: WindowDataset, statistics: VectorStatistics, chains: list[Chain]
) -> DriftRuns:
    """Run `policy`, in evaluation mode, over `chains`.

    episodes: one window for each whole episode. statistics: of the actions; their standard deviations
    are the unit of the errors.
    """
    needed = {stretch.episode for chain in chains for stretch in chain}
    encoded = {number: encode(policy, episodes, number) for number in needed}

    def along(chain: Chain, name: str) -> Tensor:
        return torch.cat([encoded[s.episode][name][s.first : s.stop] for s in chain])

    names = next(iter(encoded.values()))
    inputs = {name: torch.stack([along(c, name) for c in chains]) for name in names}  # (C, T, ...)
    reset = np.stack([seams(chain) for chain in chains])
    actions = inputs["actions"]

    def run(tokens: Tensor, reset: Bools) -> ChainRun:
        norms, predicted = run_core(policy, {**inputs, "tokens": tokens}, torch.from_numpy(reset))
        alike = policy.relative.nearest(predicted, actions)
        return ChainRun(norms, squared_errors(alike.numpy(), actions.numpy(), statistics.std))

    continued = inputs["tokens"].clone()
    for tokens, chain in zip(continued, chains, strict=True):
        carry_actions(policy, episodes, chain, tokens)
    return DriftRuns(run(continued, np.zeros_like(reset)), run(inputs["tokens"], reset), reset)


@torch.no_grad()
def encode(policy: Policy, episodes: WindowDataset, number: int) -> dict[str, Tensor]:
    """Return the inputs of the core for an episode of T ticks, (T, ...) each, by name.

    tokens: (N, D) a tick, without those of the sight memory. cells: (C, CELLS, CELLS), what that sees,
    if there is one. Proprioception, by its own names. actions: the demonstrator's.
    """
    length, batch = episodes.episode_lengths[number], episodes.gather([number])
    inputs = policy_inputs(batch)
    starts = range(0, length, TICKS_AT_ONCE)
    parts = (inputs.at_ticks(slice(start, min(start + TICKS_AT_ONCE, length))) for start in starts)
    found = {"tokens": torch.cat([policy.encode(part)[0] for part in parts])}
    if (cells := policy.cells(inputs)) is not None:
        found["cells"] = cells.maps[:length]
    for name, values in inputs.proprioception.items():
        found[f"measured {name}"] = values[0, :length]
    return {**found, "actions": batch["actions"][0, :length]}


@torch.no_grad()
def carry_actions(policy: Policy, episodes: WindowDataset, chain: Chain, tokens: Tensor) -> None:
    """Put the last action of each episode into the first tick of the next one, as its previous action.

    tokens: (T, N, D) of the chain, which are changed.
    """
    where = policy.token_sources[PREVIOUS_ACTION]
    for before, tick in zip(chain, np.flatnonzero(seams(chain)), strict=False):
        executed = torch.from_numpy(episodes.episodes[before.episode].executed_actions[-1])
        normalized = policy.normalizer.normalize_executed(executed.to(tokens)[None, None])
        tokens[tick, where] = policy.action_token(normalized, None)[0, 0]  # of (1, 1, 1, D)


@torch.no_grad()
def run_core(policy: Policy, inputs: Mapping[str, Tensor], reset: Tensor) -> tuple[Floats, Tensor]:
    """Run the sight memory, the core and the action head over C chains of T ticks.

    inputs: as of `encode`, (C, T, ...) each. reset: (C, T) bool, whether the state is reset before the
    tick.

    Returns the norms of the memory, (C, T), and the actions, (C, T, A).
    """
    tokens, cells = inputs["tokens"], inputs.get("cells")
    state = initial = policy.initial_state(len(tokens))
    norms, actions = [], []
    chain = torch.arange(len(tokens)).unsqueeze(1)
    for tick in range(tokens.shape[1]):
        state = reset_where(reset[:, tick], state, initial)
        seen = None if cells is None else FeatureMaps(cells[:, tick], chain)
        raw, state = policy.step_encoded(tokens[:, tick, None], seen, state)
        norms.append(policy.core.memory_norms(state).mean(dim=1))
        names = (vector.name for vector in policy.spec.proprioception)
        measured = {name: inputs[f"measured {name}"][:, tick, None] for name in names}
        actions.append(policy.decode(raw, measured))
    return torch.stack(norms, dim=1).numpy(), torch.cat(actions, dim=1)


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Floats) -> Estimate:
        """Return the first sample, that of the chains themselves, with the interval of the others."""
        return cls(float(samples[0]), *np.quantile(samples[1:], [0.025, 0.975]).tolist())

    def __str__(self) -> str:
        digits = ".2f" if self.high < 100 else ".3g"
        return f"{self.value:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


@dataclass(frozen=True)
class DriftSummary:
    """How the errors of one policy and the norm of its memory change as the memory ages.

    Intervals are those of resampled chains (bootstrap, Efron 1979).
    """

    kept: list[Figures]
    control: list[Figures]
    """Successive ticks of all chains, from `first` to `stop` (exclusive): mean `norm` of the tokens of the
    memory, `error` (root mean square, in standard deviations of the actions), and their standard errors."""
    drift: Estimate
    """Error in the last ticks over that in the first ones after the first episode, with the memory kept,
    over the same ratio with it reset: 1 if an old memory is as good as a young one."""
    norm_growth: Estimate
    """The ratio of the norms of the memory at the same ticks, with the memory kept."""
    cost: Estimate
    """After the first episode: the error with the memory kept over that with it reset, at any age."""

    @property
    def verdict(self) -> str:
        """Whether the memory drifts, in a word.

        A memory whose norm grows drifts, even if the actions are still unaffected, or are lost already.
        Values that are no longer numbers are drift, too.
        """
        if not self.norm_growth.low <= NEGLIGIBLE:
            return "drifts"
        if self.drift.high < NEGLIGIBLE:
            return "holds"
        return "undecided (take more --chains)" if self.drift.low <= 1 else "drifts"

    def in_words(self) -> str:
        """Return the verdict and the ratios behind it in one line."""
        return (
            f"{self.verdict}: error of the last {LATE_TICKS} ticks {self.drift} times that of the first "
            f"{EARLY_TICKS} after the first episode, against the control; norm {self.norm_growth} times"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with None in place of infinity and NaN, which JSON does not have."""
        text = json.dumps({"verdict": self.verdict, **asdict(self)})
        plain: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
        return plain


def summarize(runs: DriftRuns, bin_ticks: int) -> DriftSummary:
    """Summarise runs in bins of `bin_ticks` ticks. Raises `UserError` for chains too short to compare."""
    chains, ticks = runs.seams.shape
    # Ticks at which all chains have left their first episode.
    after_first = int((runs.seams.cumsum(axis=1) > 0).all(axis=0).sum())
    compared = EARLY_TICKS + LATE_TICKS
    if after_first < compared:
        raise UserError(
            f"of {ticks} ticks, {after_first} are left when all chains have left their first episode, "
            f"and {compared} are compared; give {ticks - after_first + compared} --ticks or more"
        )
    begin = ticks - after_first
    drawn = np.random.default_rng(SEED).integers(chains, size=(RESAMPLINGS, chains))
    chosen = np.concatenate([np.arange(chains)[None], drawn])

    def means(values: Floats, first: int, stop: int) -> Floats:
        """Return the mean of (C, T) at these ticks over all chains, and over each resampling of them."""
        return np.asarray(values[:, first:stop].mean(axis=1)[chosen].mean(axis=1))

    def growth(values: Floats) -> Floats:
        return means(values, ticks - LATE_TICKS, ticks) / means(values, begin, begin + EARLY_TICKS)

    def bins(run: ChainRun) -> list[Figures]:
        found: list[Figures] = []
        for first in range(0, ticks, bin_ticks):
            stop = min(first + bin_ticks, ticks)
            row: Figures = {"first": first, "stop": stop}
            norm, error = means(run.norms, first, stop), np.sqrt(means(run.errors, first, stop))
            for name, samples in (("norm", norm), ("error", error)):
                row |= {name: float(samples[0]), f"{name}_deviation": float(samples[1:].std())}
            found.append(row)
        return found

    kept, control = runs.kept, runs.control
    cost = means(kept.errors, begin, ticks) / means(control.errors, begin, ticks)
    return DriftSummary(
        kept=bins(kept),
        control=bins(control),
        drift=Estimate.of(np.sqrt(growth(kept.errors) / growth(control.errors))),
        norm_growth=Estimate.of(growth(kept.norms)),
        cost=Estimate.of(np.sqrt(cost)),
    )


@dataclass(frozen=True, kw_only=True)
class BenchDriftCommand(BenchCommand):
    """Measure whether a memory drifts in episodes that are much longer than those trained on.

    Lays recorded episodes end to end, as chains of --ticks ticks. The memory continues from one episode
    to the next while the instruction changes, so that ticks differ in the age of the memory alone. For
    comparison, the same ticks run with the memory reset at the start of every episode, as in use. Prints
    a table and a verdict.
    """

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes."""
    checkpoint: tuple[Path, ...] = (Path("shipped"),)
    """One or more checkpoints; `shipped` is the policy that comes with the project."""
    ticks: int = 300
    """Length of a chain."""
    chains: int = 64
    """Number of chains; more of them make the intervals narrower."""
    bin: int = 20
    """Ticks in one row of the table."""
    filter: str = "valid"
    """The mask of the episodes. Where there are no masks, every tenth episode is "valid"."""

    def measure(self, report: Report) -> None:
        """Measure the checkpoints one after the other."""
        require_at_least(1, options(self, "ticks", "chains", "bin"))
        require_some(options(self, "checkpoint"))
        torch.set_num_threads(usable_cores())
        report.figures |= {"data": self.data, "ticks": self.ticks, "chains": self.chains}
        report.figures["checkpoints"] = {}
        for checkpoint in self.checkpoint:
            summary = self._summary(checkpoint_path(checkpoint))
            report.figures["checkpoints"][str(checkpoint)] = summary.to_json()
            print_drift(report, str(checkpoint), summary)

    def _summary(self, path: Path) -> DriftSummary:
        """Load one checkpoint and run it over the chains. Raises `UserError` if the data does not fit it."""
        policy, _ = load_checkpoint(path)
        opened = open_all(self.data, like=policy.spec)
        sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
        episodes = split(opened, self.filter)
        policy.spec.require_robot(episodes.spec, ours=str(path), theirs=episodes.source)
        if not len(episodes):
            raise UserError(
                f"{episodes.source}: no episode is in mask '{self.filter}'; give another --filter"
            )
        longest = max(episode.num_samples for episode in episodes)
        windows = WindowDataset(episodes, longest, pad="none", resize_to=sizes)
        actions = dataset_statistics(joined.from_iterable(opened)).actions
        chains = lay_chains(windows.episode_lengths, self.chains, self.ticks)
        return summarize(run_chains(policy, windows, actions, chains), self.bin)


def print_drift(report: Report, name: str, summary: DriftSummary) -> None:
    """Print errors and norms by tick number, the verdict, and the cost of keeping the memory."""
    columns: dict[str, Cell] = {
        "ticks": lambda row: f"{row['first']} to {row['stop'] - 1}",
        "error": "{error:.3f} ± {error_deviation:.3f}",
        "error,\nmemory reset": "{control[error]:.3f} ± {control[error_deviation]:.3f}",
        "norm": "{norm:.2f}",
        "norm,\nmemory reset": "{control[norm]:.2f}",
    }
    both = zip(summary.kept, summary.control, strict=True)
    title = f"{name}: normalised action error, and norm of the tokens of the memory"
    report.table(
        rows_table(title, columns, [{**kept, "control": control} for kept, control in both]),
        f"{name} {summary.in_words()}\n"
        f"{name}: a memory kept over seams costs {summary.cost} times the error",
    )
