"""What a training must have in common with the state that it resumes, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.training.cloning.options import TrainOptions

LENGTH = ("steps", "minutes")
"""Options on which the course of the learning rate depends."""
ADJUSTABLE = ("learning-rate", "optimizer.gradient-limit", "precision")
"""Options that `--resume-anyway` may change, so that a training that diverged can go on."""
MAY_CHANGE = frozenset(
    {
        "data",
        "out",
        *LENGTH,
        "resume",
        "resume-anyway",
        "overwrite",
        "dry-run",
        "early-stopping",
        "save-every",
        "keep",
        "logger",
        "threads",
        "workers",
        "device",
        "devices",
        "nodes",
        "accumulate",
        "validations",
        "core",
        "core-options",
        "head-options",
    }
)
"""Options that are not compared when a training is resumed, or not here: the content of the episodes
is compared in place of `data`, the last three are with the checkpoint's network."""


@dataclass(frozen=True)
class Difference:
    """Something that is not as it was when the training was saved."""

    name: str
    then: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} ({self.then} then, {self.now} now)"


def differences(
    then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> list[Difference]:
    """Return where two mappings differ; what `then` lacks was not saved yet, and is not compared."""
    return [
        Difference(f"{prefix}{name}", then[name], value)
        for name, value in now.items()
        if name in then and then[name] != value
    ]


def comparable(options: TrainOptions) -> dict[str, Any]:
    """Return the options that a resumed training must share, as plain data for JSON."""
    return {name: value for name, value in options.plain().items() if name not in MAY_CHANGE}


def length(options: TrainOptions) -> dict[str, Any]:
    """Return the options that give the length, as plain data for JSON."""
    return {name: options.plain()[name] for name in LENGTH}


def require_same_options(options: TrainOptions, header: Mapping[str, Any]) -> list[Difference]:
    """Raise `UserError` if `options` are not those of the training that was saved with `header`.

    Returns what differs in length or in `ADJUSTABLE`, which --resume-anyway allows.
    """
    # A training that was saved before an option existed has its default.
    defaults = comparable(TrainOptions(data=(), out=Path()))
    found = differences({**defaults, **header["options"]}, comparable(options), "--")
    adjusted = [each for each in found if each.name.removeprefix("--") in ADJUSTABLE]
    found = [each for each in found if each not in adjusted]
    if found:
        raise UserError(
            f"this is another training than the one to resume: {_listed(found)}; give the same options "
            "as before, or start another training with another --out"
        )
    longer = differences(header.get("length", {}), length(options), "--")
    _require_allowed(options, longer, "the learning rate follows the length of the training")
    _require_allowed(options, adjusted, "these options change every step")
    return [*longer, *adjusted]


def require_same_data(
    options: TrainOptions, header: Mapping[str, Any], data: Mapping[str, Any]
) -> list[Difference]:
    """Raise `UserError` if the episodes are not those of the training that was saved with `header`.

    data: the fingerprint of the episodes. Returns what differs, which --resume-anyway allows.
    """
    found = differences(header.get("data", {}), data)
    _require_allowed(options, found, "the episodes are not those that it was trained on")
    return found


def _require_allowed(options: TrainOptions, found: Sequence[Difference], why: str) -> None:
    if found and not options.resume_anyway:
        raise UserError(
            f"cannot resume exactly: {_listed(found)}; {why}. Give what was given before, or go on with "
            "--resume --resume-anyway"
        )


def _listed(found: Sequence[Difference]) -> str:
    return ", ".join(map(str, found))
