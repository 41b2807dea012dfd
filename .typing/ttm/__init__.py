"""Robot policies with memory: `ttm.policy`, `ttm.datasets`, `ttm.sim` and `ttm.training`."""

from importlib.metadata import version

__version__: str


def __getattr__(name: str) -> str:
    """Return `__version__`, that of the installed distribution."""
    if name == "__version__":
        return version("ttm-policy-stack")
    raise AttributeError(f"module 'ttm' has no attribute {name!r}")
