"""Errors that users can fix. The command line prints their message and exits with code 2."""

from __future__ import annotations


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
