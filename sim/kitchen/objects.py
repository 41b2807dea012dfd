"""The objects of the kitchen: what they look like, how large they are, and how they are held.

`OBJECTS` are the plain ones of `pick` and of the memory suite. `HOUSEHOLD` are those of the groups of skills
(`ttm.sim.tasks.groups`), which stand in a scene of their own: each is one mesh, a stack of rings with a painted
texture, and collides as a few primitives. Lengths are in m, but in cm within the table of rings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mujoco
import numpy as np
from mink import SO3

BOX, CYLINDER = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CYLINDER
ELLIPSOID, CAPSULE = mujoco.mjtGeom.mjGEOM_ELLIPSOID, mujoco.mjtGeom.mjGEOM_CAPSULE
Vector = tuple[float, ...]


@dataclass(frozen=True)
class KitchenObject:
    """An object that may stand on the counter."""

    name: str
    shape: str
    radius_m: float
    """Half its width at the height at which the gripper holds it."""
    height_m: float
    """Its full height."""
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


def add_object(spec: mujoco.MjSpec, item: KitchenObject) -> None:
    """Add one of `OBJECTS`, with the body's origin at half its height."""
    object_class = spec.find_default("object")
    body = spec.worldbody.add_body(name=item.name)
    body.add_joint(object_class, name=item.name)

    def part(
        kind: mujoco.mjtGeom, size: Vector, pos: Vector, mass_kg: float, rgba: Vector = item.rgba
    ) -> None:
        size = (*size, 0, 0)[:3]
        body.add_geom(object_class, type=kind, size=size, pos=pos, mass=mass_kg, rgba=rgba)

    radius_m, height_m, mass_kg = item.radius_m, item.height_m, item.mass_kg
    if item.shape == "box":
        part(BOX, (radius_m, radius_m, height_m / 2), (0, 0, 0), mass_kg)
    elif item.shape == "bottle":
        part(CYLINDER, (radius_m, 0.35 * height_m), (0, 0, -0.15 * height_m), mass_kg)
        part(CYLINDER, (0.45 * radius_m, 0.15 * height_m), (0, 0, 0.35 * height_m), 0.02)
    elif item.shape == "jar":
        part(CYLINDER, (radius_m, 0.42 * height_m), (0, 0, -0.08 * height_m), mass_kg)
        lid, above = (0.9 * radius_m, 0.08 * height_m), (0, 0, 0.42 * height_m)
        part(CYLINDER, lid, above, 0.02, (0.9, 0.9, 0.88, 1))
    else:
        part(CYLINDER, (radius_m, height_m / 2), (0, 0, 0), mass_kg)
    if item.shape == "mug":
        part(BOX, (0.012, 0.005, 0.03), (radius_m + 0.01, 0, 0), 0.01)


# The household objects.

