"""What the studies on sequences of symbols share when they run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from ttm.training.common.allocator import keep_freed_memory

SMALL_CORE: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "mlp_size": 128}
)
"""Sizes of every core that has such fields, so that one CPU core trains it within minutes."""


def prepare_process(threads: int) -> None:
    """Set up this process for training on the CPU with so many threads."""
    keep_freed_memory()
    torch.set_num_threads(threads)
