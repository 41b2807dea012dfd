"""Where the time of a training step goes, told by hooks on the policy's modules.

A step passes through the parts forward and then, in the opposite order, backward. Hooks on modules,
and on the gradients of what passes between them, mark where one part ends and the next one begins.
Every moment of a step belongs to one part.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.training.cloning.batches import TrainingBatch
from ttm.training.cloning.loop.trainer import Trainer

Part = Literal["batch", "vision", "cameras", "inputs", "core", "head", "recall", "weights"]
Pass = Literal["forward", "backward"]


@dataclass
class Seconds:
    """Seconds of the processor, of all threads together, and of the clock on the wall."""

    processor: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.processor + other.processor, self.wall + other.wall)

    @classmethod
    def now(cls) -> Seconds:
        """Read both clocks."""
        return cls(time.process_time(), time.perf_counter())


PartTimes = dict[tuple[Part, Pass], Seconds]


class PartClock:
    """Adds the time since the last mark to the part that has just ended."""

    def __init__(self) -> None:
        self.taken: PartTimes = defaultdict(Seconds)
        self._last = Seconds.now()

    def restart(self) -> None:
        """Begin to count here."""
        self._last = Seconds.now()

    def ends(self, part: Part, direction: Pass) -> None:
        """Mark the end of a part."""
        now, last = Seconds.now(), self._last
        taken = Seconds(now.processor - last.processor, now.wall - last.wall)
        self.taken[part, direction] += taken
        self._last = now


@dataclass(frozen=True)
class Watched:
    """A module whose ends are marked, and which part's time runs before and after it."""

    module: nn.Module
    part: Part
    before: Part
    """The part that runs forward before it."""
    after: Part
    """The part that runs backward before it, since it comes after it forward."""

    def attach(self, clock: PartClock) -> list[RemovableHandle]:
        """Add the hooks, which keep `clock`."""

        def begins(module: nn.Module, args: tuple[Any, ...]) -> None:
            clock.ends(self.before, "forward")
            if isinstance(args[0], Tensor) and args[0].requires_grad:
                args[0].register_hook(lambda gradient: clock.ends(self.part, "backward"))

        def ends(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            clock.ends(self.part, "forward")
            out = output[0] if isinstance(output, tuple) else output
            out.register_hook(lambda gradient: clock.ends(self.after, "backward"))

        return [
            self.module.register_forward_pre_hook(begins),
            self.module.register_forward_hook(ends),
        ]


def watched_modules(trainer: Trainer) -> list[Watched]:
    """Return the modules at whose ends the parts of a step begin and end."""
    policy = trainer.policy
    *cameras, last = policy.camera_tokens
    found = [Watched(policy.vision, "vision", before="inputs", after="cameras")]
    found += [Watched(camera, "cameras", before="inputs", after="cameras") for camera in cameras]
    found.append(Watched(last, "cameras", before="inputs", after="inputs"))
    found.append(Watched(policy.core, "core", before="inputs", after="head"))
    found.append(Watched(policy.action_head, "head", before="head", after="head"))
    if trainer.recall is not None:
        found.append(Watched(trainer.recall.mlp, "recall", before="head", after="recall"))
    return found


def timed_step(trainer: Trainer, make: Callable[[], TrainingBatch]) -> PartTimes:
    """Take a training step on the batch that `make` returns, and return the seconds of its parts.

    Losses count backward.
    """
    clock = PartClock()
    handles = [handle for each in watched_modules(trainer) for handle in each.attach(clock)]
    clock.restart()
    batch = make()
    clock.ends("batch", "forward")
    trainer.backpropagate(batch)
    clock.ends("vision" if trainer.source.features is None else "cameras", "backward")
    trainer.update_weights()
    clock.ends("weights", "forward")
    for handle in handles:
        handle.remove()
    return dict(clock.taken)
