"""Help texts of options: their lines are joined, wherever the docstring of a field breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import tyro
from tyro.conf import OmitArgPrefixes, arg

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
