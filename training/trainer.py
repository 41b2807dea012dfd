"""The training loop: takes batches, moves the weights and their average, writes checkpoints and errors."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ttm.policy.checkpoint import save_checkpoint
from ttm.policy.cores.core import CoreState
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.errors import UserError
from ttm.policy.files import write_json
from ttm.policy.policy import Policy
from ttm.training.batches import BatchSource
from ttm.training.distributed import Fabric, Processes, shares
from ttm.training.losses import RecallLoss, TrainingBatch, cloning_losses, memory_after, weight_sums
from ttm.training.options import OptimizerConfig, TrainOptions
from ttm.training.resume import TrainingProgress, load_memory, load_resume, save_resume
from ttm.training.run_log import BEST, LAST, RESULT, RunLog, outcome, resume_path, save_step
from ttm.training.runtime import Interruption
from ttm.training.validation import EpisodeErrors

CALIBRATION_BATCHES = 8
"""Batches from which the statistics of BatchNorm are found for the averaged weights."""
LOG_EVERY, IMAGES_EVERY, SAVE_EVERY_S = 10, 1000, 180.0
"""Steps between two writings of scalars and of sample images, and seconds between two savings."""


class Trainer:
    """Trains one policy and writes all files into the folder `out`.

    Where several processes train together, each has a trainer of its own, and all of them do the
    same; the first alone writes files.
    """

    def __init__(
        self,
        options: TrainOptions,
        policy: Policy,
        source: BatchSource,
        errors: Mapping[str, EpisodeErrors],
        fabric: Fabric,
        recall: RecallLoss | None = None,
        *,
        info: Mapping[str, Any] = MappingProxyType({}),
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """errors: of the "training" episodes, and of the "validation" episodes if there are any.

        recall: trained along with the policy, but not saved in checkpoints; None for none. info: data,
        command and date, for the checkpoints and `result.json`. facts: see `save_resume`.
        """
        self.options, self.out, self.budget = options, options.out, options.budget
        self.fabric, self.source = fabric, source
        self.info, self.facts, self.errors = dict(info), facts, errors
        self.device, self.processes = fabric.device, source.processes
        self.memory_s = 0.0  # of the CPU, for what a sight memory learned before this
        self.policy = fabric.to_device(policy)
        self.average = WeightAverage(self.policy, options.optimization.average_decay)
        self.recall = None if recall is None else fabric.to_device(recall)
        self._models = {"trained": self.policy, "average": self.average.model}
        self._models |= {} if self.recall is None else {"recall": self.recall}
        self._trained = nn.ModuleList(filter(None, (self.policy, self.recall)))
        if self.device.type == "cpu":
            quicker_on_cpu(self._trained)
        losses = _CloningLosses(self.policy, self.recall)
        if options.compile:  # the losses of a batch become one graph, with all ticks of a window
            losses.burn = torch.compiler.disable(memory_after)  # changes the policy's mode
            losses.compile(backend=BACKEND)
        self._losses = fabric.strategy.setup_module(losses)
        decay = options.optimization.weight_decay
        self.optimizer = build_optimizer(self._trained, decay, options.optimizer)
        self.progress = TrainingProgress()
        self._memory: CoreState | None = None  # the memory that the next batch starts from
        self._baselines = {
            name: {"mean_action": e.mean_action(), "previous_action": e.previous_action()}
            for name, e in errors.items()
        }
        self._latest: dict[str, Any] = {}
        self._diverged_at = torch.zeros((), dtype=torch.int64, device=self.device)
        self.clock, self.sees = Clock(self.processes), policy.vision is not None

    def resume(self, path: Path) -> None:
        """Continue the training whose state is saved in `path`."""
        self.progress = load_resume(path, self._models, self.optimizer)
        self._memory = self.processes.windows_of_this(load_memory(path, self.device))
        self.average.updates = self.progress.step

    def run(self, log: RunLog) -> int:
        """Train until the budget is spent, nothing improves any more, or a signal asks to stop.

        Returns the exit code: 0, or in the first process that of the signal.
        """
        self.clock.start(self.progress.elapsed_s)
        self._begun_at = self.progress.step
        with Interruption() as interruption:
            for batch in () if self._done else self.source.batches(self.progress.step):
                self._train_step(batch, log)
                self.progress.elapsed_s = self.clock.agree(interruption)
                self._find_pace(log)
                if interruption.signal_number is not None:
                    break
                self._validate_or_save(log)
                self._step_begun_s = time.monotonic()
                if self._done:
                    break
            self._finish(log, whole=interruption.signal_number is None)
            self.processes.wait()  # until the first has written its files
            return interruption.exit_code if self.processes.first else 0

    @property
    def _done(self) -> bool:
        """Whether the budget is spent, or --early-stopping has ended the training."""
        return self.used >= 1 or self._stops_early

    @property
    def _stops_early(self) -> bool:
        patience = self.options.keeping.early_stopping
        return patience is not None and self.progress.validations_since_best >= patience

    @property
    def used(self) -> float:
        """The portion of the budget that was used when the clock was last read, in [0, 1]."""
        return self.budget.progress(self.progress.step, self.progress.elapsed_s)

    def backpropagate(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Compute losses and gradients of a batch: the first half of a step.

        batch: the windows of this process. Returns the portions of the losses that are of these windows.
        """
        self.policy.train()
        self.optimizer.zero_grad(set_to_none=True)
        rows = shares(len(batch.valid), self.options.processes.accumulate)
        parts = [batch.of_windows(each) for each in rows] if len(rows) > 1 else [batch]
        losses, memories = [], []
        for part, each, portions in zip(parts, rows, self._portions(parts), strict=True):
            before = self._memory and {name: value[each] for name, value in self._memory.items()}
            # Processes exchange gradients at the last part alone, and take their mean: they are to be added.
            waits = isinstance(self._losses, DistributedDataParallel) and part is not parts[-1]
            with self._losses.no_sync() if waits else nullcontext():
                with self.fabric.autocast():
                    found, memory = self._losses(part.to(self.device), before, portions)
                self.fabric.backward(found["loss"] * self.processes.count)
            losses.append(found)
            memories.append(memory)
        memory = {name: torch.cat([each[name] for each in memories]) for name in memories[0]}
        self._memory = self.source.memory.kept(memory)
        return {name: torch.stack([each[name] for each in losses]).sum(0) for name in losses[0]}

    def _portions(self, parts: Sequence[TrainingBatch]) -> Sequence[dict[str, Tensor] | None]:
        """Return which portion of each loss, a weighted mean, each part has; None for a whole batch."""
        if len(parts) == self.processes.count == 1:
            return [None]
        held = [weight_sums(self.policy.spec, part) for part in parts]
        weights = torch.stack([torch.stack(list(each.values())) for each in held]).double()
        portions = weights / self.processes.sum(weights.sum(0)).clamp_min(LEAST_WEIGHT)
        return [dict(zip(held[0], each.float(), strict=True)) for each in portions]

    def update_weights(self) -> Tensor:
        """Move weights and their average: the second half. Returns the gradient's norm."""
        limit = self.options.optimizer.gradient_limit
        norm: Tensor = torch.nn.utils.clip_grad_norm_(self._trained.parameters(), limit)
        self.optimizer.step()
        self.average.update()
        return norm

    def _train_step(self, batch: TrainingBatch, log: RunLog) -> None:
        step = self.progress.step
        torch.manual_seed(self.options.seed * 1_000_003 + step)  # dropout within the network
        learning_rate = self.options.optimizer.learning_rate(self.options.peak, step, self.used)
        set_learning_rate(self.optimizer, learning_rate)
        scalars = self.backpropagate(batch)
        scalars["gradient_norm"] = self.update_weights() / self.processes.count
        self.progress.step += 1
        # The first step that is not finite stays on the device: reading it would wait for a GPU.
        bad = ~torch.isfinite(scalars["loss"].detach() + scalars["gradient_norm"])
        first = bad & (self._diverged_at == 0)
        self._diverged_at = torch.where(first, self.progress.step, self._diverged_at)
        log.add(scalars)
        if step % IMAGES_EVERY == 0:
            log.write_images(step, batch.of_windows(slice(0, 4)).to(self.device).inputs.images)
        if self.progress.step % LOG_EVERY == 0:
            self._require_finite()
            log.write(self.progress.step, self.used, learning_rate)

    def _find_pace(self, log: RunLog) -> None:
        """Time the second step of this run, since the first one allocates, and say if too few will fit."""
        done = self.progress.step - self._begun_at
        if done in (1, 2):
            self._require_finite()  # which waits for a GPU
        if done == 2:
            step, step_s = self.progress.step, time.monotonic() - self._step_begun_s
            steps = step + self.budget.left(step, self.progress.elapsed_s, step_s)
            if short := self.options.too_short(steps, step_s, self.sees):
                log.say(f"note: {short}")

    def _require_finite(self) -> None:
        """Raise `UserError` if a loss or gradient was not finite; call it before anything is written."""
        steps = [step for step in self.processes.gathered(int(self._diverged_at)) if step]
        if steps:
            self._diverged(f"the loss or its gradient is not finite in step {min(steps)}")

    def _diverged(self, what: str) -> None:
        advice = "lower --learning-rate or optimizer.gradient-limit, or look for faults with ttm data check"
        if resume_path(self.out).exists():
            advice += f"; --resume --resume-anyway goes on from what {self.out} held before"
        raise UserError(f"{what}; the training has ended and overwrote no checkpoint; {advice}")

    def _validate_or_save(self, log: RunLog) -> None:
        """Validate at even portions of the budget. Save then, every `SAVE_EVERY_S` and as save-every says."""
        due, every = int(self.used * self.options.validations), self.options.keeping.save_every
        validates = due > self.progress.validations
        keeps = every is not None and self.progress.step % every == 0
        if not (validates or keeps or self.clock.since_saved_s > SAVE_EVERY_S):
            return
        self._require_finite()
        self.calibrate()
        if validates:
            self.progress.validations = due
            self._validate(log)
        self._save()
        if keeps and self.processes.first:
            keep = self.options.keeping.keep
            save_step(self.out, self.progress.step, self.average.model, self._info(), keep)
        log.restart_clock()

    def _finish(self, log: RunLog, *, whole: bool) -> None:
        """Save everything. A complete training also evaluates the errors on training episodes."""
        self._require_finite()
        if self._latest.get("step") != self.progress.step:
            self.calibrate()
            if whole:
                self._validate(log)
        if whole and "training" in self.errors:
            self._latest["training"] = self.evaluate("training")
        self._save()
        if self.progress.best_error is None or not (self.out / BEST).exists():
            self._save_checkpoint(BEST)
        how = "finished" if whole else "interrupted"
        if whole and self._stops_early:
            how = f"stopped early (lowest error at step {self.progress.best_step})"
        log.say(f"{how} after step {self.progress.step}; saved in {self.out}")
        if whole and self.processes.first:
            step, elapsed_s = self.progress.step, self.progress.elapsed_s
            short = self.options.too_short(step, elapsed_s / max(step, 1), self.sees)
            log.say(outcome(self._latest, self.progress.best_step, self.out, short))

    def calibrate(self) -> None:
        """Find BatchNorm's statistics for the averaged weights; frozen vision keeps its own."""
        if self.source.features is None:
            model = self.average.model
            batches = (batch.to(self.device) for batch in self.source.sample(CALIBRATION_BATCHES))
            calibrate_batch_norm(model, (model(batch.inputs) for batch in batches))

    def _validate(self, log: RunLog) -> None:
        """Evaluate the averaged weights on held-out episodes; save them if they are the best."""
        step = self.progress.step
        self._latest = {"step": step}
        if "validation" not in self.errors:
            return
        found = self._latest["validation"] = self.evaluate("validation")
        error = found["policy"]["normalized"]
        if not math.isfinite(error):
            self._diverged(f"the validation error is {error} after step {step}")
        log.write_validation(step, found)
        self.progress.validations_since_best += 1
        if self.progress.best_error is None or error < self.progress.best_error:
            self.progress.best_error, self.progress.best_step = error, step
            self.progress.validations_since_best = 0
            self._save_checkpoint(BEST)

    def evaluate(self, name: str) -> dict[str, Any]:
        """Return the errors of the averaged policy and of the baselines on the same ticks."""
        errors, model = self.errors[name], self.average.model
        found = {
            "policy": errors.policy(model),
            "policy_without_previous_action": errors.policy(model, without_previous_action=True),
            **self._baselines[name],
        }
        return {who: asdict(error) for who, error in found.items()}

    def _save(self) -> None:
        self.progress.elapsed_s = self.clock.saved()
        self._save_checkpoint(LAST)
        memory = self.processes.windows_of_all(self._memory)
        if not self.processes.first:
            return
        state = self.progress, self.facts, self._models, self.optimizer
        save_resume(resume_path(self.out), *state, memory)
        result = {
            "step": self.progress.step,
            "elapsed_s": self.progress.elapsed_s,
            "finished": self._done,
            "stopped_early": self._stops_early,
            "best": {"step": self.progress.best_step, "validation_error": self.progress.best_error},
            **{key: value for key, value in self._latest.items() if key != "step"},
            "units": {part.name: part.unit for part in self.policy.spec.actions},
            "info": self.info,
        }
        write_json(self.out / RESULT, result)

    def _save_checkpoint(self, name: str) -> None:
        if self.processes.first:
            save_checkpoint(self.out / name, self.average.model, self._info())

    def _info(self) -> dict[str, Any]:
        minutes = round(self.progress.elapsed_s / 60, 2)
        return {**self.info, "steps": self.progress.step, "minutes": minutes}


Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    """An exponential moving average of the weights (Polyak averaging), which is what is saved and run.

    `model` is a copy of the trained model with the averaged weights. The decay is at most
    (1 + k) / (10 + k) after k updates, so that a short training is not averaged with its random start.
    """

    def __init__(self, trained: Model, decay: float = 0.999) -> None:
        self.decay, self.updates = decay, 0
        self.model: Model = copy.deepcopy(trained)
        self.model.eval().requires_grad_(False)
        # Buffers that are not saved are constants, which may be infinite, and are left out.
        mine, theirs = self.model.state_dict(), trained.state_dict()
        names = [name for name, value in mine.items() if value.is_floating_point()]
        self._averaged, self._trained = [mine[n] for n in names], [theirs[n] for n in names]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the trained weights; call this after every optimiser step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._averaged, self._trained, 1 - decay)


