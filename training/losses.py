"""A batch of behaviour cloning, and its losses: one for each part of the action, and the recall loss.

The few ticks at which the gripper opens or closes decide a task, so the losses of binary parts
weight these ticks more than others (`LossConfig`). Weights of ticks apply to all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState
from ttm.policy.inputs import FeatureMaps, PolicyInputs
from ttm.policy.layers import Mlp
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory
from ttm.policy.spec import PolicySpec
from ttm.training.augmentation import ImageChanges


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
    """(B, T, C) float32, with a recall loss; NaN where it does not ask."""
    changes: Mapping[str, ImageChanges] | None = None
    """Camera -> what is still to be done to its images, where a GPU augments them."""

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
        inputs = self.inputs.each_tensor(change)
        return replace(self, inputs=inputs, **self._own_tensors(change))

    def _own_tensors(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the tensors but those of `inputs` and `changes`, as `change` returns them."""
        return {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}

    def of_windows(self, rows: slice) -> TrainingBatch:
        """Return all ticks of some of the windows."""
        changes = self.changes and {n: each.of_windows(rows) for n, each in self.changes.items()}
        tensors = self._own_tensors(lambda value: value[rows])
        return replace(self, inputs=self.inputs.of_windows(rows), changes=changes, **tensors)

    def at_ticks(self, ticks: slice) -> TrainingBatch:
        """Return some ticks of all windows, as a batch without burn-in."""
        tensors = self._own_tensors(lambda value: value[:, ticks])
        inputs = self.inputs.at_ticks(ticks)
        return replace(self, inputs=inputs, burn_in=0, changes=None, **tensors)


def part_weights(spec: PolicySpec, weights: Tensor, tick_weights: Tensor) -> dict[str, Tensor]:
    """Return the weights of the ticks in the loss of each part, by its name, (…) each.

    weights: (…, A), which count for the dimensions of binary parts; tick_weights: (…).
    """
    return {
        part.name: tick_weights * weights[..., spec.action_slices[part.name]].amax(dim=-1)
        if part.kind == "binary"
        else tick_weights
        for part in spec.actions
    }


def weight_sums(spec: PolicySpec, batch: TrainingBatch) -> dict[str, Tensor]:
    """Return the sum of the weights over which each loss of `cloning_losses` is a mean, by its name."""
    valid = batch.valid.unsqueeze(-1).to(torch.float32)
    weights = part_weights(spec, batch.weights, batch.tick_weights)
    sums = {name: (valid * weight).sum() for name, weight in weights.items()}
    return {**sums, **dict.fromkeys(RECALL, asked(batch).sum())}


def asked(batch: TrainingBatch) -> Tensor:
    """Return at which ticks the recall loss asks, (B, T) bool."""
    if batch.recall_targets is None:
        return batch.valid
    return batch.valid & ~batch.recall_targets[..., 0].isnan()


def cloning_losses(
    policy: Policy,
    batch: TrainingBatch,
    memory: CoreState | None = None,
    recall: RecallLoss | None = None,
    portions: Mapping[str, Tensor] | None = None,
    burn_in: Callable[[Policy, TrainingBatch], CoreState] | None = None,
) -> tuple[dict[str, Tensor], CoreState]:
    """Return part name -> scalar loss with their sum as "loss", and the memory at the end.

    memory: the memory before the first tick; None for the initial memory. A batch with a burn-in
    starts from the memory after its burn-in instead. recall: its weighted loss is a part of the
    sum, and its results are among those returned; the batch must have `recall_targets`. portions:
    of each of the `weight_sums` of a larger batch, the portion that is in `batch`, so that the losses
    of its parts add up to its own; None for a whole batch. burn_in: `memory_after`, perhaps not compiled.
    """
    if batch.burn_in:
        memory = (burn_in or memory_after)(policy, batch.at_ticks(slice(0, batch.burn_in)))
        batch = batch.at_ticks(slice(batch.burn_in, None))
    tokens, sight = policy.core_inputs(batch.inputs, memory, batch.memory_reset)
    outputs, memory = policy.core_outputs(tokens, memory, batch.memory_reset)
    memory |= sight
    raw = policy.action_head(outputs)
    weights = part_weights(policy.spec, batch.weights, batch.tick_weights)
    valid = batch.valid.unsqueeze(-1).expand_as(batch.tick_weights)
    measured = batch.inputs.proprioception
    losses = policy.loss(raw, batch.actions, measured, valid=valid, weights=weights)
    losses = _scaled(losses, portions)
    total = torch.stack(list(losses.values())).sum()
    if recall is not None and batch.recall_targets is not None:
        held = outputs.mean(dim=2)
        recalled = _scaled(recall(held, batch.recall_targets, asked(batch)), portions)
        losses, total = {**losses, **recalled}, total + recall.weight * recalled["recall"]
    return {**losses, "loss": total}, memory


