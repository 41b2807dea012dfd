"""Batches of behaviour cloning: which windows step k trains on, hidden inputs, augmentation.

Frames that do not fit into memory are read, decoded and augmented at each step, by worker processes.
"""

from __future__ import annotations

import gc
import math
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ttm.datasets.dataset import EpisodeDataset
from ttm.datasets.samplers import SECTION, EpisodeSampler, LaneSampler, WindowSampler
from ttm.datasets.windows import (
    Chunks,
    RecentFrames,
    WindowBatch,
    WindowDataset,
    policy_inputs,
    stand_stills,
    tick_weights,
)
from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError, first_line
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.relative import RelativeActions
from ttm.policy.spec import PolicySpec
from ttm.sim.workers import usable_cores
from ttm.training.augmentation import ImageChanges
from ttm.training.distributed import Fabric, Processes
from ttm.training.frozen_vision import EpisodeFeatures, tick_codes
from ttm.training.losses import RecallTargets, TrainingBatch
from ttm.training.options import AugmentationConfig, InputDropoutConfig, LossConfig, TrainOptions
from ttm.training.resume import read_header
from ttm.training.run_log import resume_path

Order = TypeVar("Order")
Made = TypeVar("Made")


class Pick(NamedTuple):
    """The windows that make a batch."""

    places: Tensor
    """(B, 3) int64, as `WindowDataset.places` gives them."""
    restart: bool = False
    """Whether every window starts from the initial memory, so that nothing is taken over from the
    last batch."""
    ticks: int | None = None
    """T, where the longest of the windows needs fewer ticks than `WindowDataset.window`."""


class FromZero:
    """Windows drawn at random, each from the initial memory, as in the paper (Ryoo et al. 2022).

    Classes derived from it start windows in other ways.
    """

    burn_in = 0
    """Ticks that run before each window, without gradient."""
    carries = False
    """Whether a window's memory holds the ticks of its episode before the window."""

    def __init__(self, apart: int | None = None) -> None:
        self.apart = apart
        """Batches from one window of a section to the next; None to draw windows from all data."""

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        """Yield picks without end; pick n depends on data set, batch size and (seed, n) alone."""
        sections = None if self.apart is None else windows.sections(self.apart)
        options: dict[str, Any] = {"mix": windows.window_mix, "sections": sections}
        sampler = WindowSampler(
            len(windows), batch_size, seed=seed, first_batch=first_batch, **options
        )
        return (Pick(windows.places(indices)) for indices in sampler)

    def kept(self, memory: CoreState) -> CoreState | None:
        """Return the memory that the next batch starts from; None for the initial memory."""
        return None


class AfterBurnIn(FromZero):
    """The windows of `FromZero`, each after a burn-in of at most `ticks` ticks (Kapturowski et al. 2019)."""

    def __init__(self, ticks: int, apart: int | None = None) -> None:
        super().__init__(apart)
        self.burn_in = ticks


class WholeEpisodes(FromZero):
    """Whole episodes of similar length. The data set must have one window for each."""

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        lengths, shares = windows.episode_lengths, windows.shares
        mix = None if shares is None else shares.of_episodes()
        sampler = EpisodeSampler(lengths, batch_size, seed=seed, first_batch=first_batch, mix=mix)
        for indices in sampler:
            yield Pick(windows.places(indices), ticks=max(lengths[index] for index in indices))


class Carried(FromZero):
    """A window goes on with the memory that the preceding one of its episode left, without gradient.

    This is truncated backpropagation through time (Williams & Peng 1990).
    """

    carries = True

    def picks(
        self, windows: WindowDataset, batch_size: int, seed: int, first_batch: int
    ) -> Iterator[Pick]:
        lengths, shares = windows.episode_lengths, windows.shares
        mix = None if shares is None else shares.of_ticks(lengths)
        sampler = LaneSampler(
            lengths, windows.window, batch_size, seed=seed, first_batch=first_batch, mix=mix
        )
        return (Pick(places, restart) for places, restart in sampler)

    def kept(self, memory: CoreState) -> CoreState:
        return {name: value.detach() for name, value in memory.items()}