COLOURS = {
    "red": (0.80, 0.05, 0.06), "green": (0.10, 0.55, 0.16), "blue": (0.10, 0.22, 0.75), "sky": (0.60, 0.82, 0.95),
    "yellow": (0.98, 0.84, 0.12), "orange": (0.97, 0.48, 0.04), "brown": (0.42, 0.20, 0.08), "white": (0.96, 0.96, 0.93),
    "steel": (0.72, 0.73, 0.75), "black": (0.10, 0.09, 0.09), "purple": (0.40, 0.06, 0.26), "lime": (0.66, 0.78, 0.18),
    "amber": (0.85, 0.50, 0.06), "teal": (0.03, 0.45, 0.45), "coffee": (0.22, 0.12, 0.06), "cream": (0.97, 0.91, 0.74),
    "navy": (0.06, 0.09, 0.35),
}  # fmt: skip
"""Name -> RGB of the paint."""
AROUND, ROWS, COLUMNS = 24, 16, 96
"""Vertices around a ring; height of the texture between two rings and its width, in pixels."""
TURN, CORNERS = np.linspace(0, 2 * np.pi, AROUND + 1), np.linspace(0, 4, AROUND + 1)
OUTLINES = {
    "round": (3, np.cos(TURN), np.sin(TURN)),
    "box": (4, *(np.interp(CORNERS, range(5), at) for at in ((1, 1, -1, -1, 1), (-1, 1, 1, -1, -1)))),
    "bag": (2, np.sin(TURN) * np.abs(np.sin(TURN)), -np.cos(TURN)),
}
"""Shape -> how often a label stands around it, and x and y around its rings, (AROUND + 1,) each."""
MOTIFS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": lambda u, v: np.hypot(u, v) < 0.75,
    "wave": lambda u, v: np.abs(v - 0.5 * np.sin(np.pi * u)) < 0.35,
    "band": lambda u, v: np.abs(v + 0 * u) < 0.4,
    "checks": lambda u, v: np.floor(3 * u) % 2 == np.floor(2 * v) % 2,
    "stripes": lambda u, v: np.floor(4 * u + 0 * v) % 2 == 0,
    "dots": lambda u, v: np.hypot((6 * u) % 2 - 1, (4 * v) % 2 - 1) < 0.4,
    "bowl": lambda u, v: (np.hypot(u, v) < 0.8) & (v < 0.1),
    "bolt": lambda u, v: np.abs(u + 0.4 * v - 0.5 * np.sign(v)) < 0.25,
}
"""What a label shows: a mask over its two coordinates, each from -1 to 1."""
HIDDEN_GROUP = 5
"""A group of geoms that MuJoCo does not draw by default."""
BEND_CM = 3.0
"""How far the middle of a bent object lies off the line between its ends."""
HANDLE = tuple(pairwise(((0.022, 0.022, 0.022), (0.040, 0.040, 0.022), (0.040, 0.040, -0.02), (0.022, 0.022, -0.02))))
"""The mug's, as rods from point to point."""

Ring = tuple[Any, ...]
"""Height, half width (or half width and half depth) in cm; colour of the surface up to it from the ring below, and
perhaps a motif and its colour."""


def _can(radius: float, height: float, *label: str) -> tuple[Ring, ...]:
    steel, narrow = "steel", 0.85 * radius
    ends = (height - 0.8, radius, *label), (height, narrow, steel), (height, 0, steel)
    return ((0, 0), (0, narrow, steel), (0.6, radius, steel), *ends)


def _box(width: float, depth: float, height: float, *label: str) -> tuple[Ring, ...]:
    size, colour = (width, depth), label[0]
    return ((0, 0), (0, size, colour), (height, size, *label), (height, 0, colour))


def _carton(half: float, height: float, roof: str, *label: str) -> tuple[Ring, ...]:
    top = height - 4.5, height - 1.2
    ridge = (top[1], (half, 0.15), roof), (height, (half, 0.15), "white"), (height, 0, "white")
    return ((0, 0), (0, half, "white"), (2, half, roof), (top[0], half, *label), *ridge)


def _bag(width: float, depth: float, height: float, *label: str) -> tuple[Ring, ...]:
    seam, colour, puffed = (width, 0.2), label[0], (0.94 * width, depth)
    low, high = (2.5, puffed, colour), (height - 2.5, puffed, *label)
    ends = (height - 0.8, seam, colour), (height, seam, "steel"), (height, 0, "steel")
    return ((0, 0), (0, seam, "steel"), (0.8, seam, "steel"), low, high, *ends)


