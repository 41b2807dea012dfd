"""The training loop: takes batches, writes checkpoints and errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.files import write_json
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import save_checkpoint
from ttm.training.cloning.batches import BatchSource, TrainingBatch
from ttm.training.cloning.loop.clock import Clock
from ttm.training.cloning.loop.ema import WeightAverage, calibrate_batch_norm
from ttm.training.cloning.loop.gradients import Gradients
from ttm.training.cloning.loop.optimizer import build_optimizer, set_learning_rate
from ttm.training.cloning.loop.resume import TrainingProgress, load_memory, load_resume, save_resume
from ttm.training.cloning.loop.run_folder import BEST, LAST, RESULT, resume_path, save_step
from ttm.training.cloning.loop.run_log import RunLog
from ttm.training.cloning.loop.validation import EpisodeErrors
from ttm.training.cloning.recall.recall_loss import RecallLoss
from ttm.training.cloning.settings.groups import KeepingConfig, OptimizerConfig
from ttm.training.common.interruption import Interruption
from ttm.training.common.schedule import Budget, WarmupCosine

CALIBRATION_BATCHES = 8
"""Batches from which the statistics of BatchNorm are found for the averaged weights."""
LOG_EVERY = 10
IMAGES_EVERY = 1000
SAVE_EVERY_S = 180.0
"""Steps between two writings of scalars and of sample images, and seconds between two savings."""


@dataclass(frozen=True)
class TrainerConfig:
    """Length and optimisation of a training, and what its files hold besides the errors."""

    budget: Budget
    schedule: WarmupCosine
    weight_decay: float
    average_decay: float
    validations: int
    seed: int
    info: dict[str, Any]
    """Data, command and date, for the checkpoints and `result.json`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What a training that resumes is compared with; see `save_resume`."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    keeping: KeepingConfig = field(default_factory=KeepingConfig)
    accumulate: int = 1
    """The number of parts of a batch that each process takes in turn."""
    compiles: bool = False
    """Whether losses and gradients are computed by `torch.compile`."""


