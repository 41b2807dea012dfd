"""MIKASA-Robo (Cherepanov et al. 2025, arXiv 2502.10550): memory tasks of ManiSkill3, on a CPU.

Importing this module registers `mikasa/Robo-v0`, a `PolicyEnv` with RememberColor3, 5 and 9 and TakeItBack.
Instructions, scripted experts and these differences from the published benchmark are ours:

- Simulation by `physx_cpu`, and frames by a software Vulkan. The benchmark hides cubes by poses 1 km high,
  which on a GPU are drawn but never reach the physics; on a CPU they do, and the cubes would never be
  back. `RememberColor.before_step` repairs that.
- The arm's visual meshes have 8 % of their triangles; with all of them a tick takes six times as long.
- Commands are displacements of the gripper (`pd_ee_delta_pose`), not of the joints.

Gap and cue of 5 ticks each, limits of 60 and 180 ticks, frames of 128 x 128 and predicates are theirs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from ttm.policy.errors import UserError, first_line, require_at_least, require_choice
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.sim.environment import HELD, Expert

ENV_ID = "mikasa/Robo-v0"
MIKASA = f"{__name__}:{ENV_ID}"
"""What commands call the environment."""
HOW_TO = "training/study/README.md"
NEEDED = ("mikasa_robo_suite", "mani_skill", "sapien", "trimesh", "fast_simplification")
RATE_HZ = 20.0
SIZE = 128
LARGEST_M = LARGEST_RAD = 0.1
"""What an action of 1 means to the benchmark's controller."""
SPEC = PolicySpec(
    robot="mikasa_panda",
    cameras=(CameraSpec("base", SIZE, SIZE), CameraSpec("hand", SIZE, SIZE)),
    proprioception=(
        ProprioceptionSpec(
            "joints", (*(f"joint {i} (rad)" for i in range(1, 8)), "finger 1 (m)", "finger 2 (m)")
        ),
        ProprioceptionSpec("ee_pose", ("x (m)", "y (m)", "z (m)", "qw", "qx", "qy", "qz")),
    ),
    actions=(
        ActionPart("arm_translation", 3, "m/tick", low=-LARGEST_M, high=LARGEST_M),
        ActionPart("arm_rotation", 3, "rad/tick", low=-LARGEST_RAD, high=LARGEST_RAD),
        ActionPart("gripper", 1, "1 open, 0 closed", kind="binary"),
        ActionPart("terminate", 1, "1 done", kind="binary"),
    ),
    rate_hz=RATE_HZ,
)
CUE_TICKS = 5
COLOURS = ("red", "lime", "blue", "yellow", "magenta", "cyan", "maroon", "olive", "teal")
PLACES = ("right", "middle", "left")
PLACE_M = 0.1
"""Distance of two places of `TakeItBack` along y. The first begins at -0.1 m."""
REACH_M = 0.06
"""The gripper has chosen a cube that is so close to it. The benchmark's predicate asks for 0.05 m."""
REACHED_M = 0.155
"""The arm cannot go further along x; the target begins before."""
HOLD_M, HELD_FINGER_M = (-0.014, 0.0, 0.0), 0.025
"""Where a cube of 4 cm is grasped, off its middle since the arm reaches no further, and the fingers there."""


def towards(tcp: np.ndarray, goal: np.ndarray, largest_m: float) -> np.ndarray:
    """Return the way (3,) from the gripper to `goal`, at most `largest_m` of it."""
    way = goal - tcp
    return way * min(1.0, largest_m / max(float(np.linalg.norm(way)), 1e-9))


def touch(tcp: np.ndarray, cube: np.ndarray) -> np.ndarray:
    """Return the translation (3,) of an expert that goes above a cube and down to it."""
    goal = cube + np.array([0, 0, 0.032])
    if np.linalg.norm((goal - tcp)[:2]) > 0.04:
        goal[2] = max(goal[2], 0.09)
    return towards(tcp, goal, 0.05)


