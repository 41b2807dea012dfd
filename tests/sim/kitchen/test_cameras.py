"""What is left out of rendering changes no bit of a frame; a machine that cannot render says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import mujoco
import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import KitchenEnv
from ttm.sim.collect import CollectCommand
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen import cameras, fetch
from ttm.sim.kitchen.cameras import OF_DATA, OF_MODEL, Cameras, out_of_view
from ttm.sim.kitchen.objects import HIDDEN_GROUP
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.kitchen.scene import DRAWER_Z_M
from ttm.sim.kitchen.spec import FRAME_PX
from ttm.sim.tasks.table import MEMORY_NAMES

HEAD, WRIST = fetch.SCENE_PREFIX + fetch.HEAD_CAMERA, fetch.SCENE_PREFIX + fetch.WRIST_CAMERA
GAP = 4
ACTING_TICKS = 8


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> list[mujoco.Renderer]:
    """The renderers that rendered a frame, one entry for each frame."""
    seen = []
    render = mujoco.Renderer.render

    def counted(self: mujoco.Renderer) -> np.ndarray:
        seen.append(self)
        return render(self)

    monkeypatch.setattr(mujoco.Renderer, "render", counted)
    return seen


class Everything:
    """Renders all geoms, at every call."""

    def __init__(self, env: KitchenEnv, height_px: int = FRAME_PX, width_px: int = FRAME_PX):
        self._renderer, self._data = mujoco.Renderer(env.model, height_px, width_px), env.data

    def close(self) -> None:
        """Free the renderer, whose context must be the current one."""
        self._renderer.render()
        self._renderer.close()

    def frame(self, camera: str) -> np.ndarray:
        """Return the camera's view."""
        self._renderer.update_scene(self._data, camera)
        frame: np.ndarray = self._renderer.render()
        return frame


def assert_seen_as_rendered(env: KitchenEnv, observation: dict, everything: Everything) -> None:
    for name, camera in {"head": HEAD, "wrist": WRIST}.items():
        assert np.array_equal(observation[name], everything.frame(camera)), name


def random_action(env: KitchenEnv, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)


@pytest.mark.parametrize("task", ["pick", "open_drawer"])
@pytest.mark.parametrize("driver", ["expert", "random"])
def test_frames_of_skills_are_those_of_the_whole_scene(
    env: KitchenEnv, task: str, driver: str
) -> None:
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=5, options={"task": task})
    with closing(Everything(env)) as everything:
        for _ in range(24):
            assert_seen_as_rendered(env, observation, everything)
            action = env.expert().action() if driver == "expert" else random_action(env, rng)
            observation, *_ = env.step(action)


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_frames_of_memory_tasks_are_those_of_always_rendering(
    env: KitchenEnv, task: str, renders: list[mujoco.Renderer]
) -> None:
    """In cue, gap and action; and in most ticks of the gap nothing is rendered."""
    observation, info = env.reset(seed=1, options={"task": task, "gap": GAP})
    go_tick = env.task.go_tick(env.world)  # type: ignore[attr-defined]
    with closing(Everything(env)) as everything:
        for _ in range(go_tick + ACTING_TICKS):
            assert_seen_as_rendered(env, observation, everything)
            renders.clear()
            observation, *_, info = env.step(env.expert().action())
            if go_tick - GAP < info["tick"] < go_tick:
                assert not renders
            assert len(renders) == 2 or info["tick"] <= go_tick
    assert info["tick"] > go_tick


