"""Measure the drift of every checkpoint that the options name; print tables, write a chart and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain as joined
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from ttm.datasets.dataset import VectorStatistics, dataset_statistics
from ttm.datasets.windows import WindowDataset, resized_spec
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.core import reset_where
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.files import write_json
from ttm.policy.inputs import FeatureMaps
from ttm.policy.policy import PREVIOUS_ACTION, Policy
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.sim.workers import usable_cores
from ttm.training.bench.common import Report, rows_table
from ttm.training.data import open_all, policy_inputs, split
from ttm.training.validation import squared_errors

# 95 % intervals by resampling the chains (bootstrap, Efron 1979).

Floats = npt.NDArray[np.floating]
RESAMPLINGS = 2000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = ".2f" if self.high < 100 else ".3g"
        return f"{self.value:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


class Resampled:
    """Means over the chains, and over equally many chains drawn from them with replacement, repeatedly."""

    def __init__(self, chains: int, seed: int) -> None:
        drawn = np.random.default_rng(seed).integers(chains, size=(RESAMPLINGS, chains))
        self._chains = np.concatenate([np.arange(chains)[None], drawn])

    def means(self, values: Floats) -> Floats:
        """values: (C,) -> (1 + RESAMPLINGS,); the first mean is that of the chains themselves."""
        means: Floats = values[self._chains].mean(axis=1)
        return means


def estimate(samples: Floats) -> Estimate:
    """Return the first of `samples` with the interval of the others.

    samples: (1 + RESAMPLINGS,), a function of what `Resampled.means` returns.
    """
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return Estimate(float(samples[0]), float(low), float(high))


# Recorded episodes laid end to end, as chains that are much longer than the episodes.

Bools = npt.NDArray[np.bool_]


class Stretch(NamedTuple):
    """The ticks of an episode from `first` to `stop` (exclusive)."""

    episode: int
    first: int
    stop: int

    @property
    def num_ticks(self) -> int:
        """The number of ticks."""
        return self.stop - self.first


Chain = list[Stretch]


def lay_chains(lengths: list[int], count: int, ticks: int, seed: int) -> list[Chain]:
    """Return `count` chains of `ticks` ticks over episodes of `lengths` ticks.

    Each chain depends on (seed, its number) alone. A chain enters its first episode at a random tick,
    so that every tick number meets the same mixture of situations.
    """
    return [
        _lay_chain(lengths, ticks, np.random.default_rng([seed, number])) for number in range(count)
    ]


def seams(chain: Chain) -> Bools:
    """Return, for each tick (T,), whether it is the first tick of an episode, except for the chain's own."""
    ends = np.cumsum([stretch.num_ticks for stretch in chain])
    found = np.zeros(ends[-1], bool)
    found[ends[:-1]] = True
    return found


def _lay_chain(lengths: list[int], ticks: int, rng: np.random.Generator) -> Chain:
    entry = int(rng.integers(sum(lengths)))  # a tick of the whole data set
    ends = np.cumsum(lengths)
    first = int(np.searchsorted(ends, entry, side="right"))
    chain = [Stretch(first, entry - int(ends[first]) + lengths[first], lengths[first])]
    for episode in joined.from_iterable(
        rng.permutation(len(lengths)).tolist() for _ in range(ticks)
    ):
        missing = ticks - sum(stretch.num_ticks for stretch in chain)
        if missing <= 0:
            return [*chain[:-1], chain[-1]._replace(stop=chain[-1].stop + missing)]
        chain.append(Stretch(episode, 0, lengths[episode]))
    raise AssertionError  # every episode has a tick


# Run a policy over chains of recorded episodes, with and without a reset of the memory between episodes.
#
# At each seam between two episodes the instruction changes. With the memory kept, it continues over the
# seam, as by `PolicyRunner.reset(instruction, keep_memory=True)`, and so does the previous action. What
# changes with the tick number is then the age of the memory. Previous actions are those of the
# demonstrator, as in validation.

TICKS_AT_ONCE = 32
"""Ticks that pass through the vision at once. This limits its use of memory; results do not depend on it."""


@dataclass(frozen=True)
class ChainRun:
    """C chains of T ticks, run in one way."""

    norms: Floats
    """(C, T): mean Euclidean norm of the tokens of the memory after the tick."""
    errors: Floats
    """(C, T): mean over action dimensions of the squared normalised error; see `squared_errors`."""


