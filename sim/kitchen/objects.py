"""The objects of the kitchen: what they look like, how large they are and what they collide as.

`OBJECTS` are the plain ones of `pick` and of the memory suite. `HOUSEHOLD` are those of the groups of skills
(`ttm.sim.tasks.groups`), which have a scene of their own.
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


# The household objects: a mesh of rings with painted labels, which collides as one or two primitives.

COLOURS = {
    "red": (204, 13, 15), "green": (26, 140, 41), "blue": (26, 56, 190), "sky": (153, 209, 242),
    "yellow": (250, 214, 31), "orange": (247, 122, 10), "brown": (107, 51, 20), "white": (245, 245, 237), 
    "steel": (184, 186, 191), "black": (26, 23, 23), "purple": (102, 15, 66), "lime": (168, 199, 46), "amber": (217, 128, 15),
    "teal": (8, 115, 115), "coffee": (56, 31, 15), "cream": (247, 232, 189), "navy": (15, 23, 90),
}  # fmt: skip
"""Name -> RGB of the paint."""
MOTIFS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": lambda u, v: np.hypot(u, v) < 0.75,
    "wave": lambda u, v: np.abs(v - 0.5 * np.sin(np.pi * u)) < 0.35,
    "band": lambda u, v: np.abs(v + 0 * u) < 0.4,
    "checks": lambda u, v: np.floor(3 * u) % 2 == np.floor(2 * v) % 2,
    "stripes": lambda u, v: np.floor(4 * u + 0 * v) % 2 == 0,
    "dots": lambda u, v: np.hypot((6 * u) % 2 - 1, (4 * v) % 2 - 1) < 0.4,
    "bowl": lambda u, v: (np.hypot(u, v) < 0.8) & (v < 0.1),
    "leaf": lambda u, v: (np.hypot(u - 0.6, v + 0.6) < 1.2) & (np.hypot(u + 0.6, v - 0.6) < 1.2),
    "bolt": lambda u, v: np.abs(u + 0.4 * v - 0.5 * np.sign(v)) < 0.25,
}
"""What a label shows: a mask over its two coordinates, each from -1 to 1."""
AROUND, ROWS, COLUMNS = 24, 32, 192
"""Sides of a ring; height of the texture between two rings and its width, in pixels."""
TURN, CORNERS = np.linspace(0, 2 * np.pi, AROUND + 1), np.linspace(0, 4, AROUND + 1)
ROUND = 3, np.cos(TURN), np.sin(TURN)
OUTLINES = {
    "box": (4, *(np.interp(CORNERS, range(5), x) for x in ((1, 1, -1, -1, 1), (-1, 1, 1, -1, -1)))),
    "bag": (2, np.sin(TURN) * np.abs(np.sin(TURN)), -np.cos(TURN)),
}
"""Shape -> how often a label stands around it, and x and y around its rings, (AROUND + 1,) each."""
BEND_M = 0.03
"""How far the middle of a bent object lies off the line between its ends."""
HANDLE = (0.022, 0.022, 0.022), (0.040, 0.040, 0.022), (0.040, 0.040, -0.02), (0.022, 0.022, -0.02)
"""The corners of a mug's handle."""
HIDDEN_GROUP = 5
"""A group of geoms that MuJoCo does not draw by default."""


class HouseholdObject:
    """An object whose body has its origin half way up, z towards its top, and its front and back along x."""

    def __init__(self, name: str, shape: str, rings: str):
        """shape: round, box, bag, ball or bent. rings: colours and rings, from the bottom to the top.

        A ring is its height, half width (y) and, unless that is the same, half depth (x) in cm. A colour holds
        for the surface from there on; one with a motif and its colour is a label up to the next ring.
        """
        self.name, self.shape, self.kind = name, shape, name.split()[-1]
        label, sizes, self.labels = [""], list[list[float]](), list[list[str]]()
        for word in rings.split():
            if word[0].isalpha():
                label = word.split("/")
            else:
                height, width, *depth = map(float, word.split(","))
                sizes.append([height, width, *(depth or [width])])
                self.labels.append(label)
                label = label[:1]
        self.rings_m = np.array(sizes) / 100  # (rings, 3): height, half width, half depth
        self.height_m, half_width_m, half_depth_m = map(float, self.rings_m.max(axis=0))
        self.half_m = half_depth_m, half_width_m
        """Half its size along x and along y, which the gripper spans."""
        self.rest = SO3(np.full(4, 0.5)) if shape == "bent" else SO3.identity()
        """Its rotation on the counter: upright, or on its side if it never stands."""
        self.topples = shape in ("round", "box") and self.height_m > 3.5 * half_width_m
        """Whether it can be knocked over and placed upright."""
        rises = [*map(abs, np.diff(self.rings_m[:, 0]))]
        areas = {colour: 0.0 for colour, *_ in self.labels}
        for (colour, *_), rise_m in zip(self.labels[1:], rises, strict=True):
            areas[colour] += rise_m
        self.colour = max(areas, key=areas.__getitem__)

    def is_like(self, other: HouseholdObject) -> bool:
        """Return whether the two are of one kind or, for the most part, of one colour."""
        return self.kind == other.kind or self.colour == other.colour