class Delays:
    """Draws a delay for each window, and finds the actions that were demonstrated so much later.

    The policy is told the delay, as in "Thinking while moving" (Xiao et al. 2020). A command with a delay
    of 0.3 ticks is the mean of two actions with the weights 0.7 and 0.3. A binary part takes the action
    of the larger share. Beyond the end of an episode its last action goes on.
    """

    def __init__(self, spec: PolicySpec, longest_s: float) -> None:
        """longest_s: delays are drawn uniformly from 0 to this, in seconds."""
        self._longest_s, self._tick_s = longest_s, spec.control_dt_s
        self._binary = torch.from_numpy(spec.binary_mask)
        self.ticks_ahead = math.floor(longest_s / spec.control_dt_s) + 1
        """How many more actions than the policy predicts `in_force` needs."""

    def drawn(self, count: int, rng: np.random.Generator) -> Tensor:
        """Return the delays of so many windows, (count,) float32 in seconds."""
        return torch.from_numpy(rng.uniform(0.0, self._longest_s, count).astype(np.float32))

    def in_force(self, coming: Chunks, delay_s: Tensor, size: int) -> Chunks:
        """Return the `size` actions of each tick that begin `delay_s` (B,) after it.

        coming: the next `size` + `ticks_ahead` actions of each tick.
        """
        ticks = delay_s / self._tick_s  # (B,)
        whole = ticks.floor().clamp_max(self.ticks_ahead - 1)
        share = (ticks - whole)[:, None, None, None]  # (B, 1, 1, 1), in the later of two ticks
        earlier = whole.long()[:, None] + torch.arange(size, device=ticks.device)  # (B, K)
        batch = torch.arange(len(ticks), device=ticks.device)[:, None]

        def taken(values: Tensor, index: Tensor) -> Tensor:
            """Return values (B, T, n, …) at the places (B, K) of the third axis, (B, T, K, …)."""
            return values.transpose(1, 2)[batch, index].transpose(1, 2)

        first, second = taken(coming.actions, earlier), taken(coming.actions, earlier + 1)
        mean = (1 - share) * first + share * second
        nearest = torch.where(share > 0.5, second, first)
        actions = torch.where(self._binary.to(mean.device), nearest, mean)
        main = earlier + (ticks - whole > 0.5).long()[:, None]
        return Chunks(actions, coming.inside[..., :size], taken(coming.dataset_tick, main))


