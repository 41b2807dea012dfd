"""What MkDocs leaves to a project: pages taken from where they stand, and pages of what they link to.

A link of a page to a source file or a folder leads to that file with its colours, or to a list of
the folder's files. The reference of the commands is what `--help` prints.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from textwrap import fill
from typing import Any
from urllib.parse import unquote

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ttm.training import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "policy/**/*.md", "datasets/**/*.md", "sim/**/*.md", "training/**/*.md", "ros2_ws/README.md",
         "ros2_ws/docs/*.md")  # fmt: skip
PICTURES = (".png", ".jpg", ".webp", ".svg")
NOTEBOOK = "training/first_steps.ipynb"
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)")
LINK_OF_A_SITE = re.compile(r'<(\w+)[^>]*? (?:src|href)="([^"]+)"')
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
PACKAGES = ("policy", "datasets", "sim")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let a fence of Mermaid become a picture."""
    fence = {"name": "mermaid", "class": "mermaid", "format": draw}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, their pictures, what they link to, and the reference."""
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    linked = {path for page in pages for path in _links(page)} | {ROOT / NOTEBOOK}
    linked |= {path for folder in linked if folder.is_dir() for path in _files(folder)}
    for path in sorted(pages | {path for path in linked if path.suffix in PICTURES}):
        name = str(path.relative_to(ROOT))
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    sources = {path for path in linked if path.suffix not in (".md", *PICTURES)}
    made = {_page_of(path): _shown(path) for path in sorted(sources)}
    made["reference/commands.md"] = _commands()
    for package in PACKAGES:
        made[f"reference/{package}.md"] = _reference(f"ttm.{package}")
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to the pages of source files and folders."""
    folder = (ROOT / page.file.src_uri).parent

    def led(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[1]))
        shown = path.exists() and files.get_file_from_path(_page_of(path)) is not None
        return os.path.relpath(ROOT / _page_of(path), folder) if shown else found[1]

    return LINK.sub(led, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise `PluginError` if a page of the site loads something from the network, or leads nowhere."""
    pages = {
        page: page.read_text("utf-8") for page in Path(config.site_dir).resolve().rglob("*.html")
    }
    for page, text in pages.items():
        for tag, link in LINK_OF_A_SITE.findall(text):
            target, _, anchor = unquote(link).partition("#")
            if link.startswith(("http", "mailto:", "data:")):
                whole = tag == "a"
            else:
                there = (page.parent / target).resolve() if target else page
                whole = (
                    there.exists()
                    and (tag != "img" or there.suffix in PICTURES)
                    and (not anchor or there not in pages or f'id="{anchor}"' in pages[there])
                )
            if not whole and page.name != "404.html":
                raise PluginError(f"{page}: <{tag}> of {link}")


def draw(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Return a diagram as a picture within the page; `md` and the rest are of pymdownx.superfences."""
    picture = re.sub(r"<\?xml.*?\?>", "", mermaidx.render(source).svg())
    return f'<div class="{css_class}">{picture}</div>'


def _links(page: Path) -> Iterator[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in LINK.findall(text):
        path = Path(os.path.normpath(page.parent / target))
        if path.exists():
            yield path


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _page_of(path: Path) -> str:
    name = str(path.relative_to(ROOT))
    return f"{name}/index.md" if path.is_dir() else f"{name}.md"


def _shown(path: Path) -> str:
    """Return the page of a source file, a notebook or a folder."""
    name = path.relative_to(ROOT)
    if path.is_dir():
        names = [file.relative_to(path) for file in _files(path)]
        lines = (f"- [{n}]({n}{'' if n.suffix in (*PICTURES, '.md') else '.md'})" for n in names)
        return f"{UNSEARCHED}# {name}\n\n" + "\n".join(lines)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(
            source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells
        )
    return f"{UNSEARCHED}# {name}\n\n``````{path.suffix[1:]}\n{text}\n``````\n"


def _reference(package: str) -> str:
    """Return what explains each name in the front door of a package."""
    names = ROOT / ".typing" / package.replace(".", "/") / "__init__.pyi"
    found = re.findall(r"^from (\.\S+) import (\w+)", names.read_text(encoding="utf-8"), re.M)
    parts = [
        f"::: {package}{module}.{name}" for module, name in sorted(found, key=lambda of: of[1])
    ]
    return "\n\n".join([f"# {package}", *parts])


def _commands() -> str:
    """Return what `ttm … --help` prints, for every command."""
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    parts = ["# Commands"]
    for command in ("", *cli.COMMANDS):
        printed = io.StringIO()
        with redirect_stdout(printed), suppress(SystemExit):
            cli.parse([*command.split(), "--help"])
        lines = [
            fill(line, 80) if line[:1].strip() else line for line in printed.getvalue().splitlines()
        ]
        parts.append("\n".join([f"## ttm {command}", "", "``````text", *lines, "``````"]))
    return "\n\n".join(parts)