@dataclass(frozen=True)
class DriftRuns:
    """The same ticks with the memory kept over the seams, and with it reset there, as in use."""

    kept: ChainRun
    control: ChainRun
    seams: Bools
    """(C, T): True at the first tick of every episode but the first of the chain."""


def measure(
    policy: Policy, episodes: WindowDataset, statistics: VectorStatistics, chains: list[Chain]
) -> DriftRuns:
    """Run `policy`, in evaluation mode, over `chains`.

    episodes: one window for each whole episode.
    statistics: of the actions; their standard deviations are the unit of the errors.
    """
    needed = sorted({stretch.episode for chain in chains for stretch in chain})
    seen = {number: _encode(policy, episodes, number) for number in needed}
    reset = np.stack([seams(chain) for chain in chains])
    actions = np.stack(
        [np.concatenate([seen[s.episode].actions[s.first : s.stop] for s in c]) for c in chains]
    )
    separate = torch.stack(
        [torch.cat([seen[s.episode].tokens[s.first : s.stop] for s in c]) for c in chains]
    )
    joined = torch.stack(
        [_carry_actions(policy, c, t, seen) for c, t in zip(chains, separate, strict=True)]
    )
    colours = _colours(chains, seen)
    measured = {
        vector.name: torch.stack(
            [
                torch.cat([seen[s.episode].measured[vector.name][s.first : s.stop] for s in c])
                for c in chains
            ]
        )
        for vector in policy.spec.proprioception
    }

    def run(tokens: Tensor, reset: Bools) -> ChainRun:
        norms, predicted = run_core(policy, tokens, colours, torch.from_numpy(reset), measured)
        alike = policy.relative.nearest(torch.from_numpy(predicted), torch.from_numpy(actions))
        return ChainRun(norms, squared_errors(alike.numpy(), actions, statistics.std))

    return DriftRuns(run(joined, np.zeros_like(reset)), run(separate, reset), reset)


@torch.no_grad()
def run_core(
    policy: Policy,
    tokens: Tensor,
    colours: Tensor | None,
    reset: Tensor,
    measured: Mapping[str, Tensor] | None = None,
) -> tuple[Floats, Floats]:
    """Run the sight memory, the core and the action head over C chains of T ticks.

    tokens: (C, T, N, D) without those of the sight memory. colours: (C, T, 3, cells, cells), what that
    sees; None where there is none. reset: (C, T) bool, whether the state is reset
    before the tick. measured: the proprioception, name -> (C, T, K), for actions relative to it.

    Returns the norms of the memory, (C, T), and the actions, (C, T, A).
    """
    initial = policy.initial_state(len(tokens))
    state, norms, actions = initial, [], []
    reset = reset.to(tokens.device)
    chain = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    for tick in range(tokens.shape[1]):
        state = reset_where(reset[:, tick], state, initial)
        seen = None if colours is None else FeatureMaps(colours[:, tick], chain)
        raw, state = policy.step_encoded(tokens[:, tick, None], seen, state)
        norms.append(policy.core.memory_norms(state).mean(dim=1))
        now = {name: values[:, tick, None] for name, values in (measured or {}).items()}
        actions.append(policy.decode(raw, now))
    return torch.stack(norms, dim=1).cpu().numpy(), torch.cat(actions, dim=1).cpu().numpy()


class _EncodedEpisode(NamedTuple):
    """The inputs of the core for an episode of T ticks, and the demonstrator's actions."""

    tokens: Tensor
    """(T, N, D), without those of the sight memory."""
    colours: Tensor | None
    """(T, 3, cells, cells): what the sight memory sees; None where there is none."""
    measured: dict[str, Tensor]
    """The proprioception, name -> (T, K)."""
    actions: Floats
    """(T, A)."""
    last_action: Floats
    """(A,): the action that was executed at the last tick."""


@torch.no_grad()
def _encode(policy: Policy, episodes: WindowDataset, number: int) -> _EncodedEpisode:
    length, device = episodes.episode_lengths[number], next(policy.parameters()).device
    batch = episodes.gather([number])
    inputs = policy_inputs(batch)
    starts = range(0, length, TICKS_AT_ONCE)
    parts = (inputs.at_ticks(slice(start, min(start + TICKS_AT_ONCE, length))) for start in starts)
    tokens = torch.cat([policy.encode(part.to(device))[0] for part in parts])
    colours = policy.colours(inputs.to(device))
    last = episodes.episodes[number].executed_actions[-1]
    actions = batch["actions"][0, :length].cpu().numpy()
    sighted = None if colours is None else colours.maps[:length]
    measured = {n: v[0, :length].to(device) for n, v in inputs.proprioception.items()}
    return _EncodedEpisode(tokens, sighted, measured, actions, last)


