"""The option of commands whose episodes a cluster can run."""

from __future__ import annotations

from tyro.conf import arg

RAY = arg(
    metavar="ADDRESS",
    help="Let a Ray cluster run the episodes: HOST:PORT or ray://HOST:PORT, or auto on one of its "
    "machines, all of which need this installation with its extra [cluster]. The result does not depend "
    "on it.",
)
"""`--ray`."""