@dataclass(eq=False)
class BatchSource:
    """Makes batches by step number.

    Everything random in the batch of step k is drawn from a generator seeded by (seed, k), so that
    a resumed training continues with the batches that it would have had.
    """

    windows: WindowDataset
    batch_size: int
    seed: int
    _: KW_ONLY
    memory: FromZero = field(default_factory=FromZero)
    dropout: InputDropoutConfig = field(default_factory=InputDropoutConfig)
    augmentation: AugmentationConfig | None = None
    """None for none."""
    transition_weight: InitVar[float] = LossConfig.transition_weight
    tick_weights: InitVar[Tensor | None] = None
    """(num_ticks,); None for 1."""
    features: EpisodeFeatures | None = None
    """Of frozen vision, in place of the images of `windows`."""
    recall: RecallTargets | None = None
    """With a recall loss."""
    chunk: int = 1
    """K, the actions that the policy predicts at each tick."""
    form: RelativeActions | None = None
    """In which the policy predicts them; None for that of the robot."""
    longest_delay_s: InitVar[float] = 0.0
    """See `Delays`; 0 for a policy that is not told of delays."""
    workers: int = 0
    """Processes that make batches; 0 for a thread of this process."""
    processes: Processes = field(default_factory=Processes)
    """Those that share each batch, of which this source makes its own windows."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    """Where they are trained on; a GPU augments the images itself."""

    def __post_init__(
        self, transition_weight: float, tick_weights: Tensor | None, longest_delay_s: float
    ) -> None:
        ones = torch.ones(self.windows.num_ticks)
        self.loss_weights = ones if tick_weights is None else tick_weights
        self._binary_weights = self.windows.binary_transition_weights(transition_weight)
        planned_spec = self.form.predicted_spec if self.form else self.windows.spec
        self._delays = Delays(planned_spec, longest_delay_s) if longest_delay_s else None
        self._on_gpu = self.device.type == "cuda"

    def sample(self, count: int) -> Iterator[TrainingBatch]:
        """Yield `count` batches of windows from the initial memory, the same ones at every call."""
        start = FromZero() if self.memory.carries or self.memory.apart else self.memory
        picks = start.picks(self.windows, self.batch_size, self.seed, first_batch=0)
        for step, pick in zip(range(count), picks, strict=False):
            yield self.make(pick, step, burn_in=0)

    def batches(self, first_step: int) -> Iterator[TrainingBatch]:
        """Yield the batches of `first_step`, `first_step` + 1, … without end.

        A thread or several processes prepare the next ones; who makes a batch does not change it.
        """
        picks = self.memory.picks(self.windows, self.batch_size, self.seed, first_step)
        orders = enumerate(picks, start=first_step)
        recent = self.recent_frames()

        def make(order: tuple[int, Pick]) -> TrainingBatch:
            step, pick = order
            return self.make(pick, step, self.memory.burn_in, recent)

        if self.workers:
            yield from made_by_workers(make, orders, self.workers, pin=self._on_gpu)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
            coming = None
            for order in orders:
                ready, coming = coming, pool.submit(make, order)
                if ready is not None:
                    yield ready.result()

    def recent_frames(self) -> RecentFrames | None:
        """Return what keeps the frames of open sections; None without sections, or with all in memory."""
        apart, frames = self.memory.apart, self.windows.frames
        if apart is None or frames.in_memory:
            return None
        sections = apart * -(-self.batch_size // self.processes.count)
        ticks = sections * (SECTION - 1 + self.windows.window + self.memory.burn_in)
        makers = max(1, self.workers)
        # Of `apart` turns, a worker has every n-th, where n is the number of workers, if that divides it.
        return frames.recent(ticks // gcd(apart, makers), makers * self.processes.on_machine)

    def make(
        self, pick: Pick, step: int, burn_in: int, recent: RecentFrames | None = None
    ) -> TrainingBatch:
        """Return the windows of `pick` as the batch of `step`.

        What is hidden and how images change is drawn once for each window and holds for its burn-in
        too, for the windows of all processes, of which those of this one are kept. recent: see
        `FrameStore.gather`.
        """
        rng = np.random.default_rng([self.seed, step])
        total, rows = len(pick.places), self.processes.rows(len(pick.places))
        gathered = self.windows.gather_at(
            pick.places[rows], burn_in=burn_in, ticks=pick.ticks, recent=recent
        )
        ticks, targets, changes = gathered["dataset_tick"], None, None
        inputs = drop_inputs(policy_inputs(gathered), self.dropout, rng, total, rows)
        if self.augmentation is not None:
            changes = {
                name: ImageChanges.drawn(
                    total, (x.shape[-2], x.shape[-1]), self.augmentation, rng
                ).of_windows(rows)
                for name, x in inputs.images.items()
            }
        if self.features is not None:
            inputs = self.features.into(inputs, ticks)
        if self.recall is not None:
            whole_past = self.memory.carries and not pick.restart
            targets = self.recall.at(ticks, whole_past=whole_past)
        reset = gathered["episode_start"]
        reset[:, 0] |= pick.restart
        coming, delay_s = self._coming(gathered, rng, total, rows)
        batch = TrainingBatch(
            replace(inputs, delay_s=delay_s),
            coming.actions,
            gathered["valid"],
            self._binary_weights[coming.dataset_tick],
            self.loss_weights[coming.dataset_tick] * coming.inside,
            reset,
            burn_in,
            targets,
            changes,
        )
        if not self._on_gpu:
            return batch.to(torch.device("cpu"))
        return batch if self.workers else batch.pin_memory()

    def _coming(
        self, gathered: WindowBatch, rng: np.random.Generator, total: int, rows: slice
    ) -> tuple[Chunks, Tensor | None]:
        """Return the actions to learn, as `Policy.decode_chunk` returns them, and the delays, (B, T) in s.

        With delays these are means, which are taken in the form in which rotations have means.
        """
        ahead = 0 if self._delays is None else self._delays.ticks_ahead
        coming = self.windows.chunks(gathered, self.chunk + ahead)
        seen_at = coming.dataset_tick[:, :, : self.chunk]  # the ticks that commands are made of
        if self.form:
            coming = coming._replace(actions=self.form.averageable(coming.actions))
        delay_s = None
        if self._delays is not None:
            delay_s = self._delays.drawn(total, rng)[rows].to(gathered["actions"].device)
            coming = self._delays.in_force(coming, delay_s, self.chunk)
            delay_s = delay_s[:, None].expand(gathered["valid"].shape).contiguous()
        if self.form:
            measured = self.windows.measured(seen_at)
            coming = coming._replace(actions=self.form.plan(coming.actions, measured))
        return coming, delay_s


def drop_inputs(
    inputs: PolicyInputs,
    config: InputDropoutConfig,
    rng: np.random.Generator,
    total: int | None = None,
    rows: slice = slice(None),
) -> PolicyInputs:
    """Hide previous actions and proprioception at all ticks of windows drawn at random.

    A policy that sees its previous action learns to repeat it, because that is right on nearly every
    tick (the "copycat" problem, Wen et al. 2020). total, rows: `inputs` are the windows `rows` of a
    batch of `total` windows, for all of which it draws; by default they are the whole batch.
    """
    batch = len(inputs.previous_action_valid) if total is None else total
    keeps_action, keeps_proprioception = (
        torch.from_numpy(rng.random((batch, 1)) >= portion)[rows]
        for portion in (config.previous_action_dropout, config.proprioception_dropout)
    )
    proprioception_valid = inputs.proprioception_valid
    if proprioception_valid is None:
        proprioception_valid = torch.ones_like(inputs.previous_action_valid)
    return replace(
        inputs,
        previous_action_valid=inputs.previous_action_valid & keeps_action,
        proprioception_valid=proprioception_valid & keeps_proprioception,
    )


SECTIONS_APART = 24
"""Batches from one window of a section to the next with a shuffle of `auto`: 1, 2, 3, 4, 6 and 8 workers
divide it."""


def batch_source(
    options: TrainOptions,
    episodes: EpisodeDataset,
    windows: WindowDataset,
    features: EpisodeFeatures | None,
    policy: Policy,
    fabric: Fabric,
) -> BatchSource:
    """Return the source of batches of `windows`, which are of `episodes`, with frames or features."""
    processes, loss = Processes.of(fabric), options.loss
    recall: RecallTargets | None = None
    if features is not None and loss.recall_weight:
        # Those of the first process: elsewhere rounding may turn the sign of a component around.
        seen = features.seen()
        stands = processes.from_first(stand_stills(episodes))
        runs = stands.unique_consecutive(return_counts=True)[1].tolist()
        codes = tick_codes(seen, runs, options.seed)
        recall = RecallTargets(processes.from_first(codes), windows.episode_lengths, stands)
    apart = sections_apart(options, processes.from_first(windows.frames.in_memory))
    start, memory = options.memory_start, FromZero(apart)
    if options.window == "episode":
        memory = WholeEpisodes()
    elif start.memory != "zero":
        memory = Carried() if start.memory == "carry" else AfterBurnIn(start.burn_in, apart)
    return BatchSource(
        windows,
        options.batch_size,
        options.seed,
        memory=memory,
        dropout=options.input_dropout,
        augmentation=options.augmentation if options.augment and features is None else None,
        transition_weight=loss.transition_weight,
        tick_weights=tick_weights(
            episodes, changes=loss.weigh_changes, starts=loss.weigh_starts, policy=loss.weigh_policy
        ),
        features=features,
        recall=recall,
        chunk=policy.config.chunk,
        form=policy.relative,
        longest_delay_s=policy.config.longest_delay_s,
        workers=_workers(options, windows, memory, processes),
        processes=processes,
        device=fabric.device,
    )


def reading_note(source: BatchSource) -> str:
    """Return in words how frames are read that do not fit into memory; empty if all do."""
    recent = source.recent_frames()
    if recent is None:
        return ""
    gib = recent.ticks * source.windows.frames.tick_bytes * max(1, source.workers) / 2**30
    return (
        f"frames are read from the files, with a shuffle of {source.memory.apart}; up to {gib:.2f} GiB "
        f"keep {recent.portion:.0%} of those that windows have in common"
    )


def sections_apart(options: TrainOptions, in_memory: bool) -> int | None:
    """Return the batches between two windows of a section; None for no sections.

    A training that is resumed goes on as it began, whether or not the frames are in memory now.
    """
    chosen = options.shuffle
    if chosen == "auto" and options.resume:
        chosen = read_header(resume_path(options.out)).get("shuffle", "all")
    if chosen == "auto":
        overlapping = options.window != "episode" and options.memory_start.memory != "carry"
        chosen = SECTIONS_APART if overlapping and not in_memory else "all"
    return None if chosen == "all" else chosen


AHEAD = 2
"""Batches that each worker prepares ahead of the training."""
MOST_WORKERS = 8
"""The most workers that are started unless the user asks for more."""
SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps the batches on their way from a worker to the training."""