def carry(
    tcp: np.ndarray, fingers_m: float, cube: np.ndarray, goal: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return translation (3,), and whether to open the fingers, of an expert that slides a cube to a place.

    tcp, cube: positions (3,). fingers_m: how far each finger is from the middle. goal: (2,) or more.
    """
    way = cube + HOLD_M - tcp
    aside = float(np.linalg.norm(way[:2]))
    if aside < 0.035 and abs(way[2]) < 0.02 and fingers_m < HELD_FINGER_M:
        return towards(tcp, np.array([min(goal[0], REACHED_M), goal[1], 0.025]), 0.03), False
    if aside < 0.012 and abs(way[2]) < 0.012:
        return np.zeros(3), False
    is_down = aside < 0.012 or (aside < 0.02 and tcp[2] < 0.06)
    return towards(tcp, tcp + way + (0, 0, 0 if is_down else 0.08), 0.04), True


class MemoryTask(ABC):
    """A task of the benchmark in its own ManiSkill environment, `world`, of a single robot."""

    instruction: str
    limit: int
    """Ticks of an episode with the benchmark's gap."""
    gap = 5
    """The benchmark's gap, in ticks."""
    choices: tuple[str, ...]

    def __init__(self, world: Any):
        self.world = world

    @property
    @abstractmethod
    def go(self) -> bool:
        """Whether the memory is needed from now on."""

    @property
    @abstractmethod
    def right_choice(self) -> str:
        """What the cue asks for."""

    @abstractmethod
    def begin(self, gap: int, right_choice: str | None) -> None:
        """Make ready for the episode to which the world was reset, perhaps under another cue."""

    def before_step(self) -> None:  # noqa: B027 (optional)
        """Change the world before a tick."""

    @abstractmethod
    def choice(self) -> str | None:
        """Return what the robot chooses, now that it may act and has not succeeded."""

    @abstractmethod
    def expert(self) -> np.ndarray:
        """Return the translation (3,) in m and the opening of the gripper, (4,) together."""

    @property
    def tcp(self) -> np.ndarray:
        return position(self.world.agent.tcp)


def position(actor: Any) -> np.ndarray:
    """Return where something in the world is, (3,), in m."""
    return np.asarray(actor.pose.p[0], np.float64)


class RememberColor(MemoryTask):
    """A cube is shown for 5 ticks and hidden for the gap; then it is to be touched among others."""

    instruction = "remember the color of the cube, then touch the cube of the same color"
    limit = 60

    def __init__(self, world: Any):
        super().__init__(world)
        self.choices = COLOURS[: world.COLORS]

    @property
    def go(self) -> bool:
        return int(self.world.elapsed_steps[0]) >= CUE_TICKS + self.world.DELTA_TIME

    @property
    def right_choice(self) -> str:
        return COLOURS[int(self.world.true_color_indices[0])]

    def begin(self, gap: int, right_choice: str | None) -> None:
        world = self.world
        world.DELTA_TIME = gap
        if right_choice is not None:
            world.true_color_indices[:] = COLOURS.index(right_choice)
        upright = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        self._poses = {key: torch.cat([at, upright], 1) for key, at in world.initial_poses.items()}

    def before_step(self) -> None:
        """Put the hidden cubes, which a GPU would only draw elsewhere, back to where they stand."""
        if not self.go:
            for key, cube in self.world.cubes.items():
                cube.pose = self._poses[key]

    def choice(self) -> str | None:
        far = {key: np.linalg.norm(position(c) - self.tcp) for key, c in self.world.cubes.items()}
        nearest = min(far, key=far.__getitem__)
        return COLOURS[nearest] if far[nearest] < REACH_M else None

    def expert(self) -> np.ndarray:
        cube = self.world.cubes[int(self.world.true_color_indices[0])]
        return np.append(touch(self.tcp, position(cube)) if self.go else np.zeros(3), 1)


class TakeItBack(MemoryTask):
    """A cube is to be pushed onto a red target, and then back to where it stood, which nothing marks.

    The cube stands at one of three places, a few centimetres off. The memory is needed from the tick at which
    the cube has been on the target. The gap is the robot's own way there, and no option.
    """

    instruction = "move the cube to the red target, then return it to where it was"
    limit = 180
    gap = 0
    choices = PLACES

    @property
    def go(self) -> bool:
        return bool(self.world.goal_reached_status[0])

    @property
    def right_choice(self) -> str:
        return PLACES[round(float(self._start[1]) / PLACE_M - 0.25) + 1]

    @property
    def _start(self) -> np.ndarray:
        return position(self.world.initial_region)

    def begin(self, gap: int, right_choice: str | None) -> None:
        if gap != self.gap:
            raise UserError("the robot's own way is the gap of take_it_back; leave --gap out")
        if right_choice is not None:
            aside = PLACES.index(right_choice) - PLACES.index(self.right_choice)
            for actor in (self.world.initial_region, self.world.cube):
                pose = actor.pose.raw_pose.clone()
                pose[:, 1] += aside * PLACE_M
                actor.pose = pose

    def choice(self) -> str | None:
        way, right = position(self.world.cube) - self._start, PLACES.index(self.right_choice)
        places = PLACE_M * (np.arange(len(PLACES)) - right)
        return PLACES[np.abs(places - way[1]).argmin()] if way[0] < PLACE_M / 2 else None

    def expert(self) -> np.ndarray:
        goal = self._start if self.go else position(self.world.goal_region)
        fingers_m = float(self.world.agent.robot.qpos[0, -2:].mean())
        translation, is_open = carry(self.tcp, fingers_m, position(self.world.cube), goal)
        return np.append(translation, is_open)


TASKS: Mapping[str, tuple[str, type[MemoryTask]]] = {
    "remember_color_3": ("RememberColor3-v0", RememberColor),
    "remember_color_5": ("RememberColor5-v0", RememberColor),
    "remember_color_9": ("RememberColor9-v0", RememberColor),
    "take_it_back": ("TakeItBack-v0", TakeItBack),
}
"""Task -> its name in the benchmark, and what it is here."""


def make_world(name: str) -> Any:
    """Return a new ManiSkill environment, simulated and rendered on the CPU.

    Raises `UserError` if there is no Vulkan driver that SAPIEN takes.
    """
    panda = import_module("mani_skill.agents.robots.panda.panda_wristcam").PandaWristCam
    panda.urdf_path = str(slim_panda() / "panda_v3.urdf")
    import_module("mikasa_robo_suite.rl.memory_envs")
    try:
        return gymnasium.make(
            name,
            obs_mode="rgb",
            control_mode="pd_ee_delta_pose",
            reward_mode="sparse",
            render_mode="rgb_array",
            sim_backend="physx_cpu",
            render_backend="cpu",
        ).unwrapped
    except RuntimeError as error:
        raise UserError(
            f"SAPIEN cannot render here ({first_line(error)}); name the driver of Mesa 25 in "
            f"VK_ICD_FILENAMES, as {HOW_TO} says"
        ) from error


KEPT_TRIANGLES = 0.08
FEWEST_TRIANGLES = 300
"""Meshes of fewer triangles stay as they are."""


def slim_panda() -> Path:
    """Return a folder with the benchmark's arm, of few triangles, which the user's cache keeps."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ttm"
    slim = cache / f"mikasa_panda_{KEPT_TRIANGLES:g}"
    if not slim.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / "panda"
            source = Path(import_module("mani_skill").PACKAGE_ASSET_DIR) / "robots" / "panda"
            shutil.copytree(source, made, ignore=shutil.ignore_patterns("sciurus*", "d435*"))
            for path in made.glob("franka_description/meshes/visual/*.glb"):
                _slim_file(path, KEPT_TRIANGLES)
            _slim_file(made / "realsense2_description/meshes/d415.stl", KEPT_TRIANGLES / 16)
            try:
                made.rename(slim)
            except OSError:
                if not slim.exists():  # else another process was faster
                    raise
    return slim


def _slim_file(path: Path, kept: float) -> None:
    """Keep that portion of the triangles of a mesh file, and its colours."""
    trimesh = import_module("trimesh")
    scene, slim = trimesh.load_scene(path), trimesh.Scene()
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        mesh = _slim_mesh(trimesh, scene.geometry[name], kept)
        slim.add_geometry(mesh, transform=transform, node_name=node, geom_name=name)
    path.write_bytes(slim.export(file_type=path.suffix[1:]))


def _slim_mesh(trimesh: Any, mesh: Any, kept: float) -> Any:
    simplify = import_module("fast_simplification").simplify
    whole = trimesh.Trimesh(mesh.vertices, mesh.faces, process=True)
    wanted = max(FEWEST_TRIANGLES // 2, int(len(mesh.faces) * kept))
    if len(mesh.faces) > FEWEST_TRIANGLES:
        arrays = np.asarray(whole.vertices, np.float32), np.asarray(whole.faces, np.int32)
        whole = trimesh.Trimesh(*simplify(*arrays, target_count=wanted), process=False)
    _ = whole.vertex_normals  # which the file then holds
    if (material := getattr(mesh.visual, "material", None)) is not None:
        whole.visual = trimesh.visual.TextureVisuals(material=material)
    return whole


class MikasaExpert:
    """The expert of the present episode, which looks into the simulator."""

    def __init__(self, env: MikasaEnv):
        self._env = env

    def action(self) -> np.ndarray:
        """Return the action (8,) for the present state."""
        *translation, is_open = self._env.task.expert()
        return np.array([*translation, 0, 0, 0, is_open, self._env.success], np.float32)


class MikasaEnv(gymnasium.Env[Any, Any]):
    """The benchmark's tasks as a `PolicyEnv`, with one world for each task that was asked for.

    The robot is not held before "go", as in the benchmark.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    tasks = {name: (task.instruction,) for name, (_, task) in TASKS.items()}  # noqa: RUF012
    policy_spec = SPEC
    action_space = gymnasium.spaces.Box(*SPEC.action_limits)
    observation_space = gymnasium.spaces.Dict(
        {c.name: gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8) for c in SPEC.cameras}
        | {
            each.name: gymnasium.spaces.Box(-np.inf, np.inf, (each.size,), np.float32)
            for each in SPEC.proprioception
        }
    )
    task: MemoryTask
    success = False
    _choice: str | None = None

    def __init__(self, render_mode: str | None = None):
        """Raise `UserError` if a package of the benchmark is not installed."""
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise UserError(f"{ENV_ID} needs {', '.join(missing)}; install them as {HOW_TO} says")
        self.render_mode = render_mode
        self._made: dict[str, MemoryTask] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin the numbered initial state `seed` of a task; see `PolicyEnv` for the options."""
        options = options or {}
        name, right = options.get("task", next(iter(TASKS))), options.get("right_choice")
        require_choice("task", name, TASKS)
        if options.get("cue", "hidden") != "hidden":
            raise UserError(f"{ENV_ID} cannot leave its cue on; leave --cue out")
        if name not in self._made:
            benchmark, task = TASKS[name]
            self._made[name] = task(make_world(benchmark))
        self.task = self._made[name]
        self._gap = int(options.get("gap", self.task.gap))
        require_at_least(0, {"gap": self._gap})
        # In a scene that was used before, contacts are solved in another order, and rounded otherwise.
        observation, _ = self.task.world.reset(seed=seed or 0, options={"reconfigure": True})
        self.task.begin(self._gap, right)
        if right is not None:
            observation = self.task.world.get_obs()
        self._tick, self._choice, self.success = 0, None, False
        return self._observe(observation), self._info()

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Carry out an action (8,). The episode also ends at the benchmark's limit."""
        action = np.clip(action, self.action_space.low, self.action_space.high)
        scaled = np.append(action[:6] / np.repeat((LARGEST_M, LARGEST_RAD), 3), 2 * action[6] - 1)
        self.task.before_step()
        observation, _, _, _, info = self.task.world.step(scaled.astype(np.float32))
        self._tick += 1
        self.success = bool(info["success"][0])
        if self._choice is None and self.task.go:
            self._choice = self.task.right_choice if self.success else self.task.choice()
        is_late = self._tick >= self.task.limit + self._gap - self.task.gap
        return self._observe(observation), float(self.success), self.success, is_late, self._info()

    def expert(self) -> Expert:
        """Return what demonstrates the task."""
        return MikasaExpert(self)

    def render(self) -> np.ndarray:
        """Return a picture of the robot and the table, (512, 512, 3) uint8."""
        return np.asarray(self.task.world.render_rgb_array()[0], np.uint8)

    def close(self) -> None:
        for task in self._made.values():
            task.world.close()
        self._made = {}

    def _observe(self, observation: Any) -> dict[str, np.ndarray]:
        frames = {
            camera.name: np.asarray(observation["sensor_data"][f"{camera.name}_camera"]["rgb"][0])
            for camera in SPEC.cameras
        }
        joints, pose = observation["agent"]["qpos"][0], observation["extra"]["tcp_pose"][0]
        return {
            **frames,
            "joints": np.asarray(joints, np.float32),
            "ee_pose": np.asarray(pose, np.float32),
        }

    def _info(self) -> dict[str, Any]:
        task = self.task
        return {
            "instruction": task.instruction,
            "success": self.success,
            "time_s": self._tick / RATE_HZ,
            "go": task.go,
            HELD: False,
            "gap": self._gap,
            "choice": self._choice,
            "choices": task.choices,
            "right_choice": task.right_choice,
        }


gymnasium.register(ENV_ID, entry_point=f"{__name__}:MikasaEnv")
