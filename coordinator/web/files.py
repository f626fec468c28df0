"""Shell. The static files of the page. They need no authentication."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).resolve().parents[1] / "page"
INDEX = "index.html"
# Browsers refuse a module that is served as another type.
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_TEXTS = ("text/", "image/svg")
ON_DEMAND = frozenset({"job.js"})  # modules that a view loads when it is shown


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
        if (index := contents.get(INDEX)) is not None:
            contents[INDEX] = _preloading(index.decode(), contents).encode()
        self._files = {name: _file(name, content) for name, content in contents.items()}

    def by_path(self) -> Iterator[tuple[str, File]]:
        """Yield each path with its file. All views of the page have the same one."""
        for name, file in self._files.items():
            yield f"/{name}", file
            if name == INDEX:
                yield from ((path, file) for path in ("/", "/runs", "/runs/{rest:.*}"))


def _preloading(index: str, names: Iterable[str]) -> str:
    """Preload all modules, so that browsers do not discover them one import after the other.

    The links follow the styles, without which nothing is painted.
    """
    # What the page has as a plain script would come twice.
    scripts = (n for n in names if n.endswith(".js") and f'<script src="/{n}"' not in index)
    modules = (name for name in scripts if name not in ON_DEMAND)
    links = "".join(f'<link rel="modulepreload" href="/{name}">\n' for name in modules)
    return index.replace("</head>", f"{links}</head>")


def _file(name: str, content: bytes) -> File:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    kind = kind or "application/octet-stream"
    charset = "; charset=utf-8" if kind.startswith(_TEXTS) else ""
    return File(content, kind + charset, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
