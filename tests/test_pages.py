"""The pages that people read first: their commands are understood, their links and pictures are there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ttm.policy import PolicyRunner

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "*/README.md",
        "*/*/README.md",
        "*/docs/*.md",
        "training/study/suite.md",
    )
    for path in ROOT.glob(pattern)
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
MOST_LINES = 150
"""Of the first page: a newcomer shall finish it."""
MOST_WORDS = 20_000
"""Of all pages together. Who adds beyond it takes something away."""


def commands() -> list[str]:
    """The `ttm …` lines of all code blocks."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.split(" # ")[0].strip() for line in lines if line.startswith("ttm ")]
    assert len(found) > 10, "the code blocks have changed their shape"
    return sorted(set(found))


@pytest.mark.parametrize("line", commands())
def test_commands_on_the_pages_are_understood(line: str) -> None:
    from ttm.training.cli import parse

    assert parse(shlex.split(line)[1:])


def without_code(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def anchors(page: Path) -> list[str]:
    """What links to the headings of a page end with: lower case, hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.M)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", without_code(page)):
        link, _, anchor = next(part for part in target if part).partition("#")
        if not link.startswith(("http://", "https://")):
            there = page.parent / link if link else page
            assert there.exists(), f"{page.relative_to(ROOT)} links to {link}"
            if anchor and there.suffix == ".md":
                assert anchor in anchors(there), f"{page.relative_to(ROOT)}: {link}#{anchor}"


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_all_pages_together_are_short() -> None:
    words = {str(page.relative_to(ROOT)): len(page.read_text().split()) for page in PAGES}
    assert sum(words.values()) <= MOST_WORDS, words


FRONT_DOORS = {
    "ttm.policy": ("PolicyRunner", "PolicySpec", "load_checkpoint", "load_scenic"),
    "ttm.datasets": ("EpisodeWriter", "EpisodeReader"),
    "ttm.sim": ("KitchenEnv",),
}
"""Package -> what users import from it, among others."""
LIGHT = [
    f"ttm.policy.{name}" for name in ("errors", "cores.registry", "config", "language", "spec")
]
"""Options of commands are made from these, and `ttm --help` has to be quick."""


def test_front_doors_open_when_asked() -> None:
    """What users import stands at the front of its package; nothing heavy is loaded until then."""
    code = f"""
import sys
from importlib import import_module

def loaded(*names):
    return [name for name in names if name in sys.modules]

packages = {{name: import_module(name) for name in {FRONT_DOORS!r}}}
assert not loaded("h5py", "PIL", "rich", "matplotlib", "mujoco", "rclpy")
for name in {LIGHT!r}:
    import_module(name)
import ttm.datasets.writer, ttm.datasets.dataset  # read and write without the learning library
assert not loaded("torch", "openvino", "efficientnet_pytorch", "sentence_transformers")
for name, names in {FRONT_DOORS!r}.items():
    package = packages[name]
    assert set(names) <= set(package.__all__) <= set(dir(package))
    for each in package.__all__:
        assert getattr(package, each) is not None
    try:
        package.no_such_name
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("an unknown name must be an AttributeError")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_cells_of_the_notebook_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, with smaller numbers; a notebook in the repository holds no outputs."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ttm.sim.kitchen_env.KitchenEnv.render_px", 120)
    monkeypatch.setattr("ttm.sim.tasks.task.Task.max_ticks", 40)
    monkeypatch.setattr("ttm.sim.actors.PolicyRunner", partial(PolicyRunner, engine="torch"))
    notebook = json.loads((ROOT / "training" / "first_steps.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= {"DEMONSTRATIONS": 2, "MINUTES": 0.01, "EPISODES": 1}
    pyplot.close("all")
    printed = capsys.readouterr().out
    assert "right choice after" in printed
    assert "erase: " in printed
