"""The kitchen's place in Gymnasium's registry. `import ttm.sim` fills it in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium

from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.shipped import KITCHEN


def register_kitchen() -> None:
    """Let `gymnasium.make("ttm/Kitchen-v0")` make the kitchen."""
    if KITCHEN not in gymnasium.registry:
        gymnasium.register(KITCHEN, entry_point=f"{__name__}:make_kitchen")


def make_kitchen(**options: Any) -> gymnasium.Env[Any, Any]:
    """Return a new `KitchenEnv`. Raises `UserError` if this machine cannot render.

    The environment's module is imported after that check, since it imports MuJoCo.
    """
    require_rendering()
    kitchen: gymnasium.Env[Any, Any] = import_module("ttm.sim.kitchen_env").KitchenEnv(**options)
    return kitchen
