"""Runs `ttm study memory-start`.

The trainings of all ways have the same steps, batches and ticks. They are repeated with several
seeds, on short episodes (the demonstrations) and on long ones (demonstrations of one instruction,
joined).
"""

from __future__ import annotations

import itertools
from typing import get_args

import torch
from rich.console import Console

from ttm.policy.files import write_json
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import checkpoint_path
from ttm.training.cloning.settings.groups import Memory
from ttm.training.common.folders import make_folder
from ttm.training.study.memory_start.examination import Examination, Found
from ttm.training.study.memory_start.material import Material
from ttm.training.study.memory_start.options import MemoryStartOptions
from ttm.training.study.memory_start.report import report
from ttm.training.study.memory_start.training import train

KINDS = ("short", "long")
WIDTH = 170
"""Columns of the console that the table needs."""


def run(options: MemoryStartOptions) -> int:
    """Run the study and return the exit code. The table is printed and written after each seed."""
    trained, _ = load_checkpoint(checkpoint_path(options.checkpoint))
    make_folder(options.out)
    console = Console(highlight=False, width=WIDTH)
    torch.set_num_threads(1)
    material = Material(options.data, trained)
    examine = Examination(options, material)
    found: dict[tuple[str, str], list[Found]] = {}
    for seed in range(options.seeds):
        for kind, memory in itertools.product(KINDS, get_args(Memory)):
            result = examine(train(options, material, trained, kind, memory, seed))
            found.setdefault((kind, memory), []).append(result)
            console.print(f"{kind}, {memory}, seed {seed}: error in use {result.in_use:.3f}")
        figures = report(console, options.out, options.steps, found)
        write_json(options.out / "figures.json", figures)
    return 0
