"""The objects of the kitchen: what they look like, how large they are and what they collide as.

`OBJECTS` are the plain ones of `pick` and of the memory suite. `HOUSEHOLD` are those of the groups of skills
(`ttm.sim.tasks.groups`), which have a scene of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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

TABLE = ElementTree.parse(Path(__file__).parents[1] / "assets" / "household.xml").getroot()
COLOURS = {
    name: [*map(int, rgb.split())] for row in TABLE.iter("colours") for name, rgb in row.items()
}
"""Name -> RGB of the paint, 0 to 255."""
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
OUTLINES: dict[str, Any] = {
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
    """An object whose body has its origin half way up, z towards its top, and its front and back along x.

    shape: round, box, bag, ball or bent; rings: see `assets/household.xml`.
    """

    def __init__(self, name: str, shape: str, rings: str):
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
        areas = dict.fromkeys(COLOURS, 0.0)
        for label, rise_m in zip(self.labels[1:], np.diff(self.rings_m[:, 0]), strict=True):
            areas[label[0]] += abs(rise_m)
        self.colour = max(areas, key=areas.__getitem__)

    def is_like(self, other: HouseholdObject) -> bool:
        """Return whether the two are of one kind or, for the most part, of one colour."""
        return self.kind == other.kind or self.colour == other.colour


HOUSEHOLD = {row.attrib["name"]: HouseholdObject(**row.attrib) for row in TABLE.iter("object")}


def add_household(scene: mujoco.MjSpec) -> None:
    """Put all of `HOUSEHOLD` in the place of `OBJECTS`, each a body with a free joint of its name.

    What rests is not simulated (`mjENBL_SLEEP`), so that many objects take no more time than few. The floor
    is drawn as one square: 14,400 look the same, and take a third of the time of a wrist camera's frame.
    """
    floor = scene.geom("floor")
    floor.size[2] = 2 * floor.size[0]
    scene.option.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    for name in OBJECTS:
        scene.delete(scene.body(name))
    solid, decor = scene.find_default("object"), scene.find_default("decor")
    for name, item in HOUSEHOLD.items():
        body = scene.worldbody.add_body(name=name)
        body.add_joint(solid, name=name)
        _add_look(scene, item)
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
        ends = [(-0.020, 0, side * 0.068) for side in (-1, 1)]
        return [{"type": CAPSULE, "size": (0.017, 0, 0), "fromto": (0, 0, 0, *end)} for end in ends]
    body = width_m > (0.5 if item.shape == "ball" else 0.85) * item.half_m[1]
    top_m, found = height_m[body].max(), list[dict[str, Any]]()
    parts = [(0.0, top_m, item.half_m)]
    if item.shape == "round" and item.height_m - top_m > 0.015:  # a neck
        parts.append((top_m, item.height_m, (0.0, width_m[height_m > top_m].max())))
    for low_m, high_m, (x_m, y_m) in parts:
        half_m, pos = (high_m - low_m) / 2, (0, 0, (low_m + high_m - item.height_m) / 2)
        kinds = {"ball": (ELLIPSOID, (y_m, y_m, half_m)), "round": (CYLINDER, (y_m, half_m, 0))}
        kind, size = kinds.get(item.shape, (BOX, (x_m, y_m, half_m)))
        found.append({"type": kind, "size": size, "pos": pos})
    return found
