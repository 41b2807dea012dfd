"""Tables and progress bars on the console."""

from __future__ import annotations

import io

from rich.console import Console

from ttm.datasets.console import TitledTable, track

HEADING = "A heading that is longer than its table [in brackets]"


def printed(width: int) -> list[str]:
    table = TitledTable(HEADING)
    table.add_column("a")
    table.add_row("1")
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_heading_does_not_wrap_at_the_width_of_its_table() -> None:
    assert printed(width=80)[0].rstrip() == HEADING


def test_a_heading_wraps_at_the_width_of_the_console() -> None:
    lines = printed(width=30)
    assert " ".join(" ".join(lines[:2]).split()) == HEADING
    assert all(len(line) <= 30 for line in lines)


def test_a_log_gets_a_line_every_so_often(capsys, monkeypatch) -> None:
    """Here every second item, as each takes 20 s."""
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr("ttm.datasets.console.time.monotonic", lambda: next(now))
    assert list(track("abcde", "pick")) == list("abcde")
    assert capsys.readouterr() == (
        "",
        "pick: 2 of 5 after 0:00:40, 0:01:00 left\npick: 4 of 5 after 0:01:20, 0:00:20 left\n",
    )
    assert list(track((each for each in "ab"), "pick")) == ["a", "b"]
    assert capsys.readouterr().err == "pick: 2 done after 0:00:40\n"


def test_track_yields_every_item_and_shows_nothing_without_a_terminal(capsys) -> None:
    assert list(track(["a", "b"], "reading")) == ["a", "b"]
    assert list(track(iter("abc"), "reading", total=3)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
