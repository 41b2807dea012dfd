"""The page in a real browser, where Playwright and Chromium are installed: keys, touch, and recording."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not here")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 120_000.0
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True,
}  # fmt: skip
GAMEPAD = """() => {
  const buttons = Array.from({length: 16}, () => ({pressed: false, value: 0}));
  navigator.getGamepads = () => [null, {axes: [0.05, -1, 0.5, 0], buttons}];
}"""
"""The left stick is forward and a little off its middle, the right one half to the right."""
IN_SIGHT = """selector => [...document.querySelectorAll(selector)].map(shown => {
  const {left, right, top, bottom} = shown.getBoundingClientRect();
  const inside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
  return inside && shown.contains(document.elementFromPoint((left + right) / 2, (top + bottom) / 2));
})"""
"""Whether each of these is in the window as a whole, and a finger at its middle meets nothing else."""
LARGE_AND_RED = """() => [...document.querySelectorAll("*")].filter(shown => {
  const {width, height} = shown.getBoundingClientRect();
  const style = getComputedStyle(shown);
  return width > 30 && height > 30 && [style.backgroundColor, style.borderTopColor].some(color => {
    const [red, green, blue, alpha] = color.match(/[0-9.]+/g).map(Number);
    return alpha !== 0 && red > 150 && green < 130 && blue < 130;
  });
}).map(shown => shown.id)"""
LABELS = """() => [...document.querySelectorAll(".pad")].map(pad => {
  const box = pad.getBoundingClientRect();
  const all = [...pad.children].map(child => child.getBoundingClientRect());
  const within = a =>
    a.left >= box.left && a.right <= box.right && a.top >= box.top && a.bottom <= box.bottom;
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  return {
    words: [...pad.querySelectorAll("span")].map(label => label.innerText.replace(/\\s+/g, " ")),
    inside: all.every(within),
    apart: all.every((a, i) => all.slice(i + 1).every(b => apart(a, b))),
    tooltip: pad.title,
  };
})"""
"""What stands on each stick and lever, whether it lies within, and whether it covers words or knob."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not here")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, served: Any) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Open the page in a window of that shape. Errors of its script fail the test."""
    windows, errors = [], []

    def opening(shape: dict[str, Any]) -> Any:
        windows.append(browser.new_context(**shape))
        page = windows[-1].new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(served.address)
        return page

    yield opening
    for window in windows:
        window.close()
    assert errors == []


def wait_for_axes(served: Any, wanted: dict[str, float]) -> None:
    """Wait until the page's controls are where they are wanted, give or take a tenth."""
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while True:
        held = served.lock.held(time.monotonic())
        if held and held[0].keys() == wanted.keys():
            found = held[0]
            if all(abs(found[name] - value) < 0.1 for name, value in wanted.items()):
                return
        assert time.monotonic() < deadline_s, held
        time.sleep(0.01)


def test_keys_and_a_gamepad_drive_and_escape_lets_go(
    served: Any, open_page: Callable[[dict[str, Any]], Any]
) -> None:
    page = open_page(DESKTOP)
    page.click("#wheel")
    page.wait_for_selector("#wheel.driving")
    page.keyboard.down("KeyW")
    wait_for_axes(served, {"base.0": 1.0})
    page.keyboard.down("KeyD")
    wait_for_axes(served, {"base.0": 1.0, "base.1": -1.0})
    page.keyboard.up("KeyW")
    page.keyboard.up("KeyD")
    wait_for_axes(served, {})
    page.keyboard.press("Space")  # the gripper stays where it was sent
    wait_for_axes(served, {"gripper.0": 1.0})
    page.evaluate(GAMEPAD)
    wait_for_axes(served, {"gripper.0": 1.0, "base.0": 1.0, "arm_translation.1": -0.5})
    page.keyboard.press("Escape")
    page.wait_for_selector("#wheel:not(.driving)")
    assert served.lock.held(time.monotonic()) is None
    page.click("#wheel")
    page.wait_for_selector("#wheel.driving")
    others = {"base.0": 1.0, "arm_translation.1": -0.5}
    wait_for_axes(
        served, others
    )  # who takes over does not open the gripper that somebody has closed
    page.keyboard.press("Space")
    wait_for_axes(served, {"gripper.0": -1.0, **others})
    page.evaluate("() => { release(); take({kind: 'state', ...state}); }")  # one was on its way
    page.wait_for_selector("#wheel:not(.driving)")
    assert page.is_hidden("#toast"), "who lets go is not told that the page was silent"


def test_touch_drives_on_a_phone_and_nothing_is_cut_off(
    served: Any, open_page: Callable[[dict[str, Any]], Any]
) -> None:
    page = open_page(PHONE)
    page.tap("#wheel")
    page.wait_for_selector("#wheel.driving")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    stick = page.locator("[data-control='base.0']")
    stick.scroll_into_view_if_needed()
    box = stick.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *points: tuple[float, float]) -> None:
        touch.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": at[0], "y": at[1]} for at in points]},
        )

    send("touchStart", (x, y))
    send("touchMove", (x, y - box["height"]))
    wait_for_axes(served, {"base.0": 1.0})
    send("touchEnd")
    wait_for_axes(served, {})


