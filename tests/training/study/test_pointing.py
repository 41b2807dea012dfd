"""`ttm study pointing`: vision finds what is named, and a training begins with that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ttm.policy import ActionPart, CameraSpec, Policy, PolicySpec, UserError
from ttm.policy.policy import PRESETS
from ttm.training.network import see_as
from ttm.training.study.pointing import Pointer, StudyPointingCommand, Views

RED, BLUE = (200, 30, 30), (30, 30, 200)
SPEC = PolicySpec(
    "sides", (CameraSpec("above", 32, 32),), (), (ActionPart("step", 1, "m/tick"),), rate_hz=10.0
)


class SidesEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A red and a blue side, half a metre ahead, in frames of 4 x 4 cells; a door out of view."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's own attribute)
    policy_spec = SPEC
    tasks = {"touch": ("touch the red side", "touch the blue side")}  # noqa: RUF012
    observation_space = gymnasium.spaces.Dict(
        {"above": gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Put the red side to the left or right."""
        super().reset(seed=seed)
        self.red_left = bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Change nothing."""
        return self._observe(), 0.0, False, False, {}

    def expert(self) -> SidesEnv:
        """Return what demonstrates the task."""
        return self

    def action(self) -> np.ndarray:
        """Return the expert's action."""
        return np.zeros(1, np.float32)

    def named_places(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Return the middle of each side."""
        red, blue = (0.1, 0.9) if self.red_left else (0.9, 0.1)
        x = dict(zip(self.tasks["touch"], (red, blue), strict=True))
        found = {text: {"above": np.array([[x[text], 0.5, 0.5]])} for text in x}
        behind = np.array([[red, 0.5, 0.5], [np.nan] * 3])
        return {"touch": found | {"touch the red side beside the door": {"above": behind}}}

    def _observe(self) -> dict[str, np.ndarray]:
        frame = self.np_random.integers(0, 20, (32, 32, 3)).astype(np.uint8)
        left, right = (RED, BLUE) if self.red_left else (BLUE, RED)
        frame[:, :8], frame[:, 24:] = left, right
        return {"above": frame}


gymnasium.register("test/Sides-v0", entry_point=SidesEnv, max_episode_steps=100)


def command(out: Path, **changes: Any) -> StudyPointingCommand:
    given: dict[str, Any] = {"task": ("touch",), "env": "test/Sides-v0", "vary": ()}
    given |= {"scenes": 40, "steps": 30, "workers": 1}
    return StudyPointingCommand(out, **{**given, **changes})


def test_vision_finds_the_side_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in scenes that it was not trained on, where a guess of one side is right half of the time."""
    assert command(tmp_path).run() == 0
    (row,) = json.loads((tmp_path / "efficientnet-b0.json").read_text())["found"]
    assert row["pairs"] >= 8
    assert row["within a cell"] == "100.0%"
    assert float(row["error in distance"].rstrip("%")) < 20
    assert "first" in capsys.readouterr().out

    views = np.load(tmp_path / "frames.npz")
    assert 40 * 9 <= len(views["frames"]) <= 40 * 10, "an eighth of 80 ticks, since no episode ends"
    texts = views["texts"].tolist()
    assert texts == ["touch the blue side", "touch the red side"], "the door is in no view"

    monkeypatch.setattr(SidesEnv, "reset", None)  # the frames are there
    assert command(tmp_path, steps=1).run() == 0
    with pytest.raises(UserError, match=r"has frames of .*; give another --out"):
        command(tmp_path, scenes=3).run()
    made = {"frames.npz", "efficientnet-b0.safetensors", "efficientnet-b0.json"}
    assert {path.name for path in tmp_path.iterdir()} == made

    (tmp_path / "frames.npz").write_bytes((tmp_path / "frames.npz").read_bytes()[:5000])
    with pytest.raises(UserError, match=r"frames.npz is damaged .*; delete it"):
        command(tmp_path).run()

    monkeypatch.delattr(SidesEnv, "named_places")
    with pytest.raises(UserError, match=r"'test/Sides-v0' has no named_places; see ttm.sim.Pol"):
        command(tmp_path / "other").run()
    with pytest.raises(UserError, match=r"--vary camera=1: .* has no member variations"):
        command(tmp_path, vary=("camera=1",)).run()


def test_what_is_named_moves_with_the_frame() -> None:
    """A frame is moved to the right and down, and the target with it, by the same portion."""
    frames = np.random.default_rng(0).integers(0, 255, (20, 1, 32, 32, 3)).astype(np.uint8)
    places = np.full((2, 1, 2, 3), 0.5, np.float32)
    views = Views(frames, np.array([(0, 0), (19, 0)]), places, np.array(["touch the red side"]))
    torch.manual_seed(0)
    pointer, seen = Pointer(Policy(SPEC, PRESETS["tiny"]), views), list[torch.Tensor]()
    pointer.vision.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    targets = [
        pointer._see(np.array([(0, 0)]), *by)[1].unflatten(2, (4, 4)) for by in ((0, 0), (3, 2))
    ]
    assert torch.equal(seen[1][..., 2:, 3:], seen[0][..., :-2, :-3])
    for dim, pixels in ((2, 2), (3, 3)):
        middle = [(x.sum(5 - dim)[0, 0] * torch.arange(4)).sum().item() for x in targets]
        assert middle[1] - middle[0] == pytest.approx(pixels / 8, abs=0.1)


def test_a_training_begins_with_its_vision_and_the_tokens_of_the_same_camera() -> None:
    first, second, other = (CameraSpec(name, 32, 32) for name in ("above", "hand", "side"))
    spec = replace(SPEC, cameras=(first, second))
    torch.manual_seed(0)
    seen = Policy(spec, PRESETS["tiny"])
    made = Policy(replace(spec, cameras=(second, other)), PRESETS["tiny"])
    before = {name: x.clone() for name, x in made.state_dict().items()}
    see_as(made, seen, "x", tokens=True)
    after, theirs = made.state_dict(), seen.state_dict()
    of_hand = [name for name in after if name.startswith("camera_tokens.0.")]
    assert of_hand
    assert all(torch.equal(after[name], theirs[name.replace(".0.", ".1.", 1)]) for name in of_hand)
    same = ("vision.", "language.")
    assert all(torch.equal(after[n], theirs[n]) for n in after if n.startswith(same))
    new = [n for n in after if not n.startswith((*same, "camera_tokens.0."))]
    assert all(torch.equal(after[n], before[n]) for n in new)


def test_tokens_of_another_width_are_new() -> None:
    torch.manual_seed(0)
    seen, made = (Policy(SPEC, replace(PRESETS["tiny"], width=w)) for w in (32, 64))
    before = made.camera_tokens[0].project.weight.clone()  # type: ignore[union-attr]
    see_as(made, seen, "x", tokens=True)
    assert torch.equal(made.camera_tokens[0].project.weight, before)  # type: ignore[union-attr, arg-type]
