"""Levels of variation: what differs between episodes beside the initial state.

| dimension | what varies                                     | level 1     | level 2     | level 3     |
|-----------|-------------------------------------------------|-------------|-------------|-------------|
| camera    | head camera: offset, and as much shake          | 2°, 1 cm    | 4°, 2 cm    | 8°, 4 cm    |
| light     | all lights, by a factor                         | 0.7 to 1.4  | 0.5 to 1.6  | 0.3 to 2    |
|           | contrast of frames, by a factor                 | 0.9 to 1.1  | 0.8 to 1.2  | 0.7 to 1.4  |
|           | direction of the lights                         |             |             | 40°         |
| hue       | colours of frames, turned about grey            | 10°         | 30°         | 60°         |
| noise     | Gaussian noise of frames, in grey levels        | 5           | 10          | 20          |
|           | ticks at which a frame freezes for 1 to 5 ticks |             | 2 %         | 4 %         |
| texture   | colours of the furniture                        | by 25 %     | by 50 %     | by 100 %    |
|           | materials of counter, wall and floor            |             | other       | other       |
| pause     | ticks for which the robot is held               | 1 to 30     | 1 to 100    | 1 to 300    |
| rate      | duration of cues, and of gaps that are drawn    | x ½, 1 or 2 | x ½, 1 or 3 | x ½, 1 or 4 |
| decoy     | cues that do not count (`tasks.memory.cue`)     |             |             |             |
| words     | the instruction, in tasks with paraphrases      | other words | other words | other words |
| clutter   | objects that are added, but not to memory tasks | 1 or 2      | 1 to 4      | 1 to 8      |
| start     | the robot's place, no nearer, and heading       | 5 cm, 3°    | 10 cm, 6°   | 20 cm, 12°  |
|           | head, from where it would look otherwise        | 2°          | 4°          | 8°          |
| physics   | friction of all that touches, by a factor       | 0.8 to 1.25 | 0.67 to 1.5 | 0.5 to 2    |
|           | mass of objects, resistance of drawers          | 0.7 to 1.4  | 0.5 to 2    | 0.25 to 4   |
| latency   | ticks by which observations are late            | 0 or 1      | 0 to 2      | 0 to 3      |
| frames    | ticks at which a frame freezes                  | 2 %         | 4 %         | 8 %         |
|           | for so many ticks; for one, it is dropped       | 1 or 2      | 1 to 5      | 1 to 10     |

Every episode draws how much varies, up to these strengths. Each dimension has a generator of its own that
the episode's seed determines, so that it changes neither another one nor what the task draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
from mink import SO3

from ttm.policy.errors import UserError, require_choice
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.scene import DRAWER_Z_M
from ttm.sim.kitchen.spec import FRAME_PX, SPEC

Observation = dict[str, np.ndarray]
LEVELS = (0, 1, 2, 3)
# By level:
CAMERA_RAD, CAMERA_M = np.radians((0.0, 2.0, 4.0, 8.0)), (0.0, 0.01, 0.02, 0.04)
LIGHT = np.array(
    (
        ((1.0, 1.0), (1.0, 1.0)),
        ((0.7, 0.9), (1.4, 1.1)),
        ((0.5, 0.8), (1.6, 1.2)),
        ((0.3, 0.7), (2.0, 1.4)),
    )
)
"""The least and the greatest factor of brightness and of contrast."""
LIGHT_RAD, HUE_RAD = np.radians((0.0, 0.0, 0.0, 40.0)), np.radians((0.0, 10.0, 30.0, 60.0))
NOISE = (0.0, 5.0, 10.0, 20.0)
FREEZING = {
    "noise": ((0.0, 0), (0.0, 5), (0.02, 5), (0.04, 5)),
    "frames": ((0.0, 0), (0.02, 2), (0.04, 5), (0.08, 10)),
}
"""The probability in each tick that a camera's frame freezes, and the most ticks for which it does."""
RECOLOURED = (0.0, 0.25, 0.5, 1.0)
LONGEST_PAUSE, SLOWEST = (0, 30, 100, 300), (1, 2, 3, 4)
MOST_ADDED, LATEST = (0, 2, 4, 8), (0, 1, 2, 3)
START_M, START_RAD, LOOK_RAD = (0.0, 0.05, 0.1, 0.2), np.radians((0, 3, 6, 12)), CAMERA_RAD
FRICTION, MASS = (1.0, 1.25, 1.5, 2.0), (1.0, 1.4, 2.0, 4.0)
"""The greatest factors; the least are their inverses."""

PAUSE_WITHIN = 30
"""A pause begins within so many ticks of the first at which the robot may act."""
SURFACES = (
    "floor", "wall", "backsplash", "counter_top", "cabinet", "cabinet_edge", "chest", "drawer_front",
)  # fmt: skip
"""Materials that get other colours."""
MATERIALS = {
    "counter_top": ("counter_top", "chest", "wall"),
    "back_wall": ("wall", "backsplash", "cabinet"),
    "floor": ("floor", "wall", "plinth"),
}
"""Geom -> the materials that it may be made of from level 2 on, its own first."""
OF_MODEL = (
    "cam_pos", "cam_quat", "light_ambient", "light_diffuse", "light_dir", "mat_rgba", "geom_matid",
    "geom_friction", "dof_damping", "dof_frictionloss", "body_mass", "body_inertia", "body_subtreemass",
    "body_invweight0", "dof_invweight0",
)  # fmt: skip
"""Fields of the model that vary, and the headlight, which varies as the lights do."""


