"""Batches of behaviour cloning: which windows step k trains on, hidden inputs, augmentation.

Frames that do not fit into memory are read, decoded and augmented at each step, by worker processes.
"""

from __future__ import annotations

import gc
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ttm.datasets.samplers import SECTION
from ttm.datasets.windows import Chunks, RecentFrames, WindowBatch, WindowDataset, tick_weights
from ttm.policy.errors import UserError, first_line
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.relative import RelativeActions
from ttm.sim.workers import usable_cores
from ttm.training.augmentation import ImageChanges
from ttm.training.data import Data, policy_inputs
from ttm.training.distributed import Processes
from ttm.training.frozen_vision import EpisodeFeatures, FeatureCache, without_cameras
from ttm.training.memory_start import FromZero, MemoryStart, Pick, memory_start
from ttm.training.options import AugmentationConfig, InputDropoutConfig, LossConfig, TrainOptions
from ttm.training.recall import RecallTargets, tick_codes
from ttm.training.resume import read_header
from ttm.training.run_log import resume_path
from ttm.training.validation import Delays

Order = TypeVar("Order")
Made = TypeVar("Made")

AHEAD = 2
"""Batches that each worker prepares ahead of the training."""
MOST_WORKERS = 8
"""The most workers that are started unless the user asks for more."""
SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps the batches on their way from a worker to the training."""
SECTIONS_APART = 24
"""Batches from one window of a section to the next with --shuffle auto: 1, 2, 3, 4, 6 and 8 workers
divide it."""


@dataclass(frozen=True)
class TrainingBatch:
    """B windows of T ticks. The first `burn_in` ticks only prepare the memory, without loss."""

    inputs: PolicyInputs
    actions: Tensor
    """(B, T, K, P) float32, the demonstrated actions of each tick and of the K - 1 ticks after it,
    in the spec's units, as `Policy.decode_chunk` returns them."""
    valid: Tensor
    """(B, T) bool: False at padding."""
    weights: Tensor
    """(B, T, K, A) float32: weight of each binary dimension in the loss of its part."""
    tick_weights: Tensor
    """(B, T, K) float32: weight of each action in the losses of all parts; 0 where the episode ends
    before it."""
    memory_reset: Tensor
    """(B, T) bool: True where the memory is reset before the tick."""
    burn_in: int = 0
    recall_targets: Tensor | None = None
    """(B, T, C) float32, with a recall loss."""
    changes: Mapping[str, ImageChanges] | None = None
    """Camera -> what is still to be done to its images, where a GPU augments them."""

    @property
    def num_images(self) -> int:
        """Number of frames of all cameras together, padding and cached ones included."""
        return len(self.inputs.features or self.inputs.images) * self.valid.numel()

    def to(self, device: torch.device) -> TrainingBatch:
        """Return the same batch on `device`, with the changes of its images carried out there."""
        moved = self._each_tensor(lambda value: value.to(device, non_blocking=True))
        if moved.changes is None:
            return moved
        images = {name: moved.changes[name].applied(x) for name, x in moved.inputs.images.items()}
        return replace(moved, inputs=replace(moved.inputs, images=images), changes=None)

    def pin_memory(self) -> TrainingBatch:
        """Return the same batch in memory from which a GPU copies while it computes."""
        return self._each_tensor(lambda value: value.pin_memory())

    def _each_tensor(self, change: Callable[[Tensor], Tensor]) -> TrainingBatch:
        """Return the batch with all tensors but the `changes` as `change` returns them."""
        tensors: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, inputs=self.inputs.each_tensor(change), **tensors)

    def of_windows(self, rows: slice) -> TrainingBatch:
        """Return all ticks of some of the windows."""
        tensors: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        changes = self.changes and {
            name: change.of_windows(rows) for name, change in self.changes.items()
        }
        return replace(self, inputs=self.inputs.of_windows(rows), changes=changes, **tensors)

    def at_ticks(self, ticks: slice) -> TrainingBatch:
        """Return some ticks of all windows, as a batch without burn-in."""
        return TrainingBatch(
            self.inputs.at_ticks(ticks),
            self.actions[:, ticks],
            self.valid[:, ticks],
            self.weights[:, ticks],
            self.tick_weights[:, ticks],
            self.memory_reset[:, ticks],
            recall_targets=None if self.recall_targets is None else self.recall_targets[:, ticks],
        )


