"""Machines that share the episodes of a result must have the same software."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttm.policy import UserError
from ttm.sim import workers as software
from ttm.sim.workers import require_same_software


def test_a_machine_is_like_itself() -> None:
    require_same_software(software.software())


def test_the_first_difference_is_named() -> None:
    wanted = {**software.software(), "mujoco": "3.0.0"}
    with pytest.raises(
        UserError, match=r"^mujoco is [\d.]+ there, but 3\.0\.0 where [^\n]*same on both$"
    ):
        require_same_software(wanted)


@pytest.mark.parametrize("name", ["module.py", "scene.xml"])
def test_other_code_or_another_scene_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    monkeypatch.setattr(software, "CODE", (*software.CODE, tmp_path.name))
    before = software._code()
    (tmp_path / name).write_text("")
    assert software._code() != before