@dataclass(frozen=True)
class HouseholdObject:
    """An object of the groups' scene. The body's origin is in the middle of its height, z points at its top.

    Front and back face along x; the gripper closes along y. Where `lies` is true its place on the counter is on its side.
    """

    name: str
    kind: str
    """What it is, such as "can"."""
    shape: str
    """Of its rings: round, box or bag; round ones may also be a ball or bent."""
    rings: tuple[Ring, ...]
    """From the bottom to the top."""
    mass_kg: float = 0.15

    @property
    def lies(self) -> bool:
        """Whether it never stands."""
        return self.shape == "bent"

    @property
    def height_m(self) -> float:
        """Its size along its own z."""
        return max(ring[0] for ring in self.rings) / 100

    @property
    def half_m(self) -> tuple[float, float]:
        """Half its greatest depth (x) and half its greatest width (y)."""
        sizes = [(w[1], w[0]) if isinstance(w, tuple) else (w, w) for w in (r[1] for r in self.rings)]
        return max(x for x, _ in sizes) / 100, max(y for _, y in sizes) / 100

    @property
    def rest(self) -> SO3:
        """Its rotation on the counter: upright, or on its side if it never stands."""
        return SO3(np.full(4, 0.5)) if self.lies else SO3.identity()

    @property
    def colour(self) -> str:
        """The name of the colour of the most of it."""
        areas = dict.fromkeys(COLOURS, 0.0)
        for below, ring in pairwise(self.rings):
            areas[ring[2]] += abs(ring[0] - below[0])
        return max(areas, key=lambda name: areas[name])

    def is_like(self, other: HouseholdObject) -> bool:
        """Return whether the two could be taken for each other by their kind or colour."""
        return self.kind == other.kind or self.colour == other.colour

    @property
    def topples(self) -> bool:
        """Whether it can be knocked over and placed upright."""
        return not self.lies and self.shape != "bag" and self.height_m > 3.5 * self.half_m[1]