@pytest.mark.parametrize("shape", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_stop_is_always_in_sight_and_the_only_large_red_thing(
    served: Any,
    record: Callable[[int], Path],
    open_page: Callable[[dict[str, Any]], Any],
    shape: dict[str, Any],
) -> None:
    for number in range(9):
        record(number)
    page = open_page(shape)

    def check() -> None:
        assert page.evaluate(IN_SIGHT, "#stop") == [True]
        assert page.evaluate(LARGE_AND_RED) == ["stop"]
        assert all(page.evaluate(IN_SIGHT, "#robot, #phase:not([hidden])")), "the header is cut off"

    page.wait_for_selector("#episodes li:nth-child(9) .thumb")
    check()
    page.click("#wheel")
    page.wait_for_selector("#wheel.driving")
    served.robot.recorder = {"state": "recording", "instruction": "wave", "ticks": 12}
    page.wait_for_selector("#phase.live")
    check()
    page.click("#episodes li:last-child [title='change the instruction']")  # scrolls to the end
    assert page.evaluate("scrollY") > 0
    check()
    page.fill("#episodes li:last-child input", "nod")
    page.keyboard.press("Enter")
    page.wait_for_selector("#episodes b:text-is('nod')")
    page.click("#episodes li:last-child .thumb")
    page.wait_for_selector("#player")
    assert page.evaluate("$('film').controlsList.contains('nofullscreen')")
    check()
    page.click("#stop")
    page.wait_for_selector("#stop[aria-pressed='true']")
    assert ("e_stop",) in served.robot.done
    check()
    page.keyboard.press("Escape")
    page.wait_for_selector("#player", state="hidden")
    assert page.is_disabled("#wheel")
    page.click("#rearm")
    page.wait_for_selector("#stop[aria-pressed='false']")
    assert served.robot.done[-1] == ("rearm",)
    check()


def test_stop_is_sent_when_a_finger_comes_down_and_again_after_a_broken_connection(
    served: Any, open_page: Callable[[dict[str, Any]], Any]
) -> None:
    page = open_page(DESKTOP)
    page.click("#wheel")
    page.wait_for_selector("#wheel.driving")
    page.hover("#stop")
    page.mouse.down()  # and nothing more
    page.wait_for_selector("#stop[aria-pressed='true']")
    assert served.lock.held(time.monotonic()) is None
    assert page.is_hidden("#toast"), "who stops is not told that the page was silent"
    page.mouse.up()
    page.click("#rearm")
    page.wait_for_selector("#stop[aria-pressed='false']")
    page.context.set_offline(True)
    page.evaluate("socket.close()")
    page.wait_for_selector("#link.bad")
    served.robot.done.clear()
    page.click("#stop")
    page.wait_for_selector("#toast:has-text('own emergency stop')")
    assert served.robot.done == []
    page.context.set_offline(False)
    page.wait_for_selector("#stop[aria-pressed='true']")


def test_a_phone_shows_picture_controls_and_their_directions_in_one_view(
    served: Any, open_page: Callable[[dict[str, Any]], Any]
) -> None:
    page = open_page(PHONE)
    page.tap("#wheel")
    page.wait_for_selector("#wheel.driving")
    for selector in ("#stop", "#stage", ".pad", ".part button", "#wheel", "#start"):
        seen = page.evaluate(IN_SIGHT, selector)
        assert seen, selector
        assert all(seen), (selector, seen)
    pads = page.evaluate(LABELS)
    assert [pad["words"] for pad in pads] == [
        ["forward", "back", "turn left", "turn right"],
        ["forward", "back", "left", "right"],
        ["up", "down"],
        ["pitch up", "pitch down", "turn left", "turn right"],
        ["roll right", "roll left"],
    ]
    for pad in pads:
        assert (pad["inside"], pad["apart"], pad["tooltip"]) == (True, True, "")


def test_recording_and_the_list_of_episodes(
    served: Any, record: Callable[[int], Path], open_page: Callable[[dict[str, Any]], Any]
) -> None:
    record(0)
    served.robot.known = ["nod"]
    page = open_page(DESKTOP)
    for text in ("nod", "wave"):  # of the simulator, and of the recorded episode
        page.wait_for_selector(f"#known option[value='{text}']", state="attached")
    served.robot.recorder = {"state": "ready", "instruction": "wave", "ticks": 0}
    page.click("#start")
    served.robot.recorder = {"state": "recording", "instruction": "wave", "ticks": 12}
    page.wait_for_selector("#phase.live")
    page.click("#failure")
    page.click("#episodes .yes")
    page.wait_for_selector("#episodes .yes[aria-pressed='true']")
    page.click("#episodes [title='delete this episode']")
    page.wait_for_selector("#episodes .empty")
    page.reload()
    page.click("#undo")  # the deletion
    page.wait_for_selector("#episodes .thumb")
    page.click("#undo")  # what was judged before
    page.wait_for_selector("#episodes .yes[aria-pressed='false']")
    assert served.robot.done == [("start",), ("stop", False)]
