"""From `--data` to batches: opening and joining data sets, choosing cameras, and what step k trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from ttm.datasets.episode import EpisodeDataset, open_dataset
from ttm.datasets.windows.windows import WindowBatch, WindowDataset
from ttm.policy.errors import UserError
from ttm.policy.network.policy import PolicyInputs
from ttm.policy.spec import PolicySpec
from ttm.training.cloning.augmentation import AugmentationConfig, augment
from ttm.training.cloning.behavior_cloning import Batch, BehaviorCloningConfig, drop_inputs
from ttm.training.cloning.memory_start import FromZero, MemoryStart, Pick


def open_all(paths: Sequence[str], cameras: Sequence[str] = ()) -> list[EpisodeDataset]:
    """Opens every data set and, if `cameras` are named, keeps those alone; all must then be of one spec."""
    if not paths:
        raise UserError("no data is given; name HDF5 files, folders of them, or globs with --data")
    opened = [_with_cameras(open_dataset(path), cameras) for path in paths]
    for other in opened[1:]:
        opened[0].spec.require_compatible(other.spec, ours=opened[0].source, theirs=other.source)
    return opened


def split(opened: Sequence[EpisodeDataset], mask: str) -> EpisodeDataset:
    """The episodes of all data sets that `mask` names (see `EpisodeDataset.filter`)."""
    parts = [dataset.filter(mask) for dataset in opened]
    episodes = [episode for part in parts for episode in part]
    notes = dict.fromkeys(part.note for part in parts if part.note)
    source = ", ".join(part.source for part in parts)
    return EpisodeDataset(episodes, opened[0].spec, source=source, note="; ".join(notes))


def policy_inputs(batch: WindowBatch) -> PolicyInputs:
    """The network's inputs of a batch, nothing dropped or augmented."""
    return PolicyInputs(
        images={name: frames.permute(0, 1, 4, 2, 3) for name, frames in batch["images"].items()},
        proprioception=batch["proprioception"],
        previous_action=batch["previous_action"],
        previous_action_valid=batch["previous_action_valid"],
        proprioception_valid=None,
        language=batch["language"],
    )


class BatchSource:
    """Batches by step number: everything random in batch k is drawn from a generator seeded by (seed, k)."""

    def __init__(
        self,
        windows: WindowDataset,
        batch_size: int,
        cloning: BehaviorCloningConfig,
        augmentation: AugmentationConfig | None,
        seed: int,
        memory: MemoryStart | None = None,
    ) -> None:
        """memory: what windows begin with; None for the initial memory."""
        self.windows = windows
        self.batch_size = batch_size
        self.seed = seed
        self.memory = FromZero() if memory is None else memory
        self._cloning = cloning
        self._augmentation = augmentation
        self._weights = windows.binary_transition_weights(cloning.transition_weight)

    def sample(self, count: int) -> Iterator[Batch]:
        """`count` batches from the initial memory, the same at every call and at every step of a training."""
        picks = FromZero().picks(self.windows, self.batch_size, self.seed, first_batch=0)
        for step, pick in zip(range(count), picks, strict=False):
            yield self.make(pick, step, burn_in=0)

    def batches(self, first_step: int) -> Iterator[Batch]:
        """The batches of `first_step`, `first_step` + 1, …, each made while the one before it is used."""
        picks = self.memory.picks(self.windows, self.batch_size, self.seed, first_step)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
            coming = None
            for step, pick in enumerate(picks, start=first_step):
                ready, coming = coming, pool.submit(self.make, pick, step, self.memory.burn_in)
                if ready is not None:
                    yield ready.result()

    def make(self, pick: Pick, step: int, burn_in: int) -> Batch:
        """The windows `pick` as the batch of `step`. What is drawn for a window holds over its burn-in too."""
        rng = np.random.default_rng([self.seed, step])
        gathered = self.windows.gather_at(pick.places, burn_in=burn_in)
        inputs = drop_inputs(policy_inputs(gathered), self._cloning, rng)
        if self._augmentation is not None:
            config = self._augmentation
            inputs = replace(
                inputs, images={name: augment(x, config, rng) for name, x in inputs.images.items()}
            )
        weights = self._weights[gathered["dataset_tick"]]
        reset = gathered["episode_start"]
        reset[:, 0] |= pick.restart
        return Batch(inputs, gathered["actions"], gathered["valid"], weights, reset, burn_in)


def _with_cameras(dataset: EpisodeDataset, names: Sequence[str]) -> EpisodeDataset:
    if not names:
        return dataset
    have = {camera.name: camera for camera in dataset.spec.cameras}
    for name in names:
        if name not in have:
            raise UserError(
                f"camera '{name}' is not in this data; it has: {', '.join(have) or 'none'} ({dataset.source})"
            )
    spec: PolicySpec = replace(dataset.spec, cameras=tuple(have[name] for name in names))
    return EpisodeDataset(list(dataset), spec, source=dataset.source, note=dataset.note)