HOUSEHOLD = {
    item.name: item
    for item in (
        HouseholdObject("cola can", "can", "round", _can(3.2, 12, "red", "wave", "white")),
        HouseholdObject("lime soda can", "can", "round", _can(3.2, 12, "green", "disc", "yellow")),
        HouseholdObject("orange soda can", "can", "round", _can(3.2, 12, "orange", "dots", "white")),
        HouseholdObject("energy drink can", "can", "round", _can(2.7, 14.5, "navy", "bolt", "yellow")),
        HouseholdObject("water bottle", "bottle", "round", (
            (0, 0), (0, 2.9, "sky"), (6, 3.1, "sky"), (10.5, 3.1, "blue", "wave", "white"), (14, 3.1, "sky"),
            (17, 1.3, "sky"), (18, 1.3, "sky"), (18, 1.6, "blue"), (20, 1.6, "blue"), (20, 0, "blue"))),
        HouseholdObject("iced tea bottle", "bottle", "round", (
            (0, 0), (0, 3, "brown"), (4, 3, "brown"), (10.5, 3, "yellow", "disc", "red"), (13, 3, "brown"),
            (16, 1.4, "brown"), (17, 1.4, "brown"), (17, 1.7, "white"), (19, 1.7, "white"), (19, 0, "white"))),
        HouseholdObject("ketchup bottle", "bottle", "round", (
            (0, 0), (0, 3.1, "red"), (4, 3.1, "red"), (11, 3.1, "red", "disc", "white"), (13, 2.5, "red"),
            (13, 2.2, "white"), (15, 2, "white"), (18, 0.6, "white"), (18, 0, "white"))),
        HouseholdObject("apple", "fruit", "ball", (
            (0.2, 0), (0, 1.6, "red"), (1.2, 2.9, "red"), (3.4, 3.6, "red"), (5.3, 3.4, "red"), (6.5, 2.2, "red"),
            (6.6, 1.3, "red"), (6.1, 0.3, "brown"), (7.6, 0.25, "brown"), (7.6, 0, "brown"))),
        HouseholdObject("orange", "fruit", "ball", (
            (0, 0), (0.2, 1.2, "orange"), (1.1, 2.6, "orange"), (3.6, 3.6, "orange"), (6.1, 2.6, "orange"),
            (7, 1.2, "orange"), (7.1, 0.5, "orange"), (7.2, 0, "green"))),
        HouseholdObject("pear", "fruit", "ball", (
            (0.2, 0), (0, 1.5, "lime"), (1.3, 2.9, "lime"), (3.2, 3.3, "lime"), (5, 2.8, "lime"), (7.2, 1.7, "lime"),
            (8.8, 1.2, "lime"), (9.2, 0.4, "lime"), (10.4, 0.25, "brown"), (10.4, 0, "brown"))),
        HouseholdObject("banana", "fruit", "bent", (
            (0, 0), (0.2, 0.7, "brown"), (1.5, 1.3, "yellow"), (5, 1.8, "yellow"), (8.5, 1.9, "yellow"),
            (12, 1.8, "yellow"), (15, 1.2, "yellow"), (16, 0.6, "yellow"), (17.5, 0.6, "brown"), (17.5, 0, "brown"))),
        HouseholdObject("sponge", "sponge", "box", (
            (0, 0), (0, (3, 4.5), "yellow"), (2.8, (3, 4.5), "yellow", "dots", "amber"), (2.8, (3, 4.5), "green"),
            (4, (3, 4.5), "green"), (4, 0, "green")), 0.05),
        HouseholdObject("white mug", "mug", "round", (
            (0, 0), (0, 3.1, "white"), (3, 3.4, "white"), (7, 3.4, "white", "dots", "blue"), (9, 3.4, "white"),
            (9, 3.1, "white"), (7.8, 3.1, "white"), (7.8, 0, "coffee"))),
        HouseholdObject("blue cup", "mug", "round", (
            (0, 0), (0, 2.6, "blue"), (8, 3.3, "blue"), (9.2, 3.5, "white"), (10, 3.5, "blue"), (10, 3.2, "blue"),
            (3, 2.6, "navy"), (3, 0, "navy"))),
        HouseholdObject("white bowl", "bowl", "round", (
            (0, 0), (0, 2.2, "white"), (0.8, 2.2, "white"), (3, 3.5, "white"), (4.2, 3.8, "red"), (5, 3.9, "white"),
            (5, 3.7, "white"), (1.5, 2.4, "cream"), (1.5, 0, "cream"))),
        HouseholdObject("blue chip bag", "chip bag", "bag", _bag(3.7, 2.4, 14, "blue", "disc", "yellow"), 0.05),
        HouseholdObject("green chip bag", "chip bag", "bag", _bag(3.7, 2.4, 14, "green", "wave", "white"), 0.05),
        HouseholdObject("cereal box", "box", "box", _box(3.7, 2.2, 15, "yellow", "bowl", "blue")),
        HouseholdObject("tea box", "box", "box", _box(3.5, 3, 7.5, "teal", "disc", "cream")),
        HouseholdObject("milk carton", "carton", "box", _carton(3.4, 16, "blue", "white", "wave", "sky")),
        HouseholdObject("juice carton", "carton", "box", _carton(3.2, 14, "orange", "white", "disc", "orange")),
        HouseholdObject("jam jar", "jar", "round", (
            (0, 0), (0, 3, "purple"), (1, 3.3, "purple"), (6, 3.3, "cream", "disc", "purple"), (7.4, 2.9, "purple"),
            (7.4, 3.2, "red"), (9.2, 3.2, "white", "checks", "red"), (9.2, 0, "red"))),
        HouseholdObject("honey jar", "jar", "round", (
            (0, 0), (0, 2.6, "amber"), (2.5, 3.4, "amber"), (6, 3.4, "yellow", "stripes", "coffee"),
            (8, 2.7, "amber"), (8, 3, "yellow"), (9.5, 3, "yellow"), (9.5, 0, "yellow"))),
        HouseholdObject("salt shaker", "shaker", "round", (
            (0, 0), (0, 2.3, "white"), (6, 2.1, "sky", "band", "white"), (7.5, 2.1, "steel"), (8.5, 1.3, "steel"),
            (8.5, 0, "black")), 0.1),
    )
}  # fmt: skip


def add_household(spec: mujoco.MjSpec) -> None:
    """Put all of `HOUSEHOLD` in the place of `OBJECTS`, each a body with a free joint of its name.

    What rests is not simulated (`mjENBL_SLEEP`), so that many objects take no more time than few.
    """
    spec.option.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    for name in OBJECTS:
        spec.delete(spec.body(name))
    solid, decor = spec.find_default("object"), spec.find_default("decor")
    for name, item in HOUSEHOLD.items():
        body = spec.worldbody.add_body(name=name)
        body.add_joint(solid, name=name)
        _add_look(spec, item)
        body.add_geom(decor, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name).material = name
        for primitive in _solids(item):
            geom = body.add_geom(solid, condim=6, **primitive)
            geom.mass, geom.group, geom.friction = item.mass_kg, HIDDEN_GROUP, (1.2, 0.02, 0.002)
        for start, end in HANDLE if name == "white mug" else ():
            ends = (*start, *end)
            body.add_geom(decor, type=CAPSULE, size=(0.005, 0, 0), fromto=ends).material = "enamel"


