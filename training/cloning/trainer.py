"""The training loop: batches in, checkpoints and errors out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import save_checkpoint
from ttm.training.cloning.behavior_cloning import Batch, cloning_losses
from ttm.training.cloning.ema import WeightAverage, calibrate_batch_norm
from ttm.training.cloning.interruption import Interruption
from ttm.training.cloning.optimizer import build_optimizer, set_learning_rate
from ttm.training.cloning.resume import Progress, load_memory, load_resume, save_resume
from ttm.training.cloning.run_log import RunLog
from ttm.training.cloning.training_data import BatchSource
from ttm.training.cloning.validation import EpisodeErrors
from ttm.training.common.schedule import Budget, WarmupCosine

GRADIENT_LIMIT = 1.0
"""Largest norm of the gradient of all weights together; a longer one is shortened to it."""
CALIBRATION_BATCHES = 8
LOG_EVERY = 10
IMAGES_EVERY = 1000
SAVE_EVERY_S = 180.0
BEST, LAST = "best.safetensors", "last.safetensors"


@dataclass(frozen=True)
class TrainerConfig:
    """How long and how fast, and what goes into `result.json` and the checkpoints beside the errors."""

    budget: Budget
    schedule: WarmupCosine
    weight_decay: float
    average_decay: float
    validations: int
    seed: int
    options: dict[str, Any]
    """What `resume` compares, plain data."""
    info: dict[str, Any]
    """Goes into the checkpoints: data, command, date."""


class Trainer:
    """Trains one policy. Everything it writes lies in `out`."""

    def __init__(
        self,
        policy: Policy,
        source: BatchSource,
        errors: dict[str, EpisodeErrors],
        config: TrainerConfig,
        out: Path,
        fabric: Fabric,
    ) -> None:
        """errors: "validation", if there are held-out episodes, and "training"."""
        self.config, self.out, self.fabric, self.source = config, out, fabric, source
        self.policy = fabric.to_device(policy)
        self.average = WeightAverage(self.policy, config.average_decay)
        self.optimizer = build_optimizer(self.policy, config.weight_decay)
        self.progress = Progress()
        self._memory: CoreState | None = None  # what the next batch's windows begin with
        self._errors = errors
        self._baselines = {
            name: {"mean_action": e.mean_action(), "previous_action": e.previous_action()}
            for name, e in errors.items()
        }
        self._latest: dict[str, Any] = {}
        self._begun_s = self._saved_s = time.monotonic()

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.fabric.device

    def resume(self, path: Path) -> None:
        """Takes up the training whose state `path` holds."""
        self.progress = load_resume(path, self.policy, self.average.model, self.optimizer)
        self._memory = load_memory(path, self.device)
        self.average.updates = self.progress.step
        self._begun_s = time.monotonic() - self.progress.elapsed_s

    def run(self, log: RunLog) -> int:
        """Trains until the budget is spent (0) or a signal asks to stop (its exit code)."""
        self._saved_s = time.monotonic()
        self._begun_s = self._saved_s - self.progress.elapsed_s
        with Interruption() as interruption:
            for batch in self._batches():
                self._train_step(batch, log)
                if interruption.signal_number is not None:
                    break
                self._validate_or_save(log)
            self._finish(log, whole=interruption.signal_number is None)
            return interruption.exit_code

    def _batches(self) -> Iterator[Batch]:
        """Ends with the budget."""
        if self.used() >= 1:
            return
        for batch in self.source.batches(self.progress.step):
            yield batch
            if self.used() >= 1:
                return

    def used(self) -> float:
        """The part of the budget that is used, in [0, 1]; brings the elapsed time up to date."""
        self.progress.elapsed_s = time.monotonic() - self._begun_s
        return self.config.budget.progress(self.progress.step, self.progress.elapsed_s)

    def _train_step(self, batch: Batch, log: RunLog) -> None:
        step, used = self.progress.step, self.used()
        torch.manual_seed(self.config.seed * 1_000_003 + step)  # dropout within the network, if any
        learning_rate = self.config.schedule.learning_rate(step, used)
        set_learning_rate(self.optimizer, learning_rate)
        scalars = self._optimize(batch.to(self.device))
        self.average.update()
        self.progress.step += 1
        log.add(scalars, batch.num_images)
        if step % IMAGES_EVERY == 0:
            log.write_images(step, batch.inputs.images)
        if self.progress.step % LOG_EVERY == 0:
            log.write(self.progress.step, self.used(), learning_rate)

    def _optimize(self, batch: Batch) -> dict[str, Tensor]:
        self.policy.train()
        with self.fabric.autocast():
            losses, memory = cloning_losses(self.policy, batch, self._memory)
        self._memory = self.source.memory.kept(memory)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(losses["loss"])
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), GRADIENT_LIMIT)
        self.optimizer.step()
        return {**losses, "gradient_norm": norm}

    def _validate_or_save(self, log: RunLog) -> None:
        """Validates (and saves) at even portions of the budget, saves every few minutes besides."""
        due = int(self.used() * self.config.validations)
        if due > self.progress.validations:
            self.progress.validations = due
            self._calibrate()
            self._validate(log)
            self._save()
            log.restart_clock()
        elif time.monotonic() - self._saved_s > SAVE_EVERY_S:
            self._calibrate()
            self._save()
            log.restart_clock()

    def _finish(self, log: RunLog, *, whole: bool) -> None:
        """Saves everything. The errors on training episodes are only found at the end of a whole training."""
        if whole and self._latest.get("step") != self.progress.step:
            self._calibrate()
            self._validate(log)
        if whole and "training" in self._errors:
            self._latest["training"] = self._evaluate("training")
        self._calibrate()
        self._save()
        if not (self.out / BEST).exists():
            self._save_checkpoint(BEST)
        log.say(
            f"{'finished' if whole else 'interrupted'} after step {self.progress.step}; saved in {self.out}"
        )

    def _calibrate(self) -> None:
        batches = (batch.to(self.device) for batch in self.source.sample(CALIBRATION_BATCHES))
        calibrate_batch_norm(
            self.average.model, (self.average.model(batch.inputs) for batch in batches)
        )

    def _validate(self, log: RunLog) -> None:
        """Errors of the averaged weights; the best ones so far are kept as a checkpoint."""
        step = self.progress.step
        self._latest = {"step": step}
        if "validation" not in self._errors:
            return
        found = self._latest["validation"] = self._evaluate("validation")
        log.write_validation(step, _flat(found))
        log.say(f"step {step}: validation error {_in_words(found)}")
        error = found["policy"]["normalized"]
        if self.progress.best_error is None or error < self.progress.best_error:
            self.progress.best_error, self.progress.best_step = error, step
            self._save_checkpoint(BEST)

    def _evaluate(self, name: str) -> dict[str, Any]:
        """Errors of the averaged policy and of the baselines, on the same ticks."""
        errors, model = self._errors[name], self.average.model
        found = {
            "policy": errors.policy(model),
            "policy_without_previous_action": errors.policy(model, without_previous_action=True),
            **self._baselines[name],
        }
        return {who: error.to_json() for who, error in found.items()}

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        self.used()
        self._save_checkpoint(LAST)
        path, models = resume_path(self.out), (self.policy, self.average.model)
        save_resume(path, self.progress, self.config.options, *models, self.optimizer, self._memory)
        result = {
            "step": self.progress.step,
            "elapsed_s": self.progress.elapsed_s,
            "finished": self.used() >= 1,
            "best": {"step": self.progress.best_step, "validation_error": self.progress.best_error},
            **{key: value for key, value in self._latest.items() if key != "step"},
            "units": {part.name: part.unit for part in self.policy.spec.actions},
            "info": self.config.info,
        }
        write_json(self.out / "result.json", result)

    def _save_checkpoint(self, name: str) -> None:
        info = {
            **self.config.info,
            "steps": self.progress.step,
            "minutes": round(self.progress.elapsed_s / 60, 2),
        }
        save_checkpoint(self.out / name, self.average.model, info)


def resume_path(out: Path) -> Path:
    """What `--resume` reads, within the training's folder."""
    return out / "resume" / "state.safetensors"


def write_json(path: Path, data: Any) -> None:
    """At once or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=2) + "\n")
    partial.replace(path)


def _in_words(found: dict[str, Any]) -> str:
    names = {
        "policy_without_previous_action": "without its previous action",
        "mean_action": "mean action",
        "previous_action": "repeating the previous action",
    }
    others = ", ".join(f"{words} {found[name]['normalized']:.3f}" for name, words in names.items())
    return f"{found['policy']['normalized']:.3f} ({others})"


def _flat(found: dict[str, Any]) -> dict[str, float]:
    """Scalars by name, for TensorBoard."""
    scalars = {f"normalized/{who}": errors["normalized"] for who, errors in found.items()}
    return scalars | {
        f"{part}/{who}": e for who, errors in found.items() for part, e in errors["parts"].items()
    }
