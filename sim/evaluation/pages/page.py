"""Templates of report pages: HTML files that hold all they need, so that they can be sent by mail."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2


def render_page(template: str, **values: Any) -> str:
    """Return the page that one of the templates beside this module makes of `values`."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda rate: f"{100 * rate:.0f} %"
    return environment.get_template(template).render(**values)


def _template(name: str) -> str:
    return resources.files("ttm.sim.evaluation.pages").joinpath(name).read_text("utf-8")