def _add_look(spec: mujoco.MjSpec, item: HouseholdObject) -> None:
    """Add the object's mesh, texture and material, of its own name each."""
    repeats, x, y = OUTLINES.get(item.shape, OUTLINES["round"])
    z_cm = np.array([ring[0] for ring in item.rings])
    half_cm = np.array([ring[1] if isinstance(ring[1], tuple) else (ring[1],) * 2 for ring in item.rings])
    vertices = np.empty((len(z_cm), AROUND + 1, 3))
    bend_cm = BEND_CM * (np.cos(np.pi * (z_cm / z_cm.max() - 0.5)) - 1) if item.lies else 0 * z_cm
    vertices[..., 0] = half_cm[:, 1:] * x + bend_cm[:, None]
    vertices[..., 1], vertices[..., 2] = half_cm[:, :1] * y, z_cm[:, None] - 50 * item.height_m
    corner = np.arange((len(z_cm) - 1) * (AROUND + 1)).reshape(-1, AROUND + 1)[:, :-1].ravel()
    above = corner + AROUND + 1
    faces = np.stack([corner, corner + 1, above, corner + 1, above + 1, above], 1)
    v, u = np.mgrid[0 : 1 : len(z_cm) * 1j, 0 : 1 : (AROUND + 1) * 1j]
    mesh = spec.add_mesh(name=item.name, inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
    mesh.uservert, mesh.userface = vertices.ravel() / 100, faces.ravel()
    mesh.usertexcoord = np.stack([u, v], 2).ravel()
    paint = [_paint(repeats, *ring[2:]) for ring in item.rings[1:]]
    image = np.rint(255 * np.concatenate(paint)).astype(np.uint8)
    texture = spec.add_texture(name=item.name, type=mujoco.mjtTexture.mjTEXTURE_2D, nchannel=3)
    texture.height, texture.width, texture.data = len(image), COLUMNS, image.tobytes()
    material = spec.add_material(name=item.name, specular=0.2)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = item.name


def _paint(repeats: int, colour: str, motif: str = "", second: str = "") -> np.ndarray:
    """Return the texture between two rings, from the lower one up, (ROWS, COLUMNS, 3) from 0 to 1."""
    image = np.full((ROWS, COLUMNS, 3), COLOURS[colour])
    if motif:
        v, u = np.mgrid[-1 : 1 : ROWS * 1j, 0 : repeats : COLUMNS * 1j]
        image[MOTIFS[motif](2 * (u % 1) - 1, v)] = COLOURS[second]
    return image


def _solids(item: HouseholdObject) -> list[dict[str, Any]]:
    """Return what the object collides as: the type, size and place of each primitive."""
    z, y = np.array([(z, w[0] if isinstance(w, tuple) else w) for z, w, *_ in item.rings]).T / 100
    (deep_m, wide_m), bottom_m = item.half_m, -item.height_m / 2
    if item.lies:
        ends = [(-0.020, 0, side * 0.068) for side in (-1, 1)]
        return [{"type": CAPSULE, "size": (0.9 * wide_m, 0, 0), "fromto": (0, 0, 0, *end)} for end in ends]
    top_m = z[y > (0.5 if item.shape == "ball" else 0.85) * wide_m].max()
    parts = [(0.0, top_m, deep_m, wide_m)]
    if item.height_m - top_m > 0.015 and item.shape != "ball":  # a neck
        parts.append((top_m, item.height_m, *[y[z > top_m].max()] * 2))
    found = []
    for low_m, high_m, x_m, y_m in parts:
        half_m = (high_m - low_m) / 2
        kind, size = {
            "ball": (ELLIPSOID, (y_m, y_m, half_m)),
            "round": (CYLINDER, (y_m, half_m, 0)),
        }.get(item.shape, (BOX, (x_m, y_m, half_m)))
        found.append({"type": kind, "size": size, "pos": (0, 0, bottom_m + low_m + half_m)})
    return found
