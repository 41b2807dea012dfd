"""`ttm evaluate` with several gaps and probes, and `ttm compare` on what it wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ttm.policy import PRESETS, Policy, save_checkpoint
from ttm.sim import load_evaluation
from ttm.sim.compare import CompareCommand
from ttm.sim.condition import LIVE, ProbeName
from ttm.sim.evaluation import EvaluateCommand
from ttm.training import cli

Sweep = Callable[..., EvaluateCommand]
pytestmark = pytest.mark.usefixtures("without_openvino")


@pytest.fixture
def sweep(remembering: Path, points: ModuleType, tmp_path: Path) -> Sweep:
    """Make the command that evaluates the policy that remembers, three states of the memory task."""

    def make(gap: tuple[int, ...], probe: tuple[ProbeName, ...], **options: Any) -> EvaluateCommand:
        plain = EvaluateCommand(
            out=tmp_path / "out", checkpoint=str(remembering), task="memory", gap=gap, probe=probe,
            env="memory_point_env:test/MemoryPoint-v0", episodes=3, workers=1,
        )  # fmt: skip
        return replace(plain, **options)

    return make


def test_each_combination_has_a_folder_and_the_page_shows_all(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """So does the page of `ttm compare`."""
    command = sweep((2, 6), ("swap", "live"))
    assert command.run() == 0
    folders = {path.parent.name for path in command.out.glob("*/result.json")}
    assert folders == {"gap_2_live", "gap_2_swap", "gap_6_live", "gap_6_swap"}
    assert not (command.out / "result.json").exists()
    swapped = load_evaluation(command.out / "gap_6_swap")
    assert (swapped.condition.gap, swapped.condition.probe) == (6, "swap")
    assert [o.choice and o.choice.gap for o in swapped.tasks["recall"].outcomes] == [6, 6, 6]
    page = (command.out / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 4
    assert "data:image" not in page, "an LSTM has no tokens to look into"
    assert page.count("<svg") == 1
    assert "gap (ticks)" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "that of the donor blue" in page
    printed = capsys.readouterr().out
    assert re.search(r"recall  swap, gap 2 +0 of 3 = 0% .* 3 of 3 = 100%", printed)
    assert re.search(
        r"recall  live, gap 6  swap, gap 6 +0 +3 +0 +0 +-100% \(-100% to -2%\) +0\.25", printed
    )
    assert CompareCommand((command.out,), tmp_path / "page").run() == 0
    page = (tmp_path / "page" / "report.html").read_text()
    for label in (f"{command.out}, gap 2", f"{command.out} (swap), gap 6"):
        assert label in page


@pytest.fixture
def token_memory(points: ModuleType, tmp_path: Path) -> Path:
    """The checkpoint of an untrained policy with a Token Turing Machine."""
    policy = Policy(points.MemoryPointEnv.policy_spec, PRESETS["tiny"])
    policy.known_instructions[points.MemoryPointEnv.tasks["recall"][0]] = np.zeros(384, np.float32)
    save_checkpoint(tmp_path / "ttm.safetensors", policy, {})
    return tmp_path / "ttm.safetensors"


def test_a_token_memory_is_pictured_below_the_videos(sweep: Sweep, token_memory: Path) -> None:
    """Of the first state at each gap, where the memory is left alone; the outcomes stay the same."""
    command = sweep((2, 4), ("live", "erase"), checkpoint=str(token_memory), max_ticks=9, videos=2)
    assert command.run() == 0
    pictures = sorted(command.out.rglob("*.webp"))
    assert [str(path.relative_to(command.out)) for path in pictures] == [
        f"gap_{gap}_live/videos/recall_0000_memory.webp" for gap in (2, 4)
    ]
    with Image.open(pictures[0]) as picture:
        assert picture.size == (1200, 600)
    page = (command.out / "report.html").read_text()
    assert page.count("data:image/webp;base64,") == 2
    assert page.count("data:video/mp4;base64,") == 8
    alone = sweep((2,), (LIVE,), checkpoint=str(token_memory), max_ticks=9, out=command.out / "one")
    assert alone.run() == 0
    results = [folder / "result.json" for folder in (alone.out, command.out / "gap_2_live")]
    assert results[0].read_bytes() == results[1].read_bytes()


def test_one_gap_keeps_the_page_and_its_place_and_a_sweep_is_compared_with_it(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = sweep((2,), (LIVE,), out=tmp_path / "first")
    assert first.run() == 0
    assert load_evaluation(first.out).condition.gap == 2
    page = (first.out / "report.html").read_text()
    assert "right choice" in page
    assert "this policy" in page
    assert sweep((2, 6), (LIVE,), out=tmp_path / "all", against=first.out).run() == 0
    assert re.search(
        r"recall .*first, gap 2 +live, gap 2 +3 +0 +0 +0 +\+0% \(-39% to \+39%\) +1",
        capsys.readouterr().out,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gap", "-1"], "--gap is -1; give 0 or more"),
        (["--probe", "noise", "--noise", "0"], "--noise is 0.0; give a number above 0"),
        (["--probe", "swap", "--checkpoint", "expert"], "is for a policy, not for the expert"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_one_line(
    points: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    where = ["--env", "memory_point_env:test/MemoryPoint-v0", "--task", "recall"]
    code = cli.main(["evaluate", "--out", str(tmp_path / "out"), *where, *words])
    assert code == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()
