"""The kitchen, once for all files: each of its scenes takes a second to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ttm.sim import KitchenEnv


@pytest.fixture(scope="session")
def kitchen() -> Iterator[KitchenEnv]:
    """An environment in which other tests have run episodes; begin one before you look."""
    with closing(KitchenEnv()) as made:
        yield made


@pytest.fixture
def env(kitchen: KitchenEnv) -> KitchenEnv:
    return kitchen


@pytest.fixture
def blind(kitchen: KitchenEnv, monkeypatch: pytest.MonkeyPatch) -> KitchenEnv:
    """The kitchen without observations, for what looks at the simulator's state alone."""
    monkeypatch.setattr(kitchen, "observe", dict)
    return kitchen
