"""Shell. The files of the page, as they are served to all who reach the port."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).resolve().parents[2] / "page"
INDEX = "index.html"
CLASSIC = "theme.js"  # a script and no module: it runs before anything is painted
# A module that browsers load from another type is refused.
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_TEXTS = ("text/", "image/svg")


class File(Struct, frozen=True):
    """One file."""

    content: bytes
    content_type: str
    tag: str


class Files:
    """All files there are, read once: nothing that a caller says becomes a path."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        if (index := contents.get(INDEX)) is not None:
            # Modules import others: without this, one is asked for after the other. It stands
            # behind the styles, for without those nothing is painted.
            links = "".join(f'<link rel="modulepreload" href="/{n}">\n' for n in _modules(contents))
            contents[INDEX] = index.replace(b"</head>", links.encode() + b"</head>")
        self._files = {name: _file(name, content) for name, content in contents.items()}

    def find(self, path: str) -> File | None:
        """Return the file at a path of the page; all that is no file's name is the page itself."""
        name = path.removeprefix("/")
        if name in ("", "runs") or name.startswith("runs/"):
            name = INDEX
        return self._files.get(name)


def _modules(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".js") and name != CLASSIC]


def _file(name: str, content: bytes) -> File:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    kind = kind or "application/octet-stream"
    charset = "; charset=utf-8" if kind.startswith(_TEXTS) else ""
    return File(content, kind + charset, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