class BatchSource:
    """Makes batches by step number.

    Everything random in the batch of step k is drawn from a generator seeded by (seed, k), so that
    a resumed training continues with the batches that it would have had.
    """

    def __init__(
        self,
        windows: WindowDataset,
        batch_size: int,
        seed: int,
        *,
        dropout: InputDropoutConfig = InputDropoutConfig(),  # noqa: B008 (frozen)
        loss: LossConfig = LossConfig(),  # noqa: B008
        augmentation: AugmentationConfig | None = None,
        memory: MemoryStart | None = None,
        tick_weights: Tensor | None = None,
        features: EpisodeFeatures | None = None,
        recall: RecallTargets | None = None,
        chunk: int = 1,
        form: RelativeActions | None = None,
        longest_delay_s: float = 0.0,
        workers: int = 0,
        processes: Processes = Processes(),  # noqa: B008
        device: torch.device | None = None,
    ) -> None:
        """Make a source; no batch is prepared yet.

        augmentation: None for none. memory: None for `FromZero`. tick_weights: (num_ticks,), None for 1.
        features: of frozen vision, in place of the images of `windows`. recall: with a recall loss.
        chunk: K, the actions that the policy predicts at each tick. form: in which it predicts them; None
        for that of the robot. longest_delay_s: see `Delays`; 0 for a policy that is not told of delays.
        workers: processes that make batches; 0 for a thread of this process. processes: those that
        share each batch, of which this source makes its own windows. device: where they are trained on;
        a GPU augments the images itself. None for the CPU.
        """
        self.windows, self.batch_size, self.seed = windows, batch_size, seed
        self.memory = FromZero() if memory is None else memory
        self.tick_weights = torch.ones(windows.num_ticks) if tick_weights is None else tick_weights
        self.features, self.recall, self.chunk = features, recall, chunk
        self.workers, self.processes = workers, processes
        self._dropout, self._augmentation, self._form = dropout, augmentation, form
        self._weights = windows.binary_transition_weights(loss.transition_weight)
        planned_spec = form.predicted_spec if form else windows.spec
        self._delays = Delays(planned_spec, longest_delay_s) if longest_delay_s else None
        self._on_gpu = device is not None and device.type == "cuda"

    def sample(self, count: int) -> Iterator[TrainingBatch]:
        """Yield `count` batches of any windows, which start from the initial memory.

        They are the same at every call and at every step of a training.
        """
        start = FromZero() if self.memory.carries or self.memory.apart else self.memory
        picks = start.picks(self.windows, self.batch_size, self.seed, first_batch=0)
        for step, pick in zip(range(count), picks, strict=False):
            yield self.make(pick, step, burn_in=0)

    def batches(self, first_step: int) -> Iterator[TrainingBatch]:
        """Yield the batches of `first_step`, `first_step` + 1, … without end.

        A thread or several processes prepare the next batches while the caller uses the current one.
        Who makes a batch does not change it.
        """
        picks = self.memory.picks(self.windows, self.batch_size, self.seed, first_step)
        orders = enumerate(picks, start=first_step)
        ordered = partial(self._ordered, self.recent_frames())
        if self.workers:
            yield from made_by_workers(ordered, orders, self.workers, pin=self._on_gpu)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
            coming = None
            for order in orders:
                ready, coming = coming, pool.submit(ordered, order)
                if ready is not None:
                    yield ready.result()

    def recent_frames(self) -> RecentFrames | None:
        """Return what keeps the frames of the sections that are open, in each process that makes batches.

        None where no sections are drawn, or all frames are in memory.
        """
        apart, frames = self.memory.apart, self.windows.frames
        if apart is None or frames.in_memory:
            return None
        sections = apart * -(-self.batch_size // self.processes.count)
        ticks = sections * (SECTION - 1 + self.windows.window + self.memory.burn_in)
        makers = max(1, self.workers)
        # Of `apart` turns, a worker has every n-th, where n is the number of workers, if that divides it.
        return frames.recent(ticks // gcd(apart, makers), makers * self.processes.on_machine)

    def _ordered(self, recent: RecentFrames | None, order: tuple[int, Pick]) -> TrainingBatch:
        step, pick = order
        return self.make(pick, step, self.memory.burn_in, recent)

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
        ticks = gathered["dataset_tick"]
        inputs = drop_inputs(policy_inputs(gathered), self._dropout, rng, total, rows)
        changes = None
        if self._augmentation is not None:
            changes = {
                name: ImageChanges.drawn(total, (x.shape[-2], x.shape[-1]), self._augmentation, rng)
                for name, x in inputs.images.items()
            }
            changes = {name: change.of_windows(rows) for name, change in changes.items()}
        versions = None  # (B,) int64: which version of the cached frames
        if self.features is not None and self.features.versions > 1:
            versions = torch.from_numpy(rng.integers(self.features.versions, size=total))[rows]
        if self.features is not None:
            inputs = self.features.into(inputs, ticks, versions)
        targets = None
        if self.recall is not None:
            whole_past = self.memory.carries and not pick.restart
            targets = self.recall.at(ticks, versions, whole_past=whole_past)
        reset = gathered["episode_start"]
        reset[:, 0] |= pick.restart
        coming, delay_s = self._coming(gathered, rng, total, rows)
        batch = TrainingBatch(
            replace(inputs, delay_s=delay_s),
            coming.actions,
            gathered["valid"],
            self._weights[coming.dataset_tick],
            self.tick_weights[coming.dataset_tick] * coming.inside,
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

        With delays these are the actions that are in force so much later: means, which are taken in the
        form in which rotations have means.
        """
        ahead = 0 if self._delays is None else self._delays.ticks_ahead
        delay_s = None
        if self._delays is not None:
            delay_s = self._delays.drawn(total, rng)[rows].to(gathered["actions"].device)
        coming = self.windows.chunks(gathered, self.chunk + ahead)
        seen_at = coming.dataset_tick[:, :, : self.chunk]  # the ticks that commands are made of
        if self._form:
            coming = coming._replace(actions=self._form.averageable(coming.actions))
        if self._delays is not None and delay_s is not None:
            coming = self._delays.in_force(coming, delay_s, self.chunk)
            delay_s = delay_s[:, None].expand(gathered["valid"].shape).contiguous()
        if self._form:
            measured = self.windows.measured(seen_at)
            coming = coming._replace(actions=self._form.plan(coming.actions, measured))
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
    tick (the "copycat" problem, Wen et al. 2020). Without it, it has to learn from the other inputs.

    total, rows: `inputs` are the windows `rows` of a batch of `total` windows, for all of which it
    draws; by default they are the whole batch.
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


def training_windows(
    options: TrainOptions, data: Data, processes: Processes, *, frozen: bool
) -> WindowDataset:
    """Return the windows to train on. frozen: without frames, in whose place are features."""
    episodes = without_cameras(data.training) if frozen else data.training
    whole = options.window == "episode"
    longest = max(episode.num_samples for episode in episodes)
    return WindowDataset(
        episodes,
        longest if options.window == "episode" else options.window,
        pad="none" if whole else "both",
        resize_to={} if frozen else data.resize_to,
        shares=None if data.sets is None else data.sets.shares,
        copies=processes.on_machine,
    )


def batch_source(
    options: TrainOptions,
    data: Data,
    windows: WindowDataset,
    cache: FeatureCache | None,
    policy: Policy,
    fabric: Fabric,
) -> BatchSource:
    """Return the source of batches, with frames or with the features of frozen vision.

    windows: those of `training_windows`. fabric: with the processes that share each batch.
    """
    processes, loss = Processes.of(fabric), options.loss
    features = recall = None
    if cache is not None:
        versions = options.vision.augmented_versions
        features = cache.features(data.training, versions, options.augmentation, options.seed)
        if loss.recall_weight:
            # Those of the first process: elsewhere rounding may turn the sign of a component around.
            codes = tick_codes(features, windows.episode_lengths, options.seed)
            recall = RecallTargets(processes.from_first(codes), windows.episode_lengths)
    apart = sections_apart(options, processes.from_first(windows.frames.in_memory))
    memory = memory_start(options.memory_start, options.window, apart)
    return BatchSource(
        windows,
        options.batch_size,
        options.seed,
        dropout=options.input_dropout,
        loss=loss,
        augmentation=options.augmentation if options.augment and features is None else None,
        memory=memory,
        tick_weights=tick_weights(
            data.training,
            changes=loss.weigh_changes,
            starts=loss.weigh_starts,
            policy=loss.weigh_policy,
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


def reading_notes(source: BatchSource) -> list[str]:
    """Return in words how frames are read that do not fit into memory."""
    recent = source.recent_frames()
    if recent is None:
        return []
    gib = recent.ticks * source.windows.frames.tick_bytes * max(1, source.workers) / 2**30
    note = f"frames are read from the files, with --shuffle {source.memory.apart}; up to {gib:.2f} GiB "
    if recent.portion == 1:
        return [note + "keep those that windows have in common"]
    return [
        note
        + f"keep {recent.portion:.0%} of those that windows have in common, since not more memory is "
        "free; a smaller --shuffle or --batch-size needs less"
    ]


def sections_apart(options: TrainOptions, in_memory: bool) -> int | None:
    """Return how many batches are between two windows of a section by --shuffle; None for no sections.

    A training that is resumed goes on as it began, whether or not the frames are in memory now.
    """
    chosen = options.shuffle
    if chosen == "auto" and options.resume:
        chosen = read_header(resume_path(options.out)).get("shuffle", "all")
    if chosen == "auto":
        overlapping = memory_start(options.memory_start, options.window).overlapping
        chosen = SECTIONS_APART if overlapping and not in_memory else "all"
    return None if chosen == "all" else chosen


def _workers(
    options: TrainOptions, windows: WindowDataset, memory: MemoryStart, processes: Processes
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

    Fewer, or none, if their batches do not fit into the shared memory of the machine, which so many
    `processes` of a training share.

    apart: batches from one window of a section to the next, None without sections. The number is a
    divisor of it, so that a section is always read by the same worker, which has its frames at hand.
    """
    wanted = max(1, min(usable_cores() // processes // 2, MOST_WORKERS))
    most = min(wanted, _fitting_workers(batch_bytes) // processes)
    divisors = (count for count in range(1, most + 1) if not (apart or 0) % count)
    return max(divisors, default=0)


def require_room(workers: int, batch_bytes: int) -> None:
    """Raise `UserError` if the batches of the workers do not fit into the shared memory."""
    if workers > _fitting_workers(batch_bytes):
        needed, free = _needed(workers, batch_bytes), _free_shared_memory()
        raise UserError(
            f"--workers {workers} need {needed / 2**20:.0f} MiB of shared memory, and {SHARED_MEMORY} has "
            f"{free / 2**20:.0f} MiB; give a container more (docker run --shm-size 2g), or take fewer "
            "--workers or a smaller --batch-size"
        )


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
        collate_fn=_unchanged,
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
    """Start the workers.

    The signal that a worker has ended is then left alone, so that it is told where the next batch is
    asked for, and not at any place in the training.
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


def _needed(workers: int, batch_bytes: int) -> int:
    return (AHEAD * workers + 1) * batch_bytes


def _fitting_workers(batch_bytes: int) -> int:
    return max(0, (_free_shared_memory() // max(batch_bytes, 1) - 1) // AHEAD)


def _free_shared_memory() -> int:
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # it is not there
        return 0


def _unchanged(made: Any) -> Any:
    return made


def _begin(worker: int) -> None:
    """Leave to the training Ctrl-C, which reaches all processes of a terminal, and its garbage.

    What finalizes a file or a graphics context may end a process that was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