def test_frames_are_right_in_any_pose(env: KitchenEnv) -> None:
    """Joints anywhere, the head turned too, so that cameras look at every side of robot and room."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    moving = [*fetch.ARM_GAINS, "head_pan_joint", "head_tilt_joint", "torso_lift_joint", "slide2"]
    hidden = set()
    with closing(Everything(env)) as everything:
        for _ in range(60):
            for name in moving:
                env.data.joint(fetch.PREFIX + name).qpos[:] = rng.uniform(-1.5, 1.5)
            mujoco.mj_forward(env.model, env.data)
            assert_seen_as_rendered(env, env.observe(), everything)
            mask = out_of_view(env.model, env.data, env.model.camera(WRIST).id, 1.0)
            hidden.add(mask.tobytes())
    assert len(hidden) > 30, "the wrist looked in many directions"


def test_pictures_for_people_change_nothing_that_the_policy_sees(env: KitchenEnv) -> None:
    env.reset(seed=0)
    lights, before = env.model.light_castshadow.copy(), env.observe()
    buffer = env.model.vis.global_.offwidth
    first = env.render()
    assert first.shape == (720, 960, 3)
    env.world.cameras._last.clear()  # draw again
    with closing(Everything(env)) as everything:
        assert_seen_as_rendered(env, env.observe(), everything)
    for name in ("head", "wrist"):
        np.testing.assert_array_equal(env.observe()[name], before[name])
    assert np.array_equal(env.model.light_castshadow, lights)
    assert env.model.vis.global_.offwidth == buffer


def test_pictures_for_people_show_shadows_and_labels(
    env: KitchenEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.reset(seed=0, options={"task": "pick"})
    monkeypatch.setattr(env, "render_px", 120)
    shown = env.render()
    monkeypatch.setattr(cameras, "DETAILS", {})
    plain = env.render()
    changed = (shown != plain).any(axis=2)
    assert 0 < changed.sum() < 0.02 * changed.size, "labels and lids are small"
    monkeypatch.setattr(cameras, "SUN", slice(0, 0))
    darker = env.render().astype(int) - plain
    assert (darker.sum(axis=2) > 30).mean() > 0.01, "without sun, nothing lies in a shadow"


def test_sites_within_handles_are_not_drawn_and_nothing_is_missing(env: KitchenEnv) -> None:
    handles = [env.model.site(f"handle_{name}").id for name in DRAWER_Z_M]
    assert (env.model.site_group[handles] == HIDDEN_GROUP).all()
    env.reset(seed=5, options={"task": "open_drawer"})
    for _ in range(6):
        seen = env.step(env.expert().action())[0]
        env.model.site_group[handles] = 0
        with closing(Everything(env)) as everything:
            assert_seen_as_rendered(env, seen, everything)
        env.model.site_group[handles] = HIDDEN_GROUP


def test_most_of_the_robot_is_out_of_view(env: KitchenEnv) -> None:
    """Else nothing is gained."""
    env.reset(seed=0)
    for camera, most in ((HEAD, 9_000), (WRIST, 2_000)):
        mask = out_of_view(env.model, env.data, env.model.camera(camera).id, 1.0)
        meshes = ~mask & (env.model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
        assert env.model.mesh_facenum[env.model.geom_dataid[meshes]].sum() < most


def test_geom_groups_stay_what_they_were(env: KitchenEnv) -> None:
    env.reset(seed=0)
    before = env.model.geom_group.copy()
    env.observe()
    assert np.array_equal(env.model.geom_group, before)


def test_an_unknown_camera_is_an_error_that_lists_the_known(env: KitchenEnv) -> None:
    with pytest.raises(KeyError, match="overview"):
        env.world.cameras.frame("nowhere")


def _recolour(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    model.geom("counter_top").matid[:] = -1
    model.geom("counter_top").rgba[:] = (1, 0, 1, 1)


def _swell(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    model.geom("counter_top").size[2] = 0.05


def _repaint(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    model.mat_rgba[:, :3] *= 0.5


def _darken(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    model.light_diffuse[:] = 0.0


def _turn_head(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    data.joint(fetch.PREFIX + "head_pan_joint").qpos[:] += 0.1
    mujoco.mj_forward(model, data)


def _zoom(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    model.cam_fovy[:] = 30.0


@pytest.mark.parametrize("change", [_recolour, _swell, _repaint, _darken, _turn_head, _zoom])
def test_whatever_changes_is_seen(
    env: KitchenEnv, change: Callable[[mujoco.MjModel, mujoco.MjData], None]
) -> None:
    env.reset(seed=0)
    model, data = env.model, env.data
    kept = {name: getattr(model, name).copy() for name in OF_MODEL}
    cameras = Cameras(model, data)
    before = cameras.frame(HEAD)
    try:
        change(model, data)
        after = cameras.frame(HEAD)
        with closing(Everything(env)) as everything:
            assert np.array_equal(after, everything.frame(HEAD))
        assert not np.array_equal(after, before)
    finally:
        cameras.close()
        for name, values in kept.items():
            getattr(model, name)[:] = values


def test_a_caller_may_change_the_frame_that_it_got(env: KitchenEnv) -> None:
    env.reset(seed=0)
    first = env.world.cameras.frame(HEAD)
    expected = first.copy()
    first[:] = 0
    assert np.array_equal(env.world.cameras.frame(HEAD), expected)


def test_cameras_that_are_closed_leave_others_alone(env: KitchenEnv) -> None:
    env.reset(seed=0)
    closed, kept = Cameras(env.model, env.data), Cameras(env.model, env.data)
    with closing(kept), closing(Everything(env)) as everything:
        closed.frame(HEAD)
        kept.frame(HEAD)
        closed.close()
        assert np.array_equal(kept.frame(WRIST), everything.frame(WRIST))


def test_all_that_is_compared_exists(env: KitchenEnv) -> None:
    assert all(getattr(env.model, name).size for name in OF_MODEL)
    assert all(getattr(env.data, name).size for name in OF_DATA)


def test_this_machine_renders():
    require_rendering()


@pytest.mark.parametrize("command", [CollectCommand, EvaluateCommand])
def test_without_rendering_nothing_is_begun(command, monkeypatch, tmp_path):
    def fails(*arguments):
        raise AttributeError("'NoneType' object has no attribute\n'eglQueryString'")

    monkeypatch.setattr(mujoco, "Renderer", fails)
    with pytest.raises(
        UserError, match=r"^[^\n]*apt-get install -y libegl1 libgl1-mesa-dri[^\n]*$"
    ):
        command(out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_places_of_named_things_are_where_the_cameras_show_them(env: KitchenEnv) -> None:
    """The pixel there is of the object that the instruction names, if nothing stands before it."""
    shown, hits, wrist = 0, 0, 0
    for seed in range(4):
        env.reset(seed=seed, options={"task": "pick_object"})
        places = env.named_places()
        assert "pick" not in places, "its objects are not in this scene"
        with closing(mujoco.Renderer(env.model, FRAME_PX, FRAME_PX)) as renderer:
            renderer.enable_segmentation_rendering()
            for camera, name in (("head", HEAD), ("wrist", WRIST)):
                renderer.update_scene(env.data, name)
                kinds = renderer.render()  # (H, W, 2): number and kind
                for goal in env.task.goals:
                    place = places["pick_object"][f"pick up the {goal}"][camera]
                    ((x, y, ahead_m),) = place
                    if np.isnan(x):
                        continue
                    assert 0.1 < ahead_m < 3
                    geom = kinds[int(y * FRAME_PX), int(x * FRAME_PX), 0]
                    shown, wrist = shown + 1, wrist + (camera == "wrist")
                    hits += env.model.body(env.model.geom_bodyid[geom]).name == goal
            moved = places["move_near"][f"move the {goal} near the {env.task.goals[0]}"]["head"]
            both = [
                places["pick_object"][f"pick up the {of}"]["head"]
                for of in (goal, env.task.goals[0])
            ]
            np.testing.assert_array_equal(moved, np.concatenate(both))
    assert shown > 15
    assert wrist > 0
    assert hits > 0.8 * shown
    assert set(places["drawer"]) == set(env.tasks["drawer"])