def _workers(
    options: TrainOptions, windows: WindowDataset, memory: FromZero, processes: Processes
) -> int:
    """Return how many processes make the batches; none where all that they need is in memory."""
    if options.vision.freeze_vision or (options.workers is None and windows.frames.in_memory):
        return 0
    ticks = windows.window + memory.burn_in
    size = windows.frames.tick_bytes * ticks * -(-options.batch_size // processes.count)
    if options.workers is None:
        return default_workers(size, processes.on_machine, memory.apart)
    require_room(options.workers, size)
    return options.workers


def default_workers(batch_bytes: int, processes: int = 1, apart: int | None = None) -> int:
    """Return the number of workers for frames beyond memory: half of the cores, 1 to 8.

    Fewer, or none, if their batches do not fit into the shared memory, which so many `processes` share.
    apart: batches from one window of a section to the next, None without sections; the number divides
    it, so that a section is always read by the same worker, which has its frames at hand.
    """
    wanted = max(1, min(usable_cores() // processes // 2, MOST_WORKERS))
    most = min(wanted, _room(batch_bytes)[0] // processes)
    divisors = (count for count in range(1, most + 1) if not (apart or 0) % count)
    return max(divisors, default=0)


def require_room(workers: int, batch_bytes: int) -> None:
    """Raise `UserError` if the batches of the workers do not fit into the shared memory."""
    fitting, free = _room(batch_bytes)
    if workers > fitting:
        needed = (AHEAD * workers + 1) * batch_bytes
        raise UserError(
            f"--workers {workers} need {needed / 2**20:.0f} MiB of {SHARED_MEMORY}, which has "
            f"{free / 2**20:.0f}; take fewer, or give a container more (docker run --shm-size 2g)"
        )


def _room(batch_bytes: int) -> tuple[int, int]:
    """Return how many workers the shared memory has room for, and its free bytes."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else 0
    return max(0, (free // max(batch_bytes, 1) - 1) // AHEAD), free


def made_by_workers(
    make: Callable[[Order], Made], orders: Iterable[Order], workers: int, *, pin: bool = False
) -> Iterator[Made]:
    """Yield `make(order)` for each of `orders`, in their order, made by `workers` processes.

    The processes are forked, so that they share what `make` reads. Raises the `UserError` that
    `make` raises, and one if a process is killed.

    pin: whether to call `pin_memory` of what was made, in a thread of this process, for a GPU.
    """
    loader = DataLoader(
        _Task(make),
        sampler=orders,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=lambda made: made,
        pin_memory=pin,
        worker_init_fn=_begin,
        multiprocessing_context="fork",
    )
    made = _started(loader)
    while True:
        try:
            result = next(made)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise UserError(
                f"a worker process that makes batches has ended ({first_line(error)}); was it "
                "killed for lack of memory? Go on with --resume, and with fewer --workers"
            ) from error
        if isinstance(result, UserError):
            raise result
        yield result


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers, and keep the handler of the signal that one has ended.

    The next batch that is asked for then raises the error, and not any place in the training.
    """
    if threading.current_thread() is not threading.main_thread():
        return iter(loader)
    previous = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, previous)


class _Task(Dataset[Any], Generic[Order, Made]):
    """What a worker does. Errors of users are returned, since an exception would lose its type."""

    def __init__(self, make: Callable[[Order], Made]) -> None:
        self._make = make

    def __getitem__(self, order: Order) -> Made | UserError:
        try:
            return self._make(order)
        except UserError as error:
            return error


def _begin(worker: int) -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, and garbage to the training.

    What finalizes a file or a graphics context may end a process that was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
