"""Pure. Cuts a stream of bytes into whole lines; its last lines, as a report shows them.

Works on blocks of many lines at once: work for each single line makes following a busy log slow.
"""

import re
from collections.abc import Sequence

LINE_BYTES_MAX = 1024 * 1024  # of an unfinished line; of a longer one each part becomes a line
RULE_LINE_BYTES_MAX = 4096  # of a line that is matched; what is behind that is not looked at
LAST_LINES_MAX = 50
LAST_BYTES_MAX = 32 * 1024  # more than what fifty lines usually have, and little for a record

# torch says so at the beginning of each line once workers are connected.
_RANK = re.compile(r"^\[rank[0-9]+\]: ?", re.MULTILINE)
_LINE_END = re.compile(rb"[\r\n]+")
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")  # colours, and moves of the cursor
_TRACEBACK = re.compile(r"^[ \t]*Traceback \(most recent call last\):[ \t]*$", re.MULTILINE)
_NOT_INDENTED = re.compile(r"^\S.*", re.MULTILINE)
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?:: .*)?")
# These come without the line above, for nothing has run.
_SYNTAX_ERROR = re.compile(r"^(?:SyntaxError|IndentationError|TabError): .*", re.MULTILINE)


def cut_of(chunk: bytes) -> int:
    """Return where the last whole line of a chunk ends.

    A lone carriage return ends a line, so that progress bars move; but at the very end it may be
    the first half of a line end.
    """
    cut = chunk.rfind(b"\n") + 1
    return max(cut, chunk.rfind(b"\r", cut, len(chunk) - 1) + 1)


class LineCutter:
    """Cuts chunks after line ends."""

    def __init__(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that `chunk` completes; the beginning of the next one is kept."""
        cut = cut_of(chunk)
        block = chunk[:cut]
        if cut or self._rest.endswith(b"\r"):
            block = bytes(self._rest) + block if self._rest else block
            self._rest.clear()
        self._rest += chunk[cut:]
        while len(self._rest) > self._line_bytes_max:
            end = self._line_bytes_max
            # Between two characters of UTF-8, which have at most 4 bytes.
            while self._rest[end] & 0xC0 == 0x80 and end > self._line_bytes_max - 4:
                end -= 1
            block += self._rest[:end] + b"\n"
            del self._rest[:end]
        return block

    def end(self) -> bytes:
        """Return the last line if it was not finished, with the line end that it lacks."""
        block = bytes(self._rest)
        self._rest.clear()
        return block if not block or block.endswith(b"\r") else block + b"\n"


class RuleLines:
    """Cuts chunks into lines for patterns: each without its line end and colours.

    A carriage return ends a line as well, as in progress bars.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False  # to the next line end: the beginning of this line is missing

    def feed(self, chunk: bytes, *, is_cut: bool = False) -> list[str]:
        """Return the lines that ``chunk`` completes; ``is_cut``: bytes before it are missing."""
        if is_cut:
            self._rest, self._is_skipping = b"", True
        *whole, rest = _LINE_END.split(self._rest + chunk)
        if self._is_skipping and whole:
            del whole[0]
            self._is_skipping = False
        self._rest = rest[:RULE_LINE_BYTES_MAX]
        return [
            _CONTROL.sub(b"", line[:RULE_LINE_BYTES_MAX]).decode("utf-8", "replace")
            for line in whole
            if line
        ]


def prefixed(block: bytes, prefix: bytes) -> bytes:
    """Return the whole lines of `block` with `prefix` before each."""
    if not block or not prefix:
        return block
    if b"\r" in block:
        return b"".join(prefix + line for line in block.splitlines(keepends=True))
    return b"".join((prefix, block[:-1].replace(b"\n", b"\n" + prefix), block[-1:]))


def matching(block: bytes, needles: Sequence[bytes]) -> bytes:
    """Return the lines of `block` that contain any of `needles`."""
    if not any(needle in block for needle in needles):
        return b""
    lines = block.splitlines(keepends=True)
    return b"".join(line for line in lines if any(needle in line for needle in needles))


def last_lines(data: bytes) -> str:
    """Return the last lines, as a terminal would leave them; undecodable bytes are replaced."""
    # The first line is incomplete if bytes before it were cut off; it may still be all there is.
    lines = data[-LAST_BYTES_MAX:].decode("utf-8", "replace").removesuffix("\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-LAST_LINES_MAX:])


def exception_in(text: str) -> str:
    """Return the first line of the exception that the last traceback ends with, "" if none."""
    *before, last = _TRACEBACK.split(_RANK.sub("", text))
    if not before:
        return "".join(_SYNTAX_ERROR.findall(last)[-1:])
    match = _NOT_INDENTED.search(last)
    return match[0] if match and _EXCEPTION.fullmatch(match[0]) else ""