HOUSEHOLD = {
    name: HouseholdObject(name, shape, rings)
    for name, shape, rings in (
        ("cola can", "round", "steel 0,0 0,2.7 .6,3.2 red/wave/white 11.2,3.2 steel 12,2.7 12,0"),
        ("lime soda can", "round", "steel 0,0 0,2.7 .6,3.2 lime/disc/green 11.2,3.2 steel 12,2.7 12,0"),
        ("orange soda can", "round", "steel 0,0 0,2.7 .6,3.2 orange/dots/white 11.2,3.2 steel 12,2.7 12,0"),
        ("energy drink can", "round", "steel 0,0 0,2.3 .6,2.7 navy/bolt/yellow 13.7,2.7 steel 14.5,2.3 14.5,0"),
        ("water bottle", "round", "sky 0,0 0,2.9 6,3.1 blue/wave/white 10.5,3.1 sky 14,3.1 17,1.3 18,1.3 "
         "blue 18,1.6 20,1.6 20,0"),
        ("iced tea bottle", "round", "brown 0,0 0,3 4,3 yellow/disc/red 10.5,3 brown 13,3 16,1.4 17,1.4 "
         "white 17,1.7 19,1.7 19,0"),
        ("ketchup bottle", "round", "red 0,0 0,3.1 4,3.1 red/disc/white 11,3.1 13,2.5 white 13,2.2 15,2 18,.6 "
         "18,0"),
        ("apple", "ball", "red .2,0 0,1.6 1.2,2.9 3.4,3.6 5.3,3.4 6.5,2.2 6.6,1.3 "
         "brown 6.1,.3 7.6,.25 7.6,0"),
        ("orange", "ball", "orange 0,0 .2,1.2 .8,2.3 1.8,3.1 3.6,3.6 5.4,3.1 6.4,2.3 7,1.2 7.1,.5 "
         "green 7.2,0"),
        ("pear", "ball", "lime .2,0 0,1.5 1.3,2.9 3.2,3.3 5,2.8 7.2,1.7 8.8,1.2 9.2,.4 "
         "brown 10.4,.25 10.4,0"),
        ("banana", "bent", "brown 0,0 .2,.7 yellow 1.5,1.3 5,1.8 8.5,1.9 12,1.8 15,1.2 16,.6 "
         "brown 17.5,.6 17.5,0"),
        ("sponge", "box", "yellow 0,0 0,3,4.5 yellow/dots/amber 2.8,3,4.5 green 2.8,3,4.5 4,3,4.5 4,0"),
        ("white mug", "round", "white 0,0 0,3.1 3,3.4 white/dots/blue 7,3.4 9,3.4 9,3.1 7.8,3.1 coffee 7.8,0"),
        ("blue cup", "round", "blue 0,0 0,2.6 8,3.3 white 9.2,3.5 blue 10,3.5 10,3.2 navy 3,2.6 3,0"),
        ("white bowl", "round", "white 0,0 0,2.2 .8,2.2 3,3.5 red 4.2,3.8 white 5,3.9 5,3.7 cream 1.5,2.4 1.5,0"),
        ("blue chip bag", "bag", "steel 0,0 0,3.4,.2 .8,3.4,.2 blue 2.5,3.3,2.4 blue/disc/yellow 11.5,3.3,2.4 "
         "blue 13.2,3.4,.2 steel 14,3.4,.2 14,0"),
        ("green chip bag", "bag", "steel 0,0 0,3.4,.2 .8,3.4,.2 green 2.5,3.3,2.4 green/wave/white 11.5,3.3,2.4 "
         "green 13.2,3.4,.2 steel 14,3.4,.2 14,0"),
        ("cereal box", "box", "yellow 0,0 0,3.5,2.2 yellow/bowl/blue 10,3.5,2.2 red/band/white 13,3.5,2.2 "
         "yellow 15,3.5,2.2 15,0"),
        ("tea box", "box", "teal 0,0 0,3.5,3 teal/leaf/lime 6.5,3.5,3 cream 7.5,3.5,3 teal 7.5,0"),
        ("milk carton", "box", "white 0,0 0,3.4 blue 2,3.4 white/wave/sky 11.5,3.4 blue 14.8,3.4,.4 "
         "white 16,3.4,.4 16,0"),
        ("juice carton", "box", "white 0,0 0,3.2 orange 2,3.2 white/disc/orange 9.5,3.2 orange 12.8,3.2,.4 "
         "white 14,3.2,.4 14,0"),
        ("jam jar", "round", "purple 0,0 0,3 1,3.3 cream/disc/purple 6,3.3 purple 7.4,2.9 red 7.4,3.2 "
         "white/checks/red 9.2,3.2 red 9.2,0"),
        ("honey jar", "round", "amber 0,0 0,2.6 2.5,3.4 yellow/stripes/coffee 6,3.4 amber 8,2.7 "
         "yellow 8,3 9.5,3 9.5,0"),
        ("salt shaker", "round", "white 0,0 0,2.4 3.5,2.2 sky 6,2.1 steel 6,2.3 7.5,2.2 "
         "steel/dots/black 8.5,1.3 8.5,0"),
    )
}  # fmt: skip
"""Name -> object. The last word of a name is the kind of object."""


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
            geom = body.add_geom(solid, condim=6, mass=0.15, group=HIDDEN_GROUP, **primitive)
            geom.friction = (1.2, 0.02, 0.002)
        for start, end in pairwise(HANDLE) if name == "white mug" else ():
            rod = body.add_geom(decor, type=CAPSULE, size=(0.005, 0, 0), fromto=(*start, *end))
            rod.material = "enamel"