def _colours(chains: list[Chain], seen: Mapping[int, _EncodedEpisode]) -> Tensor | None:
    """Return what the sight memory sees at the ticks of the chains, (C, T, 3, cells, cells)."""
    of_chains = []
    for chain in chains:
        parts = [(seen[s.episode].colours, s) for s in chain]
        found = [each[s.first : s.stop] for each, s in parts if each is not None]
        if not found:
            return None
        of_chains.append(torch.cat(found))
    return torch.stack(of_chains)


@torch.no_grad()
def _carry_actions(
    policy: Policy, chain: Chain, tokens: Tensor, seen: Mapping[int, _EncodedEpisode]
) -> Tensor:
    """Put the last action of each episode into the first tick of the next one, as its previous action.

    tokens: (T, N, D) of the chain. Returns a changed copy.
    """
    tokens, where, tick = tokens.clone(), policy.token_sources[PREVIOUS_ACTION], 0
    for before in chain[:-1]:
        tick += before.num_ticks
        last = torch.from_numpy(seen[before.episode].last_action).to(tokens)
        normalized = policy.normalizer.normalize_executed(last[None, None])
        tokens[tick, where] = policy.action_token(normalized, None)[0, 0]  # of (1, 1, 1, D)
    return tokens


# The options of `ttm bench drift`.


@dataclass(frozen=True)
class DriftOptions:
    """Which policies run over which episodes, and for how long."""

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes."""
    checkpoint: tuple[Path, ...] = (Path("shipped"),)
    """One or more checkpoints; `shipped` is the policy that comes with the project."""
    out: Path = Path("runs/drift")
    """Folder for the chart and the figures."""
    ticks: int = 300
    """Length of a chain."""
    chains: int = 64
    """Number of chains; more of them make the intervals narrower."""
    bin: int = 20
    """Ticks in one row of the table and one point of the chart."""
    filter: str = "valid"
    """The mask of the episodes. Where there are no masks, every tenth episode is "valid"."""
    seed: int = 0
    """Seed of the order of the episodes; the same for all checkpoints."""
    threads: int = 0
    """CPU threads; 0 means one for each core that may be used."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "ticks", "chains", "bin"))
        if not self.checkpoint:
            raise UserError("no checkpoint is given; name one or more with --checkpoint")


# `ttm bench drift`: measure the norm of the memory and the action error over hundreds of ticks.


