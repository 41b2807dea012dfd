"""Help texts of options, whose lines are joined, and how commands show and write their figures."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, arg

from ttm.policy import UserError
from ttm.training.console import compact_table, write_figures
from ttm.training.help_texts import join_help_lines


@dataclass(frozen=True)
class Part:
    size: int = 1
    """Size of
    (all) parts."""


@dataclass(frozen=True)
class Base:
    length: int = 1
    """Inherited
    (text)."""


@dataclass(frozen=True)
class Options(Base):
    name: str = "a"
    """Name, which is
    --short and (very)
    clear."""
    given: Annotated[int, arg(help="A text of its own.")] = 2
    """Another text that
    nobody reads."""
    inner: OmitArgPrefixes[Part] = field(default_factory=Part)


def test_lines_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    assert join_help_lines(Options) is Options
    with pytest.raises(SystemExit):
        tyro.cli(Options, args=["--help"], console_outputs=True)
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert any("Name, which is --short and (very) clear." in line for line in lines)
    assert any("A text of its own." in line for line in lines)
    assert any("Size of (all) parts." in line for line in lines)
    assert any("Inherited (text)." in line for line in lines)
    assert tyro.cli(Options, args=["--name", "b"]) == Options(name="b")


def test_figures_go_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "figures.json"
    write_figures(Console(), path, "{}")
    assert path.read_text() == "{}"
    assert "figures.json" in capsys.readouterr().out
    write_figures(Console(), None, "{}")
    assert capsys.readouterr().out == ""


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*figures.json .*--json"):
        write_figures(Console(), tmp_path / "file" / "figures.json", "{}")


def test_a_title_stands_in_one_line_above_a_narrow_table() -> None:
    title = "Copying after T ticks, from 6,200 unique sequences, repeated without end"
    assert len(title) > 60
    table = compact_table(title, ("core", "s"))
    table.add_row("ttm", "12")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[0] == title
    assert max(len(line) for line in lines[1:]) < 20
