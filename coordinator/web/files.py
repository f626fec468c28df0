"""Shell. The static files of the page. They need no authentication."""

from __future__ import annotations

import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).resolve().parents[1] / "page"
INDEX = "index.html"
# Browsers refuse a module that is served as another type.
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_TEXTS = ("text/", "image/svg")
# What each view has to load, beside the frame: what its names begin with, and what that imports.
VIEWS: dict[str, tuple[str, ...]] = {
    "runs": ("runs.js", "runs.css"),
    "run": ("run.js", "run/", "ranks/ranks.css"),
    "job": ("job.js", "runs.css"),
    "host": ("host.js", "runs.css"),
    "notifications": ("notifications.js", "runs.css"),
    "nowhere": (),
}
# Modules that a view loads later, if it is asked for what they show.
_OF_A_RUN = ("action_dialog", "join", "log_lines", "no_run", "report")
ON_DEMAND = frozenset({"ranks/details.js", *(f"run/{name}.js" for name in _OF_A_RUN)})
_IMPORT = re.compile(r' from "(\.[^"]+)"')
_RUN, _HOST = re.compile("/runs/[^/]+/?"), re.compile("/hosts/[^/]+/?")


class File(Struct, frozen=True):
    """One file."""

    content: bytes
    content_type: str
    tag: str


class Files:
    """All files, read once: no text of a caller becomes a path of the file system."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        index = contents.pop(INDEX, b"").decode()
        self._files = {f"/{name}": _file(name, content) for name, content in contents.items()}
        self._pages = {
            view: _file(INDEX, _loading(index, needed(view, contents)).encode()) for view in VIEWS
        }

    def by_path(self) -> Iterable[tuple[str, File]]:
        """Return each path with its file, but those of pages."""
        return self._files.items()

    def page(self, path: str, *, is_job: bool) -> tuple[File, int]:
        """Return the page at a path, which loads what its view needs, and the status of it."""
        view = "nowhere"
        if path == "/" or _RUN.fullmatch(path):
            view = "runs" if path == "/" else "job" if is_job else "run"
        elif path == "/notifications":
            view = "notifications"
        elif _HOST.fullmatch(path):
            view = "host"
        return self._pages[view], 404 if view == "nowhere" else 200


def needed(view: str, contents: Mapping[str, bytes]) -> list[str]:
    """Return the names of the styles and modules that a view loads at first."""
    beginnings = ("main.js", *VIEWS[view])
    names = [n for n in contents if n.startswith(beginnings) and n not in ON_DEMAND]
    for name in names:  # it grows
        for other in _IMPORT.findall(contents[name].decode()):
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(name), other))
            if imported not in names:
                names.append(imported)
    return sorted(names)


def _loading(index: str, names: Iterable[str]) -> str:
    """Have the page load all that its view needs at once, styles first: nothing is painted before.

    So browsers do not discover modules one import after the other.
    """
    kinds = {".css": "stylesheet", ".js": "modulepreload"}
    links = [f'<link rel="{kinds[Path(name).suffix]}" href="/{name}">\n' for name in names]
    return index.replace("</head>", f"{''.join(sorted(links, reverse=True))}</head>")


def _file(name: str, content: bytes) -> File:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    kind = kind or "application/octet-stream"
    charset = "; charset=utf-8" if kind.startswith(_TEXTS) else ""
    return File(content, kind + charset, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
