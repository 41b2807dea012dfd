"""The MuJoCo scene: a kitchen with a counter of objects and a chest of drawers, and a Fetch robot in it.

Furniture that never changes stands in `assets/kitchen.xml`; drawers and objects are made here, since
the tasks refer to them by name. Lengths in m, world frame: +x points at the back wall, z = 0 is the floor.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import mujoco

from ttm.policy.errors import UserError
from ttm.sim.kitchen.fetch import add_fetch

COUNTER_TOP_Z_M = 0.78
COUNTER_FRONT_X_M = 1.04
CHEST_POSITION_M = (1.36, -1.08)
DRAWER_FRONT_X_M = 1.09
DRAWER_Z_M = {"top": 0.83, "middle": 0.69, "bottom": 0.55}
HANDLE_X_M = 1.025
"""Where a closed drawer's handle stands: 6.5 cm before the front, so that the fingers close behind it."""


@dataclass(frozen=True)
class KitchenObject:
    """A thing on the counter: `radius_m` half its width where the gripper holds it, `height_m` its full height."""

    name: str
    shape: str
    radius_m: float
    height_m: float
    rgba: tuple[float, float, float, float]
    mass_kg: float = 0.15


OBJECTS = {
    item.name: item
    for item in (
        KitchenObject("red can", "cylinder", 0.031, 0.13, (0.82, 0.10, 0.10, 1)),
        KitchenObject("green bottle", "bottle", 0.030, 0.20, (0.10, 0.52, 0.18, 1)),
        KitchenObject("blue box", "box", 0.028, 0.15, (0.12, 0.25, 0.80, 1)),
        KitchenObject("yellow mug", "mug", 0.034, 0.12, (0.95, 0.78, 0.10, 1)),
        KitchenObject("purple jar", "jar", 0.033, 0.14, (0.48, 0.16, 0.60, 1)),
    )
}


def robotics_assets() -> Path:
    """The asset folder of the installed gymnasium-robotics, found without importing the package."""
    found = importlib.util.find_spec("gymnasium_robotics")
    if found is None or not found.submodule_search_locations:
        raise UserError(
            "gymnasium-robotics is not installed; it carries the Fetch model: pip install gymnasium-robotics"
        )
    return Path(next(iter(found.submodule_search_locations))) / "envs" / "assets"


def build_kitchen() -> mujoco.MjSpec:
    """The whole scene: furniture, three drawers, all objects (parked out of sight) and the robot at the origin."""
    spec = mujoco.MjSpec.from_file(str(Path(__file__).parents[1] / "assets" / "kitchen.xml"))
    franka_kitchen = robotics_assets() / "kitchen_franka" / "kitchen_assets"
    spec.meshdir = str(franka_kitchen / "meshes")
    spec.texturedir = str(franka_kitchen / "textures")
    for name, height_m in DRAWER_Z_M.items():
        _add_drawer(spec, name, height_m)
    for item in OBJECTS.values():
        _add_object(spec, item)
    add_fetch(spec, robotics_assets() / "fetch" / "pick_and_place.xml")
    return spec


def _add_drawer(spec: mujoco.MjSpec, name: str, height_m: float) -> None:
    drawer_class = spec.find_default("drawer")
    body = spec.worldbody.add_body(
        name=f"drawer_{name}", pos=(DRAWER_FRONT_X_M, CHEST_POSITION_M[1], height_m)
    )
    body.add_joint(drawer_class, name=f"drawer_{name}")

    def box(
        pos: tuple[float, ...], size: tuple[float, ...], material: str, default: str = "drawer"
    ) -> mujoco.MjsGeom:
        geom = body.add_geom(
            spec.find_default(default), type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size
        )
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
        box(
            (bar_x / 2 - 0.006, 0, 0.039 * end),
            (abs(bar_x) / 2 - 0.006, 0.008, 0.006),
            "handle",
            "pull",
        )
    body.add_site(name=f"handle_{name}", pos=(bar_x, 0, 0))


def _add_object(spec: mujoco.MjSpec, item: KitchenObject) -> None:
    """The body's origin lies at the centre of the object's height."""
    object_class = spec.find_default("object")
    body = spec.worldbody.add_body(name=item.name)
    body.add_joint(object_class, name=item.name)
    half = item.height_m / 2

    def part(
        kind: mujoco.mjtGeom, size: tuple[float, ...], z_m: float, mass_kg: float, **options: object
    ) -> None:
        body.add_geom(
            object_class,
            type=kind,
            size=(*size, 0, 0)[:3],
            pos=(0, 0, z_m),
            mass=mass_kg,
            **{"rgba": item.rgba, **options},
        )

    cylinder, box = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_BOX
    if item.shape == "box":
        part(box, (item.radius_m, item.radius_m, half), 0, item.mass_kg)
    elif item.shape == "bottle":
        part(cylinder, (item.radius_m, 0.35 * item.height_m), -0.15 * item.height_m, item.mass_kg)
        part(cylinder, (0.45 * item.radius_m, 0.15 * item.height_m), 0.35 * item.height_m, 0.02)
    elif item.shape == "jar":
        part(cylinder, (item.radius_m, 0.42 * item.height_m), -0.08 * item.height_m, item.mass_kg)
        part(
            cylinder,
            (0.9 * item.radius_m, 0.08 * item.height_m),
            0.42 * item.height_m,
            0.02,
            rgba=(0.9, 0.9, 0.88, 1),
        )
    else:
        part(cylinder, (item.radius_m, half), 0, item.mass_kg)
    if item.shape == "mug":
        geom = body.add_geom(
            object_class,
            type=box,
            size=(0.012, 0.005, 0.03),
            pos=(item.radius_m + 0.01, 0, 0),
            mass=0.01,
        )
        geom.rgba = item.rgba