@dataclass(frozen=True)
class BenchDriftCommand(DriftOptions):
    """Measure whether a memory drifts in episodes that are much longer than those trained on.

    Lays recorded episodes end to end, as chains of --ticks ticks. The memory continues from one episode
    to the next while the instruction changes, so that ticks differ in the age of the memory alone. For
    comparison, the same ticks run with the memory reset at the start of every episode, as in use. Prints
    a table and a verdict; writes drift.png and drift.json to OUT.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        run_bench(self)
        return 0


# The result of drift runs: means by tick number, ratios with 95 % intervals, and a verdict.

EARLY_TICKS, LATE_TICKS = 20, 100
"""The ticks that are compared: the last ones of a chain, and the first ones at which all chains have left
their first episode. These are the same tick numbers in all chains, so that both sets of ticks lie
anywhere in their episodes."""
NEGLIGIBLE = 1.1
"""Growth by less than this factor, with confidence, is no drift."""


@dataclass(frozen=True)
class Bin:
    """Successive ticks of all chains."""

    first: int
    """The first tick."""
    stop: int
    """The end (exclusive)."""
    norm: float
    """Mean norm of the tokens of the memory."""
    norm_deviation: float
    """Standard error of `norm`."""
    error: float
    """Normalised action error: root mean square, in standard deviations of the actions in the data."""
    error_deviation: float
    """Standard error of `error`."""


@dataclass(frozen=True)
class DriftSummary:
    """How the errors of one policy and the norm of its memory change as the memory ages."""

    kept: list[Bin]
    control: list[Bin]
    growth: Estimate
    """Error in the last ticks over that in the first ones after the first episode, with the memory kept."""
    control_growth: Estimate
    """The same ratio with the memory reset at the seams: the effect of the choice of ticks alone."""
    drift: Estimate
    """`growth` over `control_growth`: 1 if an old memory is as good as a young one."""
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
        plain: dict[str, Any] = _finite({"verdict": self.verdict, **asdict(self)})
        return plain


def summarize(runs: DriftRuns, bin_ticks: int, seed: int = 0) -> DriftSummary:
    """Summarise runs in bins of `bin_ticks` ticks.

    seed: of the resampling of the chains.

    Raises `UserError` if the chains are too short for the comparison.
    """
    chains, ticks = runs.seams.shape
    resampled = Resampled(chains, seed)
    # Ticks at which all chains have left their first episode.
    after_first = int((runs.seams.cumsum(axis=1) > 0).all(axis=0).sum())
    compared = EARLY_TICKS + LATE_TICKS
    if after_first < compared:
        raise UserError(
            f"of {ticks} ticks, {after_first} are left when all chains have left their first episode, "
            f"and {compared} are compared; give {ticks - after_first + compared} --ticks or more"
        )
    after = slice(ticks - after_first, ticks)
    early, late = slice(after.start, after.start + EARLY_TICKS), slice(ticks - LATE_TICKS, ticks)

    def ratio(top: tuple[Floats, slice], bottom: tuple[Floats, slice]) -> Floats:
        """Each argument: (values, at which ticks). Returns one ratio for each resampling."""
        above, below = (resampled.means(values[:, at].mean(axis=1)) for values, at in (top, bottom))
        return above / below

    kept, control, norms = runs.kept.errors, runs.control.errors, runs.kept.norms
    growth, control_growth = (np.sqrt(ratio((e, late), (e, early))) for e in (kept, control))
    return DriftSummary(
        kept=_bins(runs.kept, bin_ticks, resampled),
        control=_bins(runs.control, bin_ticks, resampled),
        growth=estimate(growth),
        control_growth=estimate(control_growth),
        drift=estimate(growth / control_growth),
        norm_growth=estimate(ratio((norms, late), (norms, early))),
        cost=estimate(np.sqrt(ratio((kept, after), (control, after)))),
    )


def _finite(data: Any) -> Any:
    """Replace infinity and NaN in nested data by None."""
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _bins(run: ChainRun, bin_ticks: int, resampled: Resampled) -> list[Bin]:
    ticks = run.errors.shape[1]
    bins = []
    for first in range(0, ticks, bin_ticks):
        stop = min(first + bin_ticks, ticks)
        norm = resampled.means(run.norms[:, first:stop].mean(axis=1))
        error = np.sqrt(resampled.means(run.errors[:, first:stop].mean(axis=1)))
        figures = (float(f) for value in (norm, error) for f in (value[0], value[1:].std()))
        bins.append(Bin(first, stop, *figures))
    return bins


# The chart of `ttm bench drift`: the norm of the memory and the action error against the tick number.

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, whose colours colour-blind people can distinguish."""

LOGARITHMIC_FROM = 100
"""Norms that differ by more than this factor are drawn on a logarithmic scale."""


def draw_drift(summaries: Mapping[str, DriftSummary], path: Path) -> None:
    """Write a PNG. summaries: name in the legend -> summary."""
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    norm_axes, error_axes = figure.subplots(1, 2)
    for number, (name, summary) in enumerate(summaries.items()):
        colour = COLOURS[number % len(COLOURS)]
        for bins, style in ((summary.kept, "-"), (summary.control, "--")):
            _line(norm_axes, bins, "norm", colour, style)
            _line(error_axes, bins, "error", colour, style)
        norm_axes.plot([], [], color=colour, label=name)
    norm_axes.plot([], [], "--", color="#666666", label="the same, memory reset at every seam")
    norm_axes.set_title("Does the memory grow?", loc="left")
    norm_axes.set_ylabel("mean norm of a memory token")
    error_axes.set_title("Do the actions get worse?", loc="left")
    error_axes.set_ylabel("action error (standard deviations)")
    norms = [
        found.norm for summary in summaries.values() for found in (*summary.kept, *summary.control)
    ]
    logarithmic = max(norms) > LOGARITHMIC_FROM * min(norms) > 0
    norm_axes.set(yscale="log") if logarithmic else norm_axes.set_ylim(bottom=0)
    error_axes.set_ylim(bottom=0)
    for axes in (norm_axes, error_axes):
        axes.set_xlabel("ticks since the memory was empty")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(len(summaries) + 1, 4), frameon=False)
    figure.savefig(path)


