"""Lets one of several sources drive at a time. It uses no ROS, so that tests can set the time."""

from __future__ import annotations

from collections.abc import Sequence

from ttm_policy.teleop.source import Source, Vector


class Drivers:
    """Chooses whose wish counts.

    Whoever touches the controls first drives until he lets go of them. Who touches others meanwhile is
    refused, and of two who begin together both are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._driver: Source | None = None
        self.problem = ""
        """Why somebody who touches the controls does not drive; empty if nobody is refused."""

    @property
    def driver(self) -> str:
        """The name of the source that drives, or an empty text."""
        return "" if self._driver is None else self._driver.name

    def wish(self, now_s: float) -> Vector | None:
        """Return the action (A,) that the driver wants, or None if the robot is to stand still."""
        wishes = [(source, source.wish(now_s)) for source in self._sources]
        touched = [(source, wish) for source, wish in wishes if wish is not None]
        alive = {
            source.name: wish.values
            for source, wish in touched
            if now_s - wish.stamp_s <= source.timeout_s
        }
        silent = [source for source, _ in touched if source.name not in alive]
        refused = [source.problem for source in self._sources if source.problem]
        self.problem = _silence(silent[0]) if silent else next(iter(refused), "")
        if self._driver is not None and self._driver.name not in alive:
            self._driver = None
            return None
        if self._driver is None and len(alive) == 1:
            self._driver = next(source for source in self._sources if source.name in alive)
        if len(alive) > 1:
            self.problem = self._refusal(list(alive))
        return None if self._driver is None else alive[self._driver.name]

    @property
    def unheard(self) -> str:
        """What the controls name and was never heard, or an empty text."""
        return "; ".join(source.unheard for source in self._sources if source.unheard)

    def give_back(self) -> bool:
        """Return whether a person has asked, since the last call, that the policy drives again."""
        asked = [source.gives_back() for source in self._sources]
        return any(asked)

    def close(self) -> None:
        """Let go of all devices."""
        for source in self._sources:
            source.close()

    def _refusal(self, names: list[str]) -> str:
        if self._driver is None:
            return f"{' and '.join(names)} want to drive at once; let go of one of them"
        others = ", ".join(name for name in names if name != self.driver)
        return f"{others} is refused while {self.driver} drives; let go of one of them"


def _silence(source: Source) -> str:
    return f"{source.name} has been silent for more than {source.timeout_s:g} s; check that it still sends"