@torch.no_grad()
def calibrate_batch_norm(model: nn.Module, forwards: Iterable[object]) -> None:
    """Replace BatchNorm's running statistics by those of the weights of `model` on some batches.

    The running statistics of training belong to the trained weights and do not fit their average
    (Izmailov et al. 2018, stochastic weight averaging). Drawing an item from `forwards` must run
    `model` once. Nothing is drawn for a model without BatchNorm.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.train()  # only the norms: dropout elsewhere stays off
    for _ in forwards:
        pass
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


NARROW = 16
"""Muon moves matrices with at least so many rows and columns, which those of outputs do not have."""


def build_optimizer(
    model: nn.Module,
    weight_decay: float,
    config: OptimizerConfig = OptimizerConfig(),  # noqa: B008 (frozen)
) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019), or with it Muon (Jordan et al. 2024) for matrices.

    Muon's steps are scaled to AdamW's (Liu et al. 2025). Biases, normalisations and embeddings do not decay.
    The learning rate is 0 until `set_learning_rate` sets it, which the trainer does before every step.
    """
    matrices: list[Tensor] = []
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": weight_decay},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = name.endswith("weight") and parameter.dim() >= 2
            wide = parameter.dim() == 2 and min(parameter.shape) >= NARROW
            is_muons = config.kind == "muon" and decays and wide
            (matrices if is_muons else groups[0 if decays else 1]["params"]).append(parameter)
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=config.epsilon, fused=True)
    if not matrices:
        return adamw
    if not hasattr(torch.optim, "Muon"):
        raise UserError("optimizer.kind is muon: it needs torch 2.9; update it, or leave kind out")
    given: Any = {"weight_decay": weight_decay, "adjust_lr_fn": "match_rms_adamw"}
    return _Together(torch.optim.Muon(matrices, lr=0.0, **given), adamw)


