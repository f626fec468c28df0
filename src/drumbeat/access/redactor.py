"""Pure. Removes secrets from texts of workers; ``docs/errors.md`` has the rules.

All of it takes time linear in the length of a text: a worker may write what it likes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from drumbeat.access.redaction import HIDDEN, without_tokens

VALUE_CHARACTERS_MIN = 8
VALUES_MAX = 1_000  # values, their other spellings and their lines; those behind are not looked for
PIECE_CHARACTERS_MIN = 4  # of a value that was cut off by a limit
CUTS_MAX = 8  # places of a text where its middle was left out
LEFT_OUT = "\n… (left out) …\n"  # stands there, see ``worker_sdk.errors``
KEY_CHARACTERS_MAX = 16 * 1024  # of a private key
# A text may grow up to this by what it has for a secret; a longer one keeps to its length.
GROWN_BYTES_MAX = 4096

_SHORT = "***"
_KEY = "[private key]"
# Compiled when first needed: most runs report no failure.
_WORD_BORDER = r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+"
_TELLING_NAME = (
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTH|AUTHORIZATION|JWT|COOKIE"
    r"|(?<![A-Z])(?:PASS|PWD)"
    r"|(?:API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|ACCOUNT)_?KEY|_KEY(?=S?$))S?(?=[_0-9]|$)"
)
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
_NUMBER = r"[+-]?[0-9][0-9.,_]*(?:[eE][+-]?[0-9]+)?"
_CHOICES = frozenset({"disabled", "required", "optional"})  # shorter ones are no secrets anyway

_HEADER = (
    r"""(?i)(authorization["']?[ \t]{0,4}[:=,][ \t]{0,4}["']?)"""
    r"""((?:bearer|basic|token|digest|negotiate|apikey)[ \t]{1,4})?"""
    # No word as in "authorization: denied".
    r"""(?!(?-i:[a-z]++)(?![^\s"',;)]))([^\s"',;)]{8,}+)"""
)
_USER_OF_URL = r"""://([^\s/@:'"<>]*+:[^\s/'"<>]{2,}|[^\s/@:'"<>]{16,}+)@"""
# Up to the value of NAME=value, "name": "value", --name value, and ['--name', 'value']. At most two
# quotes, which may be escaped, stand between a name and its value.
_NAMED = (
    r"""(?<![\w.])((?:--?)?[A-Za-z_][\w.-]{0,63})"""
    r"""(?:[\\"']{0,2}[ \t]{0,4}[=:][ \t]{0,4}[\\"']{0,2}|["']?,?[ ]["']?)"""
)
_VALUE = r"""(?<=")[^"\n]+|(?<=')[^'\n]+|[^\s"',;&]+"""
_PLAIN_WORDS = frozenset({"none", "null", "true", "false"})
_KEY_BEGINS = r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_KEY_ENDS = r"-----END (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_KEY_TEXT = r"[A-Za-z0-9+/=\r\n\\]*+"


class _Span(NamedTuple):
    begin: int
    end: int
    shown: str


class Redactor:
    """Knows which values of an environment are secrets; ``is_path`` says which are paths."""

    def __init__(
        self, environment: Mapping[str, str], is_path: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._environment, self._is_path = environment, is_path

    def __call__(self, text: str, *, is_start_cut: bool = False) -> str:
        """Return a text without secrets, in few more bytes at most.

        Where its middle was left out, and where it begins if that ``is_start_cut``, pieces of
        values are looked for as well.
        """
        if not text:
            return text
        spans = [*self._values(text), *_private_keys(text)]
        spans += self._pieces(text, is_start_cut=is_start_cut)
        spans += [_Span(*match.span(3), HIDDEN) for match in re.finditer(_HEADER, text)]
        if "://" in text:
            spans += [_Span(*match.span(1), HIDDEN) for match in re.finditer(_USER_OF_URL, text)]
        if spans:
            shown = _replaced(text, spans)
            if _size(shown) > max(GROWN_BYTES_MAX, _size(text)):
                shown = _replaced(text, [span._replace(shown=_SHORT) for span in spans])
            text = shown
        return without_tokens(text)

    def content(self, value: Any) -> Any:
        """Return a value as it is in JSON, without secrets in its texts."""
        match value:
            case str():
                return self(value)
            case list():
                return [self.content(item) for item in value]
            case dict():
                return {name: self.content(item) for name, item in value.items()}
        return value

    @cached_property
    def _shown(self) -> dict[str, str]:
        """What is shown instead, by what is looked for."""
        secrets = [
            (name, value.strip())
            for name, value in sorted(self._environment.items())
            if is_secret_name(name) and is_secret_value(value.strip(), self._is_path)
        ]
        # Whole values first, should there be too many.
        shown = [(spelling, name) for name, value in secrets for spelling in _spellings(value)]
        shown += [(line, name) for name, value in secrets for line in _lines(value)]
        return {value: f"[value of {name}]" for value, name in reversed(shown[:VALUES_MAX])}

    def _values(self, text: str) -> Iterator[_Span]:
        for value, shown in self._shown.items():
            at = text.find(value)
            while at >= 0:
                yield _Span(at, at + len(value), shown)
                at = text.find(value, at + len(value))

    def _pieces(self, text: str, *, is_start_cut: bool) -> Iterator[_Span]:
        # What is left of a character that was cut through stands before the rest of the value.
        start = len(text) - len(text.lstrip("\ufffd"))
        cuts, at = [start] if is_start_cut else [], text.find(LEFT_OUT)
        while at >= 0 and len(cuts) < CUTS_MAX:
            cuts.append(at + len(LEFT_OUT))
            at = text.find(LEFT_OUT, at + len(LEFT_OUT))
        for cut in cuts:
            before = cut - len(LEFT_OUT)
            for value, shown in self._shown.items():
                if (begin := _beginning_before(text, before, value)) < before:
                    yield _Span(begin, before, shown)
                if (end := _end_behind(text, cut, value)) > cut:
                    yield _Span(cut, end, shown)


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name likely holds a secret."""
    words = "_".join(filter(None, re.split(_WORD_BORDER, name))).upper()
    return words not in _DIRECTORIES and re.search(_TELLING_NAME, words) is not None


def is_secret_value(value: str, is_path: Callable[[str], bool]) -> bool:
    """Return whether a value can be a secret: no short word, number, choice or path."""
    return (
        len(value) >= VALUE_CHARACTERS_MIN
        and not re.fullmatch(_NUMBER, value)
        and value.lower() not in _CHOICES
        and not (value.startswith(("/", "./", "../")) and is_path(value))
    )


def without_named_values(text: str) -> str:
    """Return a text without values that stand behind the name of a secret, whatever they are."""
    value_at, spans = re.compile(_VALUE), list[_Span]()
    for match in re.finditer(_NAMED, text):
        name, between = match[1], match.group()[len(match[1]) :]
        is_hidden = bool(spans) and match.end() < spans[-1].end
        if is_hidden or not (name.startswith("-") or "=" in between or ":" in between):
            continue
        if names_secret(name) and (value := value_at.match(text, match.end())) is not None:
            is_count = "token" in name.lower() and re.fullmatch(_NUMBER, value.group()) is not None
            if not (is_count or value.group().lower() in _PLAIN_WORDS or value[0][0] == "["):
                spans.append(_Span(*value.span(), hidden_value(name)))
    return _replaced(text, spans) if spans else text


def names_secret(name: str) -> bool:
    """Return whether the value of this option, variable or key likely is a secret, no file."""
    return is_secret_name(name) and not name.lower().endswith(("file", "path"))


def hidden_value(name: str) -> str:
    """Return what is shown in place of a value."""
    return f"[value of {name.lstrip('-')}]"


def _spellings(value: str) -> Iterable[str]:
    """Return a value as it is, and as it is in a literal, in JSON, in a URL."""
    seen = value.encode("utf-8", "surrogateescape")
    return dict.fromkeys(
        (
            value,
            seen.decode("utf-8", "replace"),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],
            quote(seen, safe=""),
            quote(seen),
            quote_plus(seen),
        )
    )


def _lines(value: str) -> list[str]:
    """Return the lines of a value, if it has several, that are long enough to be secrets."""
    lines = [line.strip() for line in value.splitlines()]
    return [line for line in lines if VALUE_CHARACTERS_MIN <= len(line) < len(value)]


def _beginning_before(text: str, cut: int, value: str) -> int:
    """Return where the beginning of a value begins that ends at ``cut``; that if there is none."""
    head = value[:PIECE_CHARACTERS_MIN]
    at = text.find(head, max(0, cut - len(value) + 1), max(0, cut))
    while at >= 0 and not value.startswith(text[at:cut]):
        at = text.find(head, at + 1, cut)
    return cut if at < 0 else at


def _end_behind(text: str, cut: int, value: str) -> int:
    """Return where the end of a value ends that begins at ``cut``; that if there is none."""
    at, head = 0, text[cut : cut + PIECE_CHARACTERS_MIN]
    while len(head) == PIECE_CHARACTERS_MIN and (at := value.find(head, at + 1)) >= 0:
        if text.startswith(value[at:], cut):
            return cut + len(value) - at
    return cut


def _private_keys(text: str) -> Iterator[_Span]:
    """Find keys in PEM, also those whose beginning or end was cut off."""
    if "PRIVATE KEY" not in text:
        return
    ends, covered = [match.span() for match in re.finditer(_KEY_ENDS, text)], 0
    for match in re.finditer(_KEY_BEGINS, text):
        if match.start() < covered:
            continue
        at = bisect(ends, match.span())
        if at < len(ends) and ends[at][1] - match.start() <= KEY_CHARACTERS_MAX:
            covered = ends[at][1]
        else:
            rest = re.compile(_KEY_TEXT).match(text, match.end())
            covered = rest.end() if rest else match.end()
        yield _Span(match.start(), covered, _KEY)
    for begin, end in ends:  # what lies within another span changes nothing
        before = re.match(_KEY_TEXT, text[max(0, begin - KEY_CHARACTERS_MAX) : begin][::-1])
        yield _Span(begin - (before.end() if before else 0), end, _KEY)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _replaced(text: str, spans: list[_Span]) -> str:
    """Put what is shown in place of spans; of those that overlap, that of the first."""
    pieces: list[str] = []
    at = 0
    for begin, end, shown in sorted(spans, key=lambda span: (span.begin, -span.end)):
        if begin >= at:
            pieces += (text[at:begin], shown)
        at = max(at, end)
    return "".join((*pieces, text[at:]))
