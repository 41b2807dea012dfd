"""Errors that users can fix. The command line prints their message and exits with code 2."""

from __future__ import annotations

MOST_PRINTED = 4000
"""Characters of one message on a terminal."""


class UserError(ValueError):
    """Invalid input. The message is one line that names the value, the rule and the fix."""


class ObservationError(UserError):
    """An observation that must not enter the memory. The tick had no effect."""


class MissingObservation(ObservationError):
    """A camera or a proprioception vector that the policy needs is missing."""


class MalformedObservation(ObservationError):
    """A value is not finite, or differs in shape or type from those of training."""


class StaleObservation(ObservationError):
    """The observation is older than the runner accepts, or its stamp is ahead of the clock."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, to be quoted in the one line of a `UserError`."""
    return str(error).strip().split("\n")[0]


def printable(text: object, most: int = MOST_PRINTED) -> str:
    """Return a text in one line of at most `most` characters, which no terminal takes for a command.

    Characters that are not printed, such as ESC, are written as Python does.
    """
    line = " ".join(str(text)[: 8 * most].encode("utf-8", "backslashreplace").decode().split())
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
    return shown if len(shown) <= most and len(str(text)) <= 8 * most else f"{shown[: most - 1]}…"