class _Together(torch.optim.Optimizer):
    """Two optimisers as one. The first has one group of parameters."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self._parts = first, second
        super().__init__([*first.param_groups, *second.param_groups], {})
        self._share()

    def _share(self) -> None:
        for part, groups in zip(self._parts, (slice(1), slice(1, None)), strict=True):
            part.param_groups, part.state = self.param_groups[groups], self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


BACKEND: str | Callable[..., Any] = "inductor"
"""What compiles the graph of --compile; another one in tests, which is quick."""
LEAST_WEIGHT = 1e-6
"""Where the weights of a whole batch add up to less, a loss is 0."""


class _CloningLosses(nn.Module):
    """`cloning_losses` as a module, the form in which Fabric takes what processes share."""

    def __init__(self, policy: Policy, recall: RecallLoss | None) -> None:
        super().__init__()
        self.policy, self.recall, self.burn = policy, recall, memory_after

    def forward(
        self, batch: TrainingBatch, memory: CoreState | None, portions: Mapping[str, Tensor] | None
    ) -> tuple[dict[str, Tensor], CoreState]:
        found, memory = cloning_losses(self.policy, batch, memory, self.recall, portions, self.burn)
        # No gradient flows beyond the batch, and no process waits for one.
        return found, {name: value.detach() for name, value in memory.items()}


class Clock:
    """How long a training has run, and how long ago it was saved.

    All processes have the time of the first, so that each of them makes the same decisions.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.start(0.0)

    def start(self, elapsed_s: float) -> None:
        """Start the clock at `elapsed_s`, as if the training had just been saved."""
        now = time.monotonic()
        self._begun_s, self._saved_s = now - elapsed_s, now
        self._elapsed_s, self.since_saved_s = elapsed_s, 0.0

    def saved(self) -> float:
        """Note that the training has been saved now; return the seconds since it began."""
        self._saved_s, self.since_saved_s = time.monotonic(), 0.0
        if self._processes.count == 1:
            self._elapsed_s = self._saved_s - self._begun_s
        return self._elapsed_s

    def agree(self, interruption: Interruption) -> float:
        """Take over the time of the first process, which is returned, and the signal of any."""
        now = time.monotonic()
        times = [now - self._begun_s, now - self._saved_s]
        if self._processes.count > 1:
            mine = times if self._processes.first else [0.0, 0.0]
            mine += [float(interruption.signal_number == each) for each in Interruption.SIGNALS]
            summed = self._processes.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
            times, counts = summed[:2], zip(Interruption.SIGNALS, summed[2:], strict=True)
            interruption.signal_number = next((each for each, count in counts if count), None)
        self._elapsed_s, self.since_saved_s = times
        return self._elapsed_s
