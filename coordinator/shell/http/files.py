"""Shell. The files of the page, as they are served to all who reach the port."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

FOLDER = Path(__file__).resolve().parents[2] / "page"
INDEX = "index.html"
# A module that browsers load from another type is refused.
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_TEXTS = ("text/", "image/svg")


class File(Struct, frozen=True):
    """One file."""

    content: bytes
    content_type: str
    tag: str
    preloads: str = ""  # modules that its reader will want, as a header says it


class Files:
    """All files there are, read once: nothing that a caller says becomes a path."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self._files = {str(path.relative_to(folder)): _read(path) for path in paths}
        if (index := self._files.get(INDEX)) is not None:
            preloads = ", ".join(self._preloads(index.content.decode()))
            self._files[INDEX] = replace(index, preloads=preloads)

    def find(self, path: str) -> File | None:
        """Return the file at a path of the page; all that is no file's name is the page itself."""
        name = path.removeprefix("/")
        if name in ("", "runs") or name.startswith("runs/"):
            name = INDEX
        return self._files.get(name)

    def _preloads(self, index: str) -> Iterator[str]:
        """Yield the modules: each imports others, which would be asked for one after the other."""
        for name in self._files:
            # What the page has as a plain script would come twice.
            if name.endswith(".js") and f'<script src="/{name}"' not in index:
                yield f"</{name}>; rel=modulepreload"


def _read(path: Path) -> File:
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    charset = "; charset=utf-8" if kind.startswith(_TEXTS) else ""
    content = path.read_bytes()
    return File(content, kind + charset, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
