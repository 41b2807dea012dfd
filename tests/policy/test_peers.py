"""Policies of LeRobot and robomimic as actors, where these projects are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.policy import (
    ActionPart,
    CameraSpec,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
    load_runner,
)

SPEC = PolicySpec(
    "cart",
    (CameraSpec("front", 32, 32),),
    (ProprioceptionSpec("speed", ("m/s",)), ProprioceptionSpec("slope", ("rad", "rad"))),
    (ActionPart("push", 1, "N"), ActionPart("turn", 1, "rad")),
    rate_hz=5.0,
)
OTHER = PolicySpec("ship", SPEC.cameras, SPEC.proprioception, SPEC.actions[:1], 5.0)
CHUNK = 3


def frames(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "front": rng.integers(0, 256, (32, 32, 3), dtype=np.uint8),
            "speed": rng.normal(0, 1, 1).astype(np.float32),
            "slope": rng.normal(0, 1, 2).astype(np.float32),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", ["lerobot:nowhere", "robomimic:nowhere.pth"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(UserError, match="nowhere"):
        load_runner(name, SPEC)


@pytest.fixture
def act(tmp_path: Path) -> Path:
    """A checkpoint of ACT as LeRobot's trainer writes it, with random weights."""
    configs = pytest.importorskip("lerobot.policies.act.configuration_act")
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    front, state, action = FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION
    torch.manual_seed(0)
    config = configs.ACTConfig(
        device="cpu", chunk_size=CHUNK, n_action_steps=CHUNK, dim_model=16, n_heads=2,
        dim_feedforward=16, n_encoder_layers=1, latent_dim=4, pretrained_backbone_weights=None,
        input_features={
            "observation.images.front": PolicyFeature(front, (3, 32, 32)),
            "observation.state": PolicyFeature(state, (3,)),
        },
        output_features={"action": PolicyFeature(action, (2,))},
    )  # fmt: skip
    unit = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats: dict[str, Any] = {
        "observation.images.front": unit,
        "observation.state": {"mean": torch.arange(3.0), "std": torch.full((3,), 2.0)},
        "action": {"mean": torch.tensor([10.0, -10.0]), "std": torch.full((2,), 0.5)},
    }
    folder = tmp_path / "pretrained_model"
    ACTPolicy(config).save_pretrained(folder)
    for each in make_pre_post_processors(config, dataset_stats=stats):
        each.save_pretrained(folder)
    return folder


def test_a_chunk_of_act_begins_with_the_episode_and_at_no_other_time(act: Path) -> None:
    runner, seen = load_runner(f"lerobot:{act}", SPEC), frames(6)

    def drive() -> list[list[float]]:
        runner.reset("push")
        return [runner.step(each).values.tolist() for each in seen]

    first = drive()
    runner.reset("push")  # and now another frame, which its chunk does not see
    chunk = [runner.step(each).values.tolist() for each in (seen[0], seen[5], seen[5], seen[5])]
    assert chunk[:CHUNK] == first[:CHUNK]
    assert chunk[CHUNK] != first[CHUNK]
    assert drive() == first
    assert 8 < first[0][0] < 12  # in the units of the data
    with pytest.raises(UserError):
        load_runner(f"lerobot:{act}", OTHER)


@pytest.fixture
def bc_rnn(tmp_path: Path) -> Path:
    """A checkpoint of BC-RNN as robomimic's trainer writes it, with random weights."""
    configs = pytest.importorskip("robomimic.config")
    from robomimic.algo import algo_factory
    from robomimic.utils import file_utils, obs_utils, train_utils

    config = configs.config_factory("bc")
    with config.values_unlocked():
        config.algo.rnn.enabled, config.algo.rnn.horizon, config.algo.rnn.hidden_dim = True, 4, 8
        config.train.cuda = False
        config.observation.modalities.obs.rgb = []
        config.observation.modalities.obs.low_dim = ["speed", "slope"]
    obs_utils.initialize_obs_utils_with_config(config)
    shapes = {"all_shapes": {"speed": [1], "slope": [2]}, "ac_dim": 2}
    torch.manual_seed(0)
    model = algo_factory("bc", config, shapes["all_shapes"], 2, torch.device("cpu"))
    path = tmp_path / "model.pth"
    train_utils.save_model(model, config, {}, shapes, str(path))
    assert file_utils.policy_from_checkpoint(ckpt_path=str(path))
    return path


def test_the_state_of_bc_rnn_begins_with_the_episode_and_at_no_other_time(bc_rnn: Path) -> None:
    runner, seen = load_runner(f"robomimic:{bc_rnn}", SPEC), frames(1)[0]

    def drive(ticks: int) -> list[list[float]]:
        runner.reset("push")
        return [runner.step(seen).values.tolist() for _ in range(ticks)]

    first = drive(8)
    assert len({tuple(each) for each in first[:4]}) == 4  # it remembers
    assert first[4:] == first[:4]  # its own horizon
    drive(2)
    assert drive(8) == first
    with pytest.raises(UserError):
        load_runner(f"robomimic:{bc_rnn}", OTHER)
