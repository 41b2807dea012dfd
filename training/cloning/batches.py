"""Batches of behaviour cloning: which windows step k trains on, hidden inputs, augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.windows.recent_frames import RecentFrames
from ttm.datasets.windows.sections import SECTION
from ttm.datasets.windows.window_dataset import Chunks, WindowBatch, WindowDataset
from ttm.policy.network.inputs import PolicyInputs
from ttm.policy.network.relative.relative_actions import RelativeActions
from ttm.training.cloning.augmentation import ImageChanges
from ttm.training.cloning.frozen_vision.feature_cache import EpisodeFeatures
from ttm.training.cloning.input_dropout import drop_inputs
from ttm.training.cloning.memory_start import FromZero, MemoryStart, Pick
from ttm.training.cloning.processes.group import Processes
from ttm.training.cloning.recall.targets import RecallTargets
from ttm.training.cloning.settings.groups import AugmentationConfig, InputDropoutConfig, LossConfig
from ttm.training.cloning.worker_processes import made_by_workers
from ttm.training.common.recorded.delays import Delays
from ttm.training.common.recorded.window_inputs import policy_inputs


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
        dropout: InputDropoutConfig | None = None,
        loss: LossConfig | None = None,
        augmentation: AugmentationConfig | None = None,
        memory: MemoryStart | None = None,
        tick_weights: Tensor | None = None,
        features: EpisodeFeatures | None = None,
        recall: RecallTargets | None = None,
        chunk: int = 1,
        form: RelativeActions | None = None,
        longest_delay_s: float = 0.0,
        workers: int = 0,
        processes: Processes | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Make a source; no batch is prepared yet.

        dropout, loss: None for their defaults. augmentation: None for none. memory: None for
        `FromZero`. tick_weights: (num_ticks,), None for 1. features: of frozen vision, in place of
        the images of `windows`; None for a vision that is trained. recall: None for no recall loss.
        chunk: K, the actions that the policy predicts at each tick. form: in which it predicts them; None
        for that of the robot. longest_delay_s: see `Delays`; 0 for a policy that is not told of delays.
        workers: processes that make batches; 0 for a thread of this process. processes: those that
        share each batch, so that this source makes the windows of its own; None for all windows.
        device: where they are trained on; a GPU augments the images itself. None for the CPU.
        """
        self.windows = windows
        self.batch_size = batch_size
        self.seed = seed
        self.memory = FromZero() if memory is None else memory
        self._dropout = InputDropoutConfig() if dropout is None else dropout
        self._augmentation = augmentation
        weight = (LossConfig() if loss is None else loss).transition_weight
        self._weights = windows.binary_transition_weights(weight)
        self.tick_weights = torch.ones(windows.num_ticks) if tick_weights is None else tick_weights
        self.features = features
        self.recall = recall
        self.chunk = chunk
        self._form = form
        planned_spec = form.predicted_spec if form else windows.spec
        self._delays = Delays(planned_spec, longest_delay_s) if longest_delay_s else None
        self.workers = workers
        self.processes = Processes() if processes is None else processes
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
        too. recent: see `FrameStore.gather`.
        """
        rng = np.random.default_rng([self.seed, step])
        total, rows = len(pick.places), self.processes.rows(len(pick.places))
        gathered = self.windows.gather_at(
            pick.places[rows], burn_in=burn_in, ticks=pick.ticks, recent=recent
        )
        ticks = gathered["dataset_tick"]
        inputs = drop_inputs(policy_inputs(gathered), self._dropout, rng, total, rows)
        changes = self._changes(inputs.images, total, rows, rng)
        versions = self._versions(total, rows, rng)
        if self.features is not None:
            inputs = self.features.into(inputs, ticks, versions)
        targets = None
        if self.recall is not None:
            whole_past = self.memory.carries and not pick.restart
            targets = self.recall.at(ticks, versions, whole_past=whole_past)
        reset = gathered["episode_start"]
        reset[:, 0] |= pick.restart
        delay_s = self._delays_of(gathered, rng, total, rows)
        ahead = 0 if self._delays is None else self._delays.ticks_ahead
        coming = self._averageable(self.windows.chunks(gathered, self.chunk + ahead))
        seen_at = coming.dataset_tick[:, :, : self.chunk]
        coming = self._in_force(coming, delay_s)
        batch = TrainingBatch(
            replace(inputs, delay_s=delay_s),
            self._planned(coming.actions, seen_at),
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

    def _averageable(self, coming: Chunks) -> Chunks:
        """Return the actions in the form of the policy's plans, (B, T, n, P), of which delays take means."""
        if not self._form:
            return coming
        return coming._replace(actions=self._form.averageable(coming.actions))

    def _planned(self, actions: Tensor, ticks: Tensor) -> Tensor:
        """Return the demonstrated actions, (B, T, K, P), as `Policy.decode_chunk` returns them.

        ticks: (B, T, K), the ticks whose observations the commands are made of.
        """
        if not self._form:
            return actions
        return self._form.plan(actions, self.windows.measured(ticks))

    def _delays_of(
        self, gathered: WindowBatch, rng: np.random.Generator, total: int, rows: slice
    ) -> Tensor | None:
        """Draw the delay of each window, (B, T) in seconds, if the policy is told of delays."""
        if self._delays is None:
            return None
        delay_s = self._delays.drawn(total, rng)[rows].to(gathered["actions"].device)
        return delay_s[:, None].expand(gathered["valid"].shape).contiguous()

    def _in_force(self, coming: Chunks, delay_s: Tensor | None) -> Chunks:
        """Return the actions to learn, where `coming` may have more than these."""
        if self._delays is None or delay_s is None:
            return coming
        return self._delays.in_force(coming, delay_s[:, 0], self.chunk)

    def _changes(
        self, images: Mapping[str, Tensor], total: int, rows: slice, rng: np.random.Generator
    ) -> dict[str, ImageChanges] | None:
        """Draw how the images of `total` windows change; return that of the windows `rows`."""
        if self._augmentation is None:
            return None
        drawn = {
            name: ImageChanges.drawn(total, (x.shape[-2], x.shape[-1]), self._augmentation, rng)
            for name, x in images.items()
        }
        return {name: change.of_windows(rows) for name, change in drawn.items()}

    def _versions(self, total: int, rows: slice, rng: np.random.Generator) -> Tensor | None:
        """Draw the version of the cached frames of each window, (B,) int64, if there are several."""
        if self.features is None or self.features.versions == 1:
            return None
        return torch.from_numpy(rng.integers(self.features.versions, size=total))[rows]