def _line(axes: Axes, bins: list[Bin], what: str, colour: str, style: str) -> None:
    """Draw the means at the middles of the bins.

    A solid line, for a memory that is kept, has a band of one standard error on either side.
    """
    ticks = [(found.first + found.stop) / 2 for found in bins]
    means = [getattr(found, what) for found in bins]
    axes.plot(ticks, means, style, color=colour, linewidth=1.8 if style == "-" else 1.2)
    if style == "-":
        spread = [getattr(found, f"{what}_deviation") for found in bins]
        low, high = (
            [mean + side * s for mean, s in zip(means, spread, strict=True)] for side in (-1, 1)
        )
        axes.fill_between(ticks, low, high, color=colour, alpha=0.15, linewidth=0)


# The table that `ttm bench drift` prints for each checkpoint.


def drift_table(name: str, summary: DriftSummary) -> Table:
    """Return the errors and norms by tick number, with the memory kept and with it reset."""
    return rows_table(
        f"{name}: normalised action error, and norm of the tokens of the memory",
        {
            "ticks": lambda bins: f"{bins[0].first} to {bins[0].stop - 1}",
            "error": lambda bins: f"{bins[0].error:.3f} ± {bins[0].error_deviation:.3f}",
            "error,\nmemory reset": lambda bins: (
                f"{bins[1].error:.3f} ± {bins[1].error_deviation:.3f}"
            ),
            "norm": lambda bins: f"{bins[0].norm:.2f}",
            "norm,\nmemory reset": lambda bins: f"{bins[1].norm:.2f}",
        },
        list(zip(summary.kept, summary.control, strict=True)),
    )


def drift_notes(name: str, summary: DriftSummary) -> str:
    """Return the verdict, and the cost of keeping the memory over seams."""
    return (
        f"{name} {summary.in_words()}\n"
        f"{name}: a memory kept over seams costs {summary.cost} times the error"
    )


def run_bench(options: DriftOptions) -> None:
    """Measure the checkpoints one after the other; write drift.png and drift.json."""
    torch.set_num_threads(options.threads or usable_cores())
    report = Report()
    summaries = {}
    for name, path in named_checkpoints(options.checkpoint).items():
        summaries[name] = measure_checkpoint(path, options)
        report.table(drift_table(name, summaries[name]), drift_notes(name, summaries[name]))
    chart, figures = options.out / "drift.png", options.out / "drift.json"
    options.out.mkdir(parents=True, exist_ok=True)
    draw_drift(summaries, chart)
    write_json(figures, _to_json(options, summaries))
    report.text(f"chart: {chart}; figures: {figures}")


def named_checkpoints(checkpoints: tuple[Path, ...]) -> dict[str, Path]:
    """Return short name -> file. Trainings give their files equal names, so names include the folder."""
    names = [c.stem if str(c) == SHIPPED else f"{c.parent.name}/{c.stem}" for c in checkpoints]
    if len(set(names)) < len(names):
        names = [str(checkpoint) for checkpoint in checkpoints]
    return {name: checkpoint_path(c) for name, c in zip(names, checkpoints, strict=True)}


def measure_checkpoint(path: Path, options: DriftOptions) -> DriftSummary:
    """Load one checkpoint and run it over the chains. Raises `UserError` if the data does not fit it."""
    policy, _ = load_checkpoint(path)
    opened = open_all(options.data, like=policy.spec)
    sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
    episodes = split(opened, options.filter)
    policy.spec.require_compatible(
        resized_spec(episodes.spec, sizes), ours=str(path), theirs=episodes.source
    )
    if not len(episodes):
        raise UserError(
            f"{episodes.source}: no episode is in mask '{options.filter}'; give another --filter"
        )
    longest = max(episode.num_samples for episode in episodes)
    windows = WindowDataset(episodes, longest, pad="none", resize_to=sizes)
    statistics = dataset_statistics(episode for dataset in opened for episode in dataset).actions
    chains = lay_chains(windows.episode_lengths, options.chains, options.ticks, options.seed)
    return summarize(measure(policy, windows, statistics, chains), options.bin, options.seed)


def _to_json(options: DriftOptions, summaries: Mapping[str, DriftSummary]) -> dict[str, object]:
    """Return the figures of all checkpoints, and the options that they depend on, as plain data."""
    return {
        "options": {
            "data": list(options.data),
            "ticks": options.ticks,
            "chains": options.chains,
            "seed": options.seed,
        },
        "checkpoints": {name: summary.to_json() for name, summary in summaries.items()},
    }
