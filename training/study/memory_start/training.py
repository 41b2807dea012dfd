"""One training of the study, by the trainer of `ttm train`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from ttm.policy.cores.configs import with_options
from ttm.policy.network.policy import Policy
from ttm.training.cloning.batches import BatchSource
from ttm.training.cloning.loop.trainer import Trainer, TrainerConfig
from ttm.training.cloning.memory_start import memory_start
from ttm.training.cloning.settings.groups import Memory, MemoryStartConfig, OptimizationConfig
from ttm.training.common.schedule import Budget, WarmupCosine
from ttm.training.study.memory_start.material import Material, TokenPolicy
from ttm.training.study.memory_start.options import MemoryStartOptions

TRAINED = ("core.", "action_head.")
"""Prefixes of the weights that start at random and are trained; all others stay as they are."""


class SilentLog:
    """Stands in for a `RunLog` and writes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def train(
    options: MemoryStartOptions,
    material: Material,
    trained: Policy,
    kind: str,
    memory: Memory,
    seed: int,
) -> Policy:
    """Train the core and the head on the episodes of `kind`; return the averaged policy."""
    windows = material.windows(material.training[kind], options.window, "both")
    start = memory_start(MemoryStartConfig(memory, options.burn_in))
    source = BatchSource(windows, options.batch_size, seed, memory=start)
    usual = OptimizationConfig()
    config = TrainerConfig(
        budget=Budget(options.steps, None),
        schedule=WarmupCosine(options.learning_rate),
        weight_decay=usual.weight_decay,
        average_decay=usual.average_decay,
        validations=1,
        seed=seed,
        info={},
    )
    with tempfile.TemporaryDirectory() as folder:
        fabric = Fabric(accelerator="cpu", devices=1)
        policy = fresh_policy(options, trained, seed)
        trainer = Trainer(policy, source, {}, config, Path(folder), fabric)
        trainer.run(SilentLog())  # type: ignore[arg-type]
    return trainer.average.model


def fresh_policy(options: MemoryStartOptions, trained: Policy, seed: int) -> TokenPolicy:
    """Return a copy of `trained` with a new core and head, which alone require a gradient."""
    torch.manual_seed(seed)
    core = with_options(trained.config.core, options.core_options)
    policy = TokenPolicy(trained.spec, replace(trained.config, core=core))
    kept = {
        name: value for name, value in trained.state_dict().items() if not name.startswith(TRAINED)
    }
    policy.load_state_dict(kept, strict=False)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(TRAINED))
    return policy
