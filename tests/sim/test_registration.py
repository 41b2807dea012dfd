"""The kitchen in Gymnasium's registry."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from ttm.policy import UserError
from ttm.sim import KitchenEnv
from ttm.sim.registration import register_kitchen


def test_gymnasium_makes_the_kitchen() -> None:
    env = gymnasium.make("ttm/Kitchen-v0", task="open_drawer")
    _, info = env.reset(seed=0)
    assert isinstance(env.unwrapped, KitchenEnv)
    assert info["task"] == "open_drawer"
    env.close()


def test_gymnasium_alone_finds_the_kitchen_by_its_module() -> None:
    code = (
        "import gymnasium; env = gymnasium.make('ttm.sim:ttm/Kitchen-v0', task='pick'); "
        "print(env.reset(seed=0)[1]['instruction']); env.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pick up the ")


# The proprioception has no limits that hold for every reading of a sensor.
@pytest.mark.filterwarnings("ignore:.*observation space (minimum|maximum) value is")
@pytest.mark.filterwarnings("error")
def test_the_kitchen_passes_gymnasiums_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KitchenEnv, "render_px", 120)  # of pictures for people
    env = gymnasium.make("ttm/Kitchen-v0")
    check_env(env.unwrapped)
    env.close()


def test_registering_twice_changes_nothing() -> None:
    before = gymnasium.registry["ttm/Kitchen-v0"]
    register_kitchen()
    assert gymnasium.registry["ttm/Kitchen-v0"] is before


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UserError, match="task is 'dance'"):
        gymnasium.make("ttm/Kitchen-v0", task="dance")
