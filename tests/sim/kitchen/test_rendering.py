"""A machine that cannot render says so in one line, before any work is begun."""

import mujoco
import pytest

from ttm.policy import UserError
from ttm.sim.collect import CollectCommand
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen.rendering import require_rendering


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
