"""The MuJoCo scene: a kitchen with a counter of objects and a chest of drawers, and a Fetch robot in it.

Furniture that never changes stands in `assets/kitchen.xml`. Drawers and objects are made here, since
the tasks refer to them by name. Lengths are in m in the world frame: +x points at the back wall, and
the floor lies at z = 0.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import mujoco

from ttm.policy.errors import UserError
from ttm.sim.kitchen.fetch import add_fetch
from ttm.sim.kitchen.objects import BOX, HIDDEN_GROUP, OBJECTS, Vector, add_object

KITCHEN_XML = Path(__file__).parents[1] / "assets" / "kitchen.xml"
COUNTER_TOP_Z_M = 0.78
COUNTER_FRONT_X_M = 1.04
CHEST_POSITION_M = (1.36, -1.08)
DRAWER_FRONT_X_M = 1.09
DRAWER_Z_M = {"top": 0.83, "middle": 0.69, "bottom": 0.55}
HANDLE_X_M = 1.025
"""Where a closed drawer's handle stands: 6.5 cm in front of it, so that the fingers close behind it."""


def robotics_assets() -> Path:
    """Return the asset folder of the installed gymnasium-robotics, without importing that package."""
    found = importlib.util.find_spec("gymnasium_robotics")
    if found is None or not found.submodule_search_locations:
        raise UserError("the model of the Fetch is missing; run: pip install gymnasium-robotics")
    return Path(next(iter(found.submodule_search_locations))) / "envs" / "assets"


def fetch_xml() -> Path:
    """Return the path of the Fetch's model in the installed gymnasium-robotics."""
    return robotics_assets() / "fetch" / "pick_and_place.xml"


def build_kitchen(add_to_scene: Callable[[mujoco.MjSpec], None]) -> mujoco.MjSpec:
    """Return the whole scene: furniture, three drawers, all objects, and the robot at the origin.

    `add_to_scene` adds what a task needs beside these, after everything else, so that the numbers
    of all other bodies and joints stay the same.
    """
    spec = mujoco.MjSpec.from_file(str(KITCHEN_XML))
    franka_kitchen = robotics_assets() / "kitchen_franka" / "kitchen_assets"
    spec.meshdir = str(franka_kitchen / "meshes")
    spec.texturedir = str(franka_kitchen / "textures")
    for name, height_m in DRAWER_Z_M.items():
        _add_drawer(spec, name, height_m)
    for item in OBJECTS.values():
        add_object(spec, item)
    add_fetch(spec, fetch_xml())
    add_to_scene(spec)
    return spec


def _add_drawer(spec: mujoco.MjSpec, name: str, height_m: float) -> None:
    place = (DRAWER_FRONT_X_M, CHEST_POSITION_M[1], height_m)
    body = spec.worldbody.add_body(name=f"drawer_{name}", pos=place)
    body.add_joint(spec.find_default("drawer"), name=f"drawer_{name}")

    def box(pos: Vector, size: Vector, material: str, default: str = "drawer") -> mujoco.MjsGeom:
        geom = body.add_geom(spec.find_default(default), type=BOX, pos=pos, size=size)
        geom.material = material
        return geom

    box((0, 0, 0), (0.012, 0.298, 0.066), "drawer_front")
    box((0.22, 0, -0.05), (0.21, 0.28, 0.006), "drawer_inside")
    for side in (-1, 1):
        box((0.22, 0.275 * side, -0.015), (0.21, 0.006, 0.035), "drawer_inside")
    bar_x = HANDLE_X_M - DRAWER_FRONT_X_M
    bar = box((bar_x, 0, 0), (0.009, 0.010, 0.045), "handle", "pull")
    bar.name = f"handle_{name}"
    for end in (-1, 1):
        size = (abs(bar_x) / 2 - 0.006, 0.008, 0.006)
        box((bar_x / 2 - 0.006, 0, 0.039 * end), size, "handle", "pull")
    body.add_site(name=f"handle_{name}", pos=(bar_x, 0, 0), group=HIDDEN_GROUP)  # within the bar