def _scaled(losses: dict[str, Tensor], portions: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    if portions is None:
        return losses
    return {name: loss * portions[name] for name, loss in losses.items()}


@torch.no_grad()
def memory_after(policy: Policy, batch: TrainingBatch) -> CoreState:
    """Return the memory after the ticks of `batch`, which start from the initial memory.

    The policy runs without gradient and in evaluation mode, as it does on the robot.
    """
    training = policy.training
    policy.eval()
    _, memory = policy(batch.inputs, None, batch.memory_reset)
    policy.train(training)
    # Autocast caches the weights that it casts. Older versions of PyTorch (issue 65766) would reuse
    # the ones cast here, which have no gradient, for the window itself.
    torch.clear_autocast_cache()
    return memory


HIDDEN_SIZE = 256
RECALL = ("recall", "recall_ratio")
"""The names of the results of `RecallLoss`."""


class RecallLoss(nn.Module):
    """Predict targets from the mean of a core's output tokens, by an MLP.

    With `RecallTargets` this loss, which is ours, rewards the memory at every tick for what it keeps,
    without labels, where behaviour cloning does so only at the few ticks whose action depends on the past.
    It teaches neither counts nor orders. Checkpoints do not hold its network.
    """

    def __init__(self, width: int, size: int, weight: float) -> None:
        """width: D of the core. size: C of the targets. weight: of this loss in the total."""
        super().__init__()
        self.weight = weight
        self.mlp = Mlp(width, HIDDEN_SIZE, size)

    def forward(self, held: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the smooth L1 error as "recall", and its ratio to that of predicting zero.

        held: (B, T, D), the means of output tokens. targets: (B, T, size). valid: (B, T) bool, the
        ticks that have one. The ratio, "recall_ratio", is about 1 as long as nothing of the past is held,
        and falls when the memory learns; it is 1 where there is nothing to recall.
        """
        recalled: Tensor = self.mlp(held)
        found, wanted = recalled[valid], targets[valid]
        count = max(1, wanted.numel())  # no tick may have a target
        error = F.smooth_l1_loss(found, wanted, reduction="sum") / count
        zero = F.smooth_l1_loss(torch.zeros_like(wanted), wanted, reduction="sum") / count
        return {"recall": error, "recall_ratio": torch.where(zero > 0, error / zero, 1.0).detach()}


class RecallTargets:
    """The targets of all ticks of a data set: what was seen and is seen no more.

    At tick t it is c_s - c_t, where c are the codes of ticks, and s is the tick before t of the same
    stand-still whose code is farthest from c_t. While the robot stands, what changes is the world and not
    the view of it. A tick at which a stand-still begins has no target, which NaN marks.
    """

    def __init__(self, codes: Tensor, lengths: Sequence[int], stands: Tensor) -> None:
        """codes: (num_ticks, C), of episodes of these lengths one after another.

        stands: (num_ticks,), as `stand_stills` returns it.
        """
        self.codes, self._stands = codes, stands
        self._episodes = torch.repeat_interleave(torch.tensor(lengths))
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        parts = zip(
            starts, codes.split(list(lengths)), self._stands.split(list(lengths)), strict=True
        )
        self._farthest = torch.cat(
            [start + _farthest(c[None], s[None])[0] for start, c, s in parts]
        )

    @property
    def size(self) -> int:
        """C, the dimensions of a target."""
        return self.codes.shape[1]

    def at(self, ticks: Tensor, *, whole_past: bool = False) -> Tensor:
        """Return the targets of windows of dataset ticks (B, T), as (B, T, C).

        whole_past: whether the ticks of the episode before the window count as seen, because its
        memory is carried over. Otherwise the past begins with the window.
        """
        codes, stands = self.codes[ticks], self._stands[ticks]
        if whole_past:
            targets, first = self.codes[self._farthest[ticks]] - codes, ticks == 0
            before = self._stands[(ticks - 1).clamp_min(0)]
        else:
            farthest = _farthest(codes, stands).unsqueeze(-1).expand_as(codes)
            targets, before = codes.gather(1, farthest) - codes, stands.roll(1, dims=1)
            first = torch.arange(ticks.shape[1]) == 0
        return targets.masked_fill(((before != stands) | first).unsqueeze(-1), float("nan"))


ROWS_AT_ONCE = 1024


def _farthest(codes: Tensor, stands: Tensor) -> Tensor:
    """Return which tick of the same stand-still up to each tick has the code farthest from its own.

    codes: (B, T, C). stands: (B, T). Returns (B, T).
    """
    found = []
    for start in range(0, codes.shape[1], ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, codes.shape[1])
        away = 1 + torch.cdist(codes[:, start:stop], codes[:, :stop])
        same = stands[:, start:stop, None] == stands[:, None, :stop]
        found.append((away * same).tril(start).argmax(dim=2))
    return torch.cat(found, dim=1)


LESSONS, FRAMES, LEARNING_RATE = 4800, 256, 5e-3
"""Of `learn_memory`: the steps, the frames of each, and the peak learning rate."""
SHORTEST_STAND, LAST_TICKS = 4, 8
"""The fewest ticks of a stand-still that tells what will be gone, and the most of its last ones."""
CELLS = 32.0
"""The weight of the loss of the cells beside that of frames."""
DIFFERENT = 0.7
"""What will be gone differs by so much of the spread of a frame's cells."""


def learn_memory(
    memory: SightMemory,
    look: Callable[[Tensor], FeatureMaps],
    stands: Sequence[Sequence[int]],
    *,
    steps: int,
    seed: int,
) -> Iterator[tuple[float, float]]:
    """Train what a sight memory keeps: what it sees while the robot stands, and will see no more.

    Ours. A cell of a frame will be gone if it differs from all cells near it in the last quarter of the
    same stand-still; see `will_be_gone`. What stays needs no memory, and can be looked at again. The cells
    learn to tell what will be gone from single frames, by cross-entropy, and the memory opens where one of
    them more likely than not will be. What is seen in motion after a stand-still is not kept; what an
    episode shows before its first stand-still teaches nothing. No action or instruction takes part. Yields
    for each step at which portion of frames with and without such cells it opens.

    look: returns what the memory sees at dataset ticks (B, T). stands: for each episode, the ticks of each
    of its stand-stills, one after another; a tick in motion is one of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    count = sum(map(sum, stands))
    drawn = torch.randint(count, (1, FRAMES), generator=generator)
    sample = look(drawn).maps.float()
    memory.offset.copy_(sample.mean(dim=(0, 2, 3))[:, None, None])
    within = (sample - sample.mean(dim=(2, 3), keepdim=True)).square().mean(dim=(0, 2, 3))
    memory.scale.copy_(within.clamp_min(1e-12).rsqrt()[:, None, None])
    gone, taught = torch.zeros(count, len(memory.positions), dtype=torch.bool), list[Tensor]()
    start = 0
    for episode in stands:
        stood = False
        for length in episode:
            ticks = torch.arange(start, start + length)
            if length >= SHORTEST_STAND:
                seen, stood = look(ticks[None]), True
                maps = (seen.maps.float() - memory.offset) * memory.scale
                gone[ticks] = will_be_gone(maps[seen.index[0]]).cpu()
            taught += [ticks] * stood
            start += length
    lesson = torch.cat(taught) if taught else torch.arange(count)
    trained = memory.selector()
    for each in trained:
        each.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    for _ in range(steps):
        ticks = lesson[torch.randint(len(lesson), (FRAMES,), generator=generator)]
        seen = look(ticks[None])
        logits = memory.logits(memory.normalized(seen.maps))[seen.index[0]]
        cells = gone[ticks].to(logits)
        most, opens = logits.amax(dim=1), cells.any(dim=1)
        loss = CELLS * F.binary_cross_entropy_with_logits(logits, cells)
        loss = loss + F.binary_cross_entropy_with_logits(most, opens.float())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        opened = memory.opens(logits).float()
        yield opened[opens].mean().item(), opened[~opens].mean().item()
    for each in trained:
        each.requires_grad_(False)
        each.grad = None  # which the first step of the policy would take for its own


def will_be_gone(maps: Tensor) -> Tensor:
    """Return which cells show what is not seen at the end of a stand-still, (T, P) bool.

    maps: (T, C, h, w), normalised, its ticks. A cell is compared with itself and its eight neighbours, as
    the camera may shake, at each of the last ticks but the very last, in which new things may stand there.
    """
    maps = maps - maps.mean(dim=(2, 3), keepdim=True)
    maps = maps / maps.square().sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True).sqrt()
    ticks, channels = maps.shape[:2]
    last = maps[-min(LAST_TICKS, max(2, -(-ticks // 4))) : -1]
    around = F.unfold(F.pad(last, (1, 1, 1, 1), mode="replicate"), 3)
    around = around.view(len(last), channels, 9, -1)  # (R, C, 9, P)
    cells = maps[:-1].flatten(2).unsqueeze(2)  # (T - 1, C, 1, P)
    least = [(cells - each).square().sum(dim=1).amin(dim=1) for each in around]
    return F.pad(torch.stack(least).amin(dim=0) > DIFFERENT, (0, 0, 0, 1))  # the very last: none
