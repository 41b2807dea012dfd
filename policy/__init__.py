"""The policy: network, memory, and what runs it. It depends on neither ROS nor MuJoCo.

The names below can be imported from here. Their modules, and with them PyTorch, are imported when a
name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttm.policy.cores.temporal_core import CoreConfig, TemporalCore
    from ttm.policy.cores.ttm.scenic_weights import load_scenic
    from ttm.policy.errors import ObservationError, UserError
    from ttm.policy.network.inputs import PolicyInputs
    from ttm.policy.network.policy import Policy
    from ttm.policy.network.presets import PRESETS, PolicyConfig
    from ttm.policy.run.attention_recorder import record_attention
    from ttm.policy.run.checkpoint import load_checkpoint, save_checkpoint
    from ttm.policy.run.runner import PolicyRunner
    from ttm.policy.spec import Action, ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

__all__ = [
    "PRESETS",
    "Action",
    "ActionPart",
    "CameraSpec",
    "CoreConfig",
    "ObservationError",
    "Policy",
    "PolicyConfig",
    "PolicyInputs",
    "PolicyRunner",
    "PolicySpec",
    "ProprioceptionSpec",
    "TemporalCore",
    "UserError",
    "load_checkpoint",
    "load_scenic",
    "record_attention",
    "save_checkpoint",
]

_MODULES = {
    "PRESETS": "network.presets",
    "Action": "spec",
    "ActionPart": "spec",
    "CameraSpec": "spec",
    "CoreConfig": "cores.temporal_core",
    "ObservationError": "errors",
    "Policy": "network.policy",
    "PolicyConfig": "network.presets",
    "PolicyInputs": "network.inputs",
    "PolicyRunner": "run.runner",
    "PolicySpec": "spec",
    "ProprioceptionSpec": "spec",
    "TemporalCore": "cores.temporal_core",
    "UserError": "errors",
    "load_checkpoint": "run.checkpoint",
    "load_scenic": "cores.ttm.scenic_weights",
    "record_attention": "run.attention_recorder",
    "save_checkpoint": "run.checkpoint",
}
"""Public name -> the module within this package that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
