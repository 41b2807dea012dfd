"""Errors that a user can mend. The command line prints their one line and exits with 2."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: the message is one line that names the value, the rule and the fix."""


class ObservationError(UserError):
    """An observation that must not enter the memory; the tick had no effect."""


class MissingObservation(ObservationError):
    """A camera or a proprioception vector that the policy needs is not there."""


class MalformedObservation(ObservationError):
    """A value of another shape, type or colour depth than the policy was trained with, or not finite."""


class StaleObservation(ObservationError):
    """The observation was captured longer ago than the runner accepts."""
