"""Reads what a contract says about when an input may be trusted.

These keys are optional: `frame_id`, `publishers`, `repeat`, `min_contrast`, and `max_skew_s` of the
whole contract. A mistake raises `UserError` that names the entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ttm.policy.errors import UserError
from ttm_policy.contract.entry_rules import boolean, number

INPUT_KEYS = frozenset({"frame_id", "publishers"})
"""The optional keys of every observation."""
IMAGE_KEYS = INPUT_KEYS | {"resize", "repeat", "min_contrast"}
"""The optional keys of a camera."""
MOST_CONTRAST = 127.5
"""The standard deviation of grey values of which one half is 0 and the other half 255."""


def input_rules(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `frame_id` and `publishers` of one observation."""
    frame_id, publishers = entry.get("frame_id", ""), entry.get("publishers", 1)
    if not isinstance(frame_id, str):
        raise UserError(
            f"{where} has frame_id {frame_id!r}; give the header's frame as text, such as base_link"
        )
    if not isinstance(publishers, int) or isinstance(publishers, bool) or publishers < 1:
        raise UserError(
            f"{where} has publishers {publishers!r}; give the number of nodes that publish the topic, "
            "1 or more"
        )
    return {"frame_id": frame_id, "publishers": publishers}


def image_rules(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the optional keys of a camera."""
    contrast = number(entry.get("min_contrast", 0.0), f"{where} has min_contrast")
    if not 0 <= contrast < MOST_CONTRAST:
        raise UserError(
            f"{where} has min_contrast {contrast:g}; give a standard deviation of grey values from 0 "
            f"to below {MOST_CONTRAST}"
        )
    return {
        **input_rules(entry, where),
        "resize": boolean(entry, "resize", where),
        "repeat": boolean(entry, "repeat", where),
        "min_contrast": contrast,
    }


def max_skew_s(data: Mapping[str, Any], file: str) -> float:
    """Return the longest accepted time between the inputs of a tick; infinity if there is none."""
    skew_s = number(data.get("max_skew_s", math.inf), f"{file} has max_skew_s")
    if not skew_s > 0:
        raise UserError(f"{file} has max_skew_s {skew_s:g}; give seconds above 0, or leave it out")
    return skew_s
