"""The extras of this distribution: which one brings a package, and whether one is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ttm.policy.errors import UserError

NAME = "ttm-policy-stack"
"""The name of the distribution."""


def extra_with(package: str) -> str | None:
    """Return the name of the extra that brings a package, named as it is imported; None if none does.

    Without one of that name a longer one counts, as websocket-client for websocket.
    """
    wanted = canonicalize_name(package)
    names = {canonicalize_name(need.name): extra for extra, need in reversed([*_needs()])}
    longer = (extra for name, extra in names.items() if name.startswith(f"{wanted}-"))
    return names.get(wanted) or next(longer, None)


def require_extra(extra: str, what: str) -> None:
    """Raise `UserError` if a package of an extra is missing, or has a version that the extra rules out.

    what: needs the extra, in words for the message.
    """
    for name, need in _needs():
        if name != extra:
            continue
        try:
            found = version(need.name)
            if need.specifier.contains(found, prereleases=True):
                continue
        except PackageNotFoundError:
            found = "none"
        wanted = f"{need.name}{need.specifier}, and {found} is installed"
        raise UserError(f"{what} needs {wanted}; run: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return what a user runs to install an extra."""
    return f'pip install "{NAME}[{extra}]"'


def _needs() -> Iterator[tuple[str, Requirement]]:
    """Yield the name of each extra with each package that it alone asks for."""
    for text in requires(NAME) or ():
        if found := re.search(r"""extra == ["'](\w+)""", text):
            yield found[1], Requirement(text)
