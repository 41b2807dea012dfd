"""The rule that decides whether an observation is recent enough to act on."""

from __future__ import annotations

from ttm.policy.errors import StaleObservation


def require_fresh(age_s: float, max_age_s: float) -> None:
    """Raise `StaleObservation` unless the age of an observation lies within `max_age_s` of zero.

    The age is the time now minus the time of capture, in seconds. A negative age means that the stamp
    is ahead of the clock: the two clocks differ, or one was set back, so the true age is unknown. Such
    an observation is refused as an old one is; `max_age_s` leaves room for small differences between
    clocks. NaN is refused.
    """
    if not abs(age_s) <= max_age_s:
        problem = "ahead of the clock" if age_s < 0 else "old"
        raise StaleObservation(
            f"the observation is {abs(age_s):.3f} s {problem}; at most {max_age_s} s is accepted: "
            "check the sensors and that all clocks agree, or raise max_age_s"
        )
