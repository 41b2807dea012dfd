"""The option of commands whose episodes a cluster can run."""

from __future__ import annotations

from tyro.conf import arg

RAY = arg(
    metavar="ADDRESS",
    help="Let the Ray cluster that this machine is part of run the episodes: auto, or HOST:PORT as ray "
    "start prints it. The result does not depend on it.",
)
"""`--ray`."""
