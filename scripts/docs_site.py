"""Hooks of MkDocs: pages above `docs/` are part of the site; links fit it and the repository."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ABOVE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
_CODE = re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages above `docs/`; leave the decisions, which have an index, out of the menu."""
    for name in ABOVE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for file in files.documentation_pages():
        if file.src_uri.startswith("adr/0"):
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from their place in the repository; add files of it that are linked to."""
    source = page.file.src_uri
    folder = "" if source in ABOVE else dirname(f"docs/{source}")

    def link(match: re.Match[str]) -> str:
        path = normpath(f"{folder}/{match[1]}" if folder else match[1])
        if path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif (
            path not in ABOVE and (ROOT / path).is_file() and files.get_file_from_path(path) is None
        ):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        return "../" * source.count("/") + path

    return "\n".join(
        _CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in _LINK.sub(link, markdown).split("\n")
    )