def _add_look(spec: mujoco.MjSpec, item: HouseholdObject) -> None:
    """Add the object's mesh, texture and material, of its own name each."""
    repeats, x, y = OUTLINES.get(item.shape, ROUND)
    height_m, width_m, depth_m = item.rings_m.T[:, :, None]
    bend_m = BEND_M * (np.sin(np.pi * height_m / item.height_m) - 1) * (item.shape == "bent")
    vertices = np.stack(
        np.broadcast_arrays(depth_m * x + bend_m, width_m * y, height_m - item.height_m / 2), 2
    )
    v, u = np.mgrid[0 : 1 : len(height_m) * 1j, 0 : 1 : (AROUND + 1) * 1j]
    corner = np.arange(v.size).reshape(v.shape)[:-1, :-1].ravel()
    above = corner + AROUND + 1
    faces = np.stack([corner, corner + 1, above, corner + 1, above + 1, above], 1).ravel()
    vertices, places = vertices.reshape(-1, 3), np.stack([u, v], 2).reshape(-1, 2)
    if item.shape == "box":  # its edges are sharp
        vertices, places, faces = vertices[faces], places[faces], np.arange(faces.size)
    mesh = spec.add_mesh(name=item.name, inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
    mesh.uservert, mesh.usertexcoord, mesh.userface = vertices.ravel(), places.ravel(), faces
    image = np.concatenate([_painted(repeats, *label) for label in item.labels[1:]])
    texture = spec.add_texture(name=item.name, type=mujoco.mjtTexture.mjTEXTURE_2D, nchannel=3)
    texture.height, texture.width, texture.data = len(image), COLUMNS, image.tobytes()
    material = spec.add_material(name=item.name, specular=0.2)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = item.name


def _painted(repeats: int, colour: str, motif: str = "", second: str = "") -> np.ndarray:
    """Return the texture between two rings, from the lower one up, (ROWS, COLUMNS, 3) uint8."""
    image = np.full((ROWS, COLUMNS, 3), COLOURS[colour], np.uint8)
    if motif:
        v, u = np.mgrid[-1 : 1 : ROWS * 1j, 0 : repeats : COLUMNS * 1j]
        image[MOTIFS[motif](2 * (u % 1) - 1, v)] = COLOURS[second]
    return image


def _solids(item: HouseholdObject) -> list[dict[str, Any]]:
    """Return what the object collides as: the type, size and place of each primitive."""
    height_m, width_m, _ = item.rings_m.T
    if item.shape == "bent":
        ends, size = [(-0.020, 0, side * 0.068) for side in (-1, 1)], (0.017, 0, 0)
        return [{"type": CAPSULE, "size": size, "fromto": (0, 0, 0, *end)} for end in ends]
    body = width_m > (0.5 if item.shape == "ball" else 0.85) * item.half_m[1]
    top_m, found = height_m[body].max(), list[dict[str, Any]]()
    parts = [(0.0, top_m, *item.half_m)]
    if item.shape == "round" and item.height_m - top_m > 0.015:  # a neck
        parts.append((top_m, item.height_m, 0.0, width_m[height_m > top_m].max()))
    for low_m, high_m, x_m, y_m in parts:
        half_m = (high_m - low_m) / 2
        kinds = {"ball": (ELLIPSOID, (y_m, y_m, half_m)), "round": (CYLINDER, (y_m, half_m, 0))}
        kind, size = kinds.get(item.shape, (BOX, (x_m, y_m, half_m)))
        found.append(
            {"type": kind, "size": size, "pos": (0, 0, (low_m + high_m - item.height_m) / 2)}
        )
    return found
