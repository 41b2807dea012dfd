"""Charts of rates as SVG."""

from __future__ import annotations

import re
import warnings

import pytest

from ttm.sim.pages import LONGEST_NAME, Point, draw_rates
from ttm.sim.results import Rate


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_several_gaps_give_a_curve_for_each_series() -> None:
    points = [Point(name, gap, Rate(3, 4)) for name in ("live", "erase") for gap in (5, 15, 45)]
    svg = draw_rates({"right choice": points, "success": points[:3]})
    shown = texts(svg)
    assert {"right choice", "success", "live", "erase", "gap (ticks)"} <= set(shown)
    assert shown.count("45") == 2
    assert svg.startswith("<svg")
    assert "metadata" not in svg
    assert draw_rates({"right choice": points, "success": points[:3]}) == svg


def test_the_rates_stand_in_words_as_well() -> None:
    svg = draw_rates(
        {"a < b": [Point("live", 5, Rate(3, 4))], "success": [Point("live", None, Rate(1, 8))]}
    )
    (words,) = re.findall(r"<desc>(.*?)</desc>", svg, flags=re.DOTALL)
    assert words.splitlines() == ["a &lt; b, live at gap 5: 75 % of 4", "success, live: 12 % of 8"]


def test_all_panels_show_the_same_gaps() -> None:
    """A probe that was evaluated at one of the gaps stands below the same place as in the others."""
    everywhere = [Point("live", gap, Rate(3, 4)) for gap in (3, 14, 47)]
    shown = texts(draw_rates({"live": everywhere, "erase": [Point("live", 14, Rate(1, 4))]}))
    assert [shown.count(gap) for gap in ("3", "14", "47")] == [2, 2, 2]


def test_many_panels_stand_in_rows() -> None:
    """Eight panels in one row are too small to read on a page."""
    points = [Point("live", gap, Rate(3, 4)) for gap in (5, 15)]

    def size(panels: int) -> tuple[float, float]:
        svg = draw_rates({f"task {number}": points for number in range(panels)})
        width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', svg[: svg.index(">")])
        return float(width), float(height)

    assert size(5)[0] == size(3)[0]
    assert size(5)[1] > 1.8 * size(3)[1]
    assert size(9)[0] == size(3)[0]


@pytest.mark.parametrize("gap", [None, 5])
def test_without_several_gaps_the_series_stand_below_each_other(gap: int | None) -> None:
    points = [Point(name, gap, Rate(count, 4)) for name, count in (("live", 4), ("erase", 0))]
    shown = texts(draw_rates({"success": points}))
    assert {"live", "erase"} <= set(shown)
    assert "gap (ticks)" not in shown


def test_long_names_leave_room_for_the_chart() -> None:
    name = "/a/very/long/path" * 10 + "/the_end"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = texts(draw_rates({"success": [Point(name, None, Rate(1, 2))]}))
    (label,) = [text for text in shown if text.endswith("/the_end")]
    assert len(label) == LONGEST_NAME
