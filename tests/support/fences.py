"""Blocks of the documentation between fences, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.processes import ROOT

PAGES = sorted(
    page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if page.name != "CHANGELOG.md"
)
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"[\w-]*\$ ")
_NO_PROGRAM = re.compile(r"export|\w+=.*", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"(<<'(\w+)')\n.*?^\2$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """Return its command lines, each with what continues it and without its prompt."""
        text = _HERE_DOCUMENT.sub(r"\1", self.text).replace("\\\n", " ")
        lines = [line for line in text.split("\n") if line.strip()]
        if self.language != "console":
            return lines
        return [_PROMPT.sub("", line, count=1) for line in lines if _PROMPT.match(line)]


def blocks() -> Iterator[Block]:
    """Yield all blocks of all pages but the changelog."""
    for page in PAGES:
        text = page.read_text()
        for fence in _FENCE.finditer(text):
            indent = fence[1]
            lines = [line.removeprefix(indent) for line in fence[3].split("\n")]
            number = text.count("\n", 0, fence.start()) + 1
            yield Block(str(page.relative_to(ROOT)), number, fence[2], "\n".join(lines))


def programs(line: str) -> list[list[str]]:
    """Return the words of each program that a line of a shell starts, without the variables.

    Redirections, and an ellipsis that stands for more arguments, are left out.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    started: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in (">", ">>", "<", "<<"):
            next(words)
        elif set(word) <= set("();|&"):
            started.append([])
        elif word not in ("…", "...") and (started[-1] or not _NO_PROGRAM.fullmatch(word)):
            started[-1].append(word)
    return [program for program in started if program]