class Trainer:
    """Trains one policy and writes all files into the folder `out`.

    Where several processes train together, each has a trainer of its own, and all of them do the
    same; the first alone writes files.
    """

    def __init__(
        self,
        policy: Policy,
        source: BatchSource,
        errors: dict[str, EpisodeErrors],
        config: TrainerConfig,
        out: Path,
        fabric: Fabric,
        recall: RecallLoss | None = None,
    ) -> None:
        """errors: of the "training" episodes, and of the "validation" episodes if there are any.

        recall: trained along with the policy, but not saved in checkpoints; None for none.
        """
        self.config, self.out, self.fabric, self.source = config, out, fabric, source
        self.policy = fabric.to_device(policy)
        self.average = WeightAverage(self.policy, config.average_decay)
        self.recall = None if recall is None else fabric.to_device(recall)
        self.processes = source.processes
        self._trained = nn.ModuleList(filter(None, (self.policy, self.recall)))
        self._gradients = Gradients(
            self.policy,
            self.recall,
            fabric,
            self.processes,
            config.accumulate,
            compiles=config.compiles,
            same_shapes=source.features is None,
        )
        self.optimizer = build_optimizer(self._trained, config.weight_decay, config.optimizer)
        self.progress = TrainingProgress()
        self._memory: CoreState | None = None  # the memory that the next batch starts from
        self.errors = errors
        self._baselines = {
            name: {"mean_action": e.mean_action(), "previous_action": e.previous_action()}
            for name, e in errors.items()
        }
        self._latest: dict[str, Any] = {}
        self._diverged_at = torch.zeros((), dtype=torch.int64, device=self.device)
        self.clock = Clock(self.processes)

    @property
    def device(self) -> torch.device:
        """The device on which it trains."""
        return self.fabric.device

    def resume(self, path: Path) -> None:
        """Continue the training whose state is saved in `path`."""
        models = (self.policy, self.average.model)
        self.progress = load_resume(path, *models, self.optimizer, self.recall)
        self._memory = self.processes.windows_of_this(load_memory(path, self.device))
        self.average.updates = self.progress.step
        self.clock.start(self.progress.elapsed_s)

    def run(self, log: RunLog) -> int:
        """Train until the budget is spent, nothing improves any more, or a signal asks to stop.

        Returns the exit code: 0, or in the first process that of the signal.
        """
        self.clock.start(self.progress.elapsed_s)
        with Interruption() as interruption:
            for batch in self._batches():
                self._train_step(batch, log)
                self.clock.agree(interruption)
                self._read_clock()
                if interruption.signal_number is not None:
                    break
                self._validate_or_save(log)
            self._finish(log, whole=interruption.signal_number is None)
            self.processes.wait()  # until the first has written its files
            return interruption.exit_code if self.processes.first else 0

    def _batches(self) -> Iterator[TrainingBatch]:
        """Yield batches until the training is done: one at least, unless it was before."""
        if self._done:
            return
        for batch in self.source.batches(self.progress.step):
            yield batch
            if self._done:
                return

    @property
    def _done(self) -> bool:
        """Whether the budget is spent, or --early-stopping has ended the training."""
        return self.used >= 1 or self._stops_early

    @property
    def _stops_early(self) -> bool:
        patience = self.config.keeping.early_stopping
        return patience is not None and self.progress.validations_since_best >= patience

    @property
    def used(self) -> float:
        """The portion of the budget that was used when the clock was last read, in [0, 1]."""
        return self.config.budget.progress(self.progress.step, self.progress.elapsed_s)

    def _read_clock(self) -> None:
        self.progress.elapsed_s = self.clock.elapsed_s

    def backpropagate(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Compute losses and gradients of a batch: the first half of a step.

        Returns the losses; where several processes train together, their portions add up.
        """
        self.policy.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, memory = self._gradients.of(batch, self._memory)
        self._memory = self.source.memory.kept(memory)
        return losses

    def update_weights(self) -> Tensor:
        """Move weights and their average: the second half. Returns the gradient's norm."""
        limit = self.config.optimizer.gradient_limit
        norm: Tensor = torch.nn.utils.clip_grad_norm_(self._trained.parameters(), limit)
        self.optimizer.step()
        self.average.update()
        return norm

    def _train_step(self, batch: TrainingBatch, log: RunLog) -> None:
        step = self.progress.step
        torch.manual_seed(self.config.seed * 1_000_003 + step)  # dropout within the network, if any
        learning_rate = self.config.schedule.learning_rate(step, self.used)
        set_learning_rate(self.optimizer, learning_rate)
        scalars = self.backpropagate(batch)
        scalars["gradient_norm"] = self.update_weights() / self.processes.count
        self.progress.step += 1
        self._watch(scalars)
        log.add(scalars, batch.num_images)
        if step % IMAGES_EVERY == 0:
            log.write_images(step, batch.of_windows(slice(0, 4)).to(self.device).inputs.images)
        if self.progress.step % LOG_EVERY == 0:
            self._require_finite()
            log.write(self.progress.step, self.used, learning_rate)

    def _watch(self, scalars: dict[str, Tensor]) -> None:
        """Remember the first step whose loss or gradient is not finite.

        It stays on the device, since reading it off a GPU at every step would wait for the GPU.
        """
        bad = ~torch.isfinite(scalars["loss"].detach() + scalars["gradient_norm"])
        first = bad & (self._diverged_at == 0)
        self._diverged_at = torch.where(first, self.progress.step, self._diverged_at)

    def _require_finite(self) -> None:
        """Raise `UserError` if a loss or gradient was not finite; call it before anything is written."""
        steps = [step for step in self.processes.gathered(int(self._diverged_at)) if step]
        if steps:
            self._diverged(f"the loss or its gradient is not finite in step {min(steps)}")

    def _diverged(self, what: str) -> None:
        advice = "lower --learning-rate or --optimizer.gradient-limit, or look for faults with ttm data check"
        if resume_path(self.out).exists():
            advice += f"; --resume --resume-anyway goes on from what {self.out} held before"
        raise UserError(f"{what}; the training has ended and overwrote no checkpoint; {advice}")

    def _validate_or_save(self, log: RunLog) -> None:
        """Validate and save at even portions of the budget, and every `SAVE_EVERY_S`.

        --save-every asks for a checkpoint of its own besides.
        """
        due, every = int(self.used * self.config.validations), self.config.keeping.save_every
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
            keep = self.config.keeping.keep
            save_step(self.out, self.progress.step, self.average.model, self._info(), keep)
        log.restart_clock()

    def _finish(self, log: RunLog, *, whole: bool) -> None:
        """Save everything.

        The errors on training episodes are evaluated only after a complete training.
        """
        self._require_finite()
        if self._latest.get("step") != self.progress.step:
            self.calibrate()
            if whole:
                self._validate(log)
        if whole and "training" in self.errors:
            self._latest["training"] = self._evaluate("training")
        self._save()
        if self.progress.best_error is None or not (self.out / BEST).exists():
            self._save_checkpoint(BEST)
        how = "finished" if whole else "interrupted"
        if whole and self._stops_early:
            how = f"stopped early (lowest error at step {self.progress.best_step})"
        log.say(f"{how} after step {self.progress.step}; saved in {self.out}")

    def calibrate(self) -> None:
        """Find BatchNorm's statistics for the averaged weights; frozen vision keeps its own."""
        if self.source.features is not None:
            return
        batches = (batch.to(self.device) for batch in self.source.sample(CALIBRATION_BATCHES))
        calibrate_batch_norm(
            self.average.model, (self.average.model(batch.inputs) for batch in batches)
        )

    def _validate(self, log: RunLog) -> None:
        """Evaluate the averaged weights on held-out episodes; save them if they are the best."""
        step = self.progress.step
        self._latest = {"step": step}
        if "validation" not in self.errors:
            return
        found = self._latest["validation"] = self._evaluate("validation")
        error = found["policy"]["normalized"]
        if not math.isfinite(error):
            self._diverged(f"the validation error is {error} after step {step}")
        log.write_validation(step, _flat(found))
        log.say(f"step {step}: validation error {_in_words(found)}")
        self.progress.validations_since_best += 1
        if self.progress.best_error is None or error < self.progress.best_error:
            self.progress.best_error, self.progress.best_step = error, step
            self.progress.validations_since_best = 0
            self._save_checkpoint(BEST)

    def _evaluate(self, name: str) -> dict[str, Any]:
        """Return the errors of the averaged policy and of the baselines on the same ticks."""
        errors, model = self.errors[name], self.average.model
        found = {
            "policy": errors.policy(model),
            "policy_without_previous_action": errors.policy(model, without_previous_action=True),
            **self._baselines[name],
        }
        return {who: error.to_json() for who, error in found.items()}

    def _save(self) -> None:
        self.clock.saved()
        self._read_clock()
        self._save_checkpoint(LAST)
        memory = self.processes.windows_of_all(self._memory)
        if not self.processes.first:
            return
        path, models = resume_path(self.out), (self.policy, self.average.model)
        state = (self.progress, self.config.facts, *models, self.optimizer)
        save_resume(path, *state, memory, self.recall)
        result = {
            "step": self.progress.step,
            "elapsed_s": self.progress.elapsed_s,
            "finished": self._done,
            "stopped_early": self._stops_early,
            "best": {"step": self.progress.best_step, "validation_error": self.progress.best_error},
            **{key: value for key, value in self._latest.items() if key != "step"},
            "units": {part.name: part.unit for part in self.policy.spec.actions},
            "info": self.config.info,
        }
        write_json(self.out / RESULT, result)

    def _save_checkpoint(self, name: str) -> None:
        if self.processes.first:
            save_checkpoint(self.out / name, self.average.model, self._info())

    def _info(self) -> dict[str, Any]:
        minutes = round(self.progress.elapsed_s / 60, 2)
        return {**self.config.info, "steps": self.progress.step, "minutes": minutes}


def _in_words(found: dict[str, Any]) -> str:
    names = {
        "policy_without_previous_action": "without its previous action",
        "mean_action": "mean action",
        "previous_action": "repeating the previous action",
    }
    others = ", ".join(f"{words} {found[name]['normalized']:.3f}" for name, words in names.items())
    each = "".join(f"; {name} {error:.3f}" for name, error in _of_data_sets(found).items())
    return f"{found['policy']['normalized']:.3f} ({others}){each}"


def _of_data_sets(found: dict[str, Any]) -> dict[str, float]:
    """Return the policy's error on each data set, if there are several."""
    each = found["policy"].get("data_sets", {})
    return {name: errors["normalized"] for name, errors in each.items()}


def _flat(found: dict[str, Any]) -> dict[str, float]:
    """Return the errors as scalars by name, for the log."""
    scalars = {f"normalized/{who}": errors["normalized"] for who, errors in found.items()}
    scalars |= {f"data sets/{name}": error for name, error in _of_data_sets(found).items()}
    return scalars | {
        f"{part}/{who}": e for who, errors in found.items() for part, e in errors["parts"].items()
    }