DIMENSIONS = (
    "camera", "light", "hue", "noise", "texture", "pause", "rate", "decoy", "words", "clutter", "start",
    "physics", "latency", "frames",
)  # fmt: skip
"""`Variation` has a method for each that draws once; frames freeze in `tick`, and decoys are the task's. New
ones go to the end, so that the draws of the others stay as they are."""


class Variation:
    """What varies in the present episode of one scene."""

    pause: range
    """The ticks, counted from the first at which the robot may act, at which it is held."""
    rate: float
    """How many ticks each tick of a cue lasts."""
    clutter: tuple[int, np.random.Generator] | None
    """How many objects are added at most, and what draws which and where."""
    start: np.ndarray
    """(5,): by how much the robot begins elsewhere; see `InitialState.moved`."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._head = model.camera(fetch.SCENE_PREFIX + fetch.HEAD_CAMERA).id
        lamp = model.vis.headlight
        fields = [getattr(model, name) for name in OF_MODEL] + [lamp.ambient, lamp.diffuse]
        self._own = [(field, field.copy()) for field in fields]
        self._levels: dict[str, int] = {}

    def begin(self, levels: Mapping[str, int], rng: np.random.Generator) -> None:
        """Draw what varies in a new episode.

        levels: dimension -> level, 0 for those left out. rng: gives seeds, and its stream stays as it is.
        Raises `UserError` if there is no such dimension or level.
        """
        for name, level in levels.items():
            require_choice("the dimension of variation", name, DIMENSIONS)
            if level not in LEVELS:
                raise UserError(f"the level of {name} is {level!r}; give one of {LEVELS}")
        for field, own in self._own if self._levels else ():
            field[:] = own
        self._levels = {name: level for name, level in levels.items() if level}
        self.pause, self.rate = range(0), 1.0
        self.clutter, self.start, self._late = None, np.zeros(5), 0
        self._shake_rad = self._shake_m = self._deviation = 0.0
        self._colours, self._offset = np.eye(3), 0.0
        self._frozen, self._last = dict[tuple[str, str], int](), dict[str, np.ndarray]()
        self._sent = list[Observation]()
        if self._levels:
            self._rngs = dict(zip(DIMENSIONS, rng.spawn(len(DIMENSIONS)), strict=True))
        for name, level in self._levels.items():
            getattr(self, f"_{name}", lambda *_: None)(level, self._rngs[name])

    def tick(self, *, acts: bool) -> None:
        """Draw what varies in a tick. acts: whether the robot could act in the tick before.

        Frames freeze only then: one that lasts could otherwise carry the cue to "go".
        """
        if self._shake_rad:
            turn, move = self._rngs["camera"].uniform(-1, 1, (2, 3))
            self._place_camera(self._shake_rad * turn, self._shake_m * move)
            mujoco.mj_camlight(self._model, self._data)
        if self._deviation:
            rng, shape = self._rngs["noise"], (len(SPEC.cameras), FRAME_PX, FRAME_PX, 3)
            self._grain = self._deviation * rng.standard_normal(shape, np.float32)
        for name in FREEZING.keys() & self._levels if acts else ():
            rng, (probability, longest) = self._rngs[name], FREEZING[name][self._levels[name]]
            for camera in SPEC.cameras:
                begins, ticks = rng.random() < probability, rng.integers(1, longest + 1)
                left = self._frozen.get((name, camera.name), 0) - 1
                self._frozen[name, camera.name] = int(ticks) if begins and left <= 0 else left

    def seen(self, frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what the cameras make of rendered frames, (H, W, 3) uint8 RGB each."""
        changes = self._levels.keys() & {"light", "hue", "noise", "frames"}
        frozen = {camera for (_, camera), ticks in self._frozen.items() if ticks > 0}
        for number, name in enumerate(frames if changes else ()):
            if name not in frozen:
                self._last[name] = self._changed(frames[name], number)
        return frames | {name: frame.copy() for name, frame in self._last.items()}

    def arrived(self, observation: Observation, *, acts: bool) -> Observation:
        """Return the newest observation that the robot has got when this one is made.

        acts: as for `tick`. Until then none is late, since one of the cue could otherwise arrive at "go".
        """
        self._sent = [*(self._sent if acts else ()), observation][-1 - self._late :]
        return {name: value.copy() for name, value in self._sent[0].items()}

    def worded(self, instruction: str, others: Sequence[str]) -> str:
        """Return the instruction, or one of the others that mean the same."""
        given = others if "words" in self._levels else ()
        return given[int(self._word * len(given))] if given else instruction

    def clock(self, ticks: int, cue_ticks: int) -> int:
        """Return the tick of a task's clock, by which its cue lasts `cue_ticks`, after so many real ones."""
        shown = math.ceil(self.rate * cue_ticks)
        return int(ticks / self.rate) if ticks < shown else cue_ticks + ticks - shown

    def _changed(self, frame: np.ndarray, number: int) -> np.ndarray:
        """Return the frame of the camera of that number with other colours and noise."""
        values = frame.astype(np.float32) @ self._colours.T.astype(np.float32)
        values += np.float32(self._offset)
        if self._deviation:
            values += self._grain[number]
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)

    def _place_camera(self, turn_rad: np.ndarray, move_m: np.ndarray) -> None:
        """Turn and move the head camera, by (3,) each, from where it is without shake."""
        place_m, rotation = self._camera_pose
        self._model.cam_pos[self._head] = place_m + move_m
        self._model.cam_quat[self._head] = (rotation @ SO3.exp(turn_rad)).wxyz

    def _camera(self, level: int, rng: np.random.Generator) -> None:
        place_m, rotation = self._model.cam_pos[self._head], SO3(self._model.cam_quat[self._head])
        offset, shake = rng.uniform(size=2)
        move_m = offset * CAMERA_M[level] * _direction(rng)
        turn_rad = offset * CAMERA_RAD[level] * _direction(rng)
        self._camera_pose = place_m + move_m, rotation @ SO3.exp(turn_rad)
        self._shake_rad, self._shake_m = shake * CAMERA_RAD[level], shake * CAMERA_M[level]

    def _light(self, level: int, rng: np.random.Generator) -> None:
        model, lamp = self._model, self._model.vis.headlight
        brightness, contrast = np.exp(rng.uniform(*np.log(LIGHT[level])))
        for light in (model.light_ambient, model.light_diffuse, lamp.ambient, lamp.diffuse):
            light *= brightness
        turn = SO3.exp(rng.uniform(0, LIGHT_RAD[level]) * _direction(rng))
        model.light_dir[:] = [turn.apply(direction) for direction in model.light_dir]
        self._colours *= contrast
        self._offset = 128 * (1 - contrast)

    def _hue(self, level: int, rng: np.random.Generator) -> None:
        turn_rad = rng.uniform(-1, 1) * HUE_RAD[level]
        self._colours = SO3.exp(np.full(3, turn_rad / np.sqrt(3))).as_matrix() @ self._colours

    def _noise(self, level: int, rng: np.random.Generator) -> None:
        self._deviation = rng.uniform(0, NOISE[level])

    def _texture(self, level: int, rng: np.random.Generator) -> None:
        model, portion = self._model, rng.uniform(0, RECOLOURED[level])
        for name in SURFACES:
            rgb = model.material(name).rgba[:3]
            rgb += portion * (rng.uniform(0.2, 1, 3) - rgb)
        for geom, materials in MATERIALS.items() if level > 1 else ():
            material = model.material(str(rng.choice(materials)))
            model.geom_matid[model.geom(geom).id] = material.id

    def _pause(self, level: int, rng: np.random.Generator) -> None:
        start = int(rng.integers(PAUSE_WITHIN))
        self.pause = range(start, start + int(rng.integers(1, LONGEST_PAUSE[level], endpoint=True)))

    def _rate(self, level: int, rng: np.random.Generator) -> None:
        self.rate = float(rng.choice((0.5, 1, SLOWEST[level])))

    def _words(self, level: int, rng: np.random.Generator) -> None:
        self._word = rng.random()

    def _clutter(self, level: int, rng: np.random.Generator) -> None:
        self.clutter = int(rng.integers(1, MOST_ADDED[level], endpoint=True)), rng

    def _start(self, level: int, rng: np.random.Generator) -> None:
        most = START_M[level], START_M[level], START_RAD[level], LOOK_RAD[level], LOOK_RAD[level]
        self.start = rng.uniform((-1, -1, -1, -1, -1), (0, 1, 1, 1, 1)) * most

    def _physics(self, level: int, rng: np.random.Generator) -> None:
        model, exponents = self._model, rng.uniform(-1, 1, 2)
        friction, mass = np.array((FRICTION[level], MASS[level])) ** exponents
        model.geom_friction *= friction
        drawers = [model.joint(f"drawer_{name}").dofadr[0] for name in DRAWER_Z_M]
        model.dof_damping[drawers] *= mass
        model.dof_frictionloss[drawers] *= mass
        free = model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
        bodies, dofs = model.jnt_bodyid[free], model.jnt_dofadr[free][:, None] + range(6)
        for heavier in (model.body_mass, model.body_inertia, model.body_subtreemass):
            heavier[bodies] *= mass
        model.body_invweight0[bodies] /= mass
        model.dof_invweight0[dofs] /= mass

    def _latency(self, level: int, rng: np.random.Generator) -> None:
        self._late = int(rng.integers(LATEST[level], endpoint=True))


def _direction(rng: np.random.Generator) -> np.ndarray:
    """Draw a unit vector, (3,)."""
    vector = rng.standard_normal(3)
    return vector / np.linalg.norm(vector)
