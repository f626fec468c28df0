"""Tokens are in no line that a process writes."""

import io
from contextlib import closing

import pytest

from drumbeat.access.redaction import without_tokens
from drumbeat.access.token import Role, Token
from drumbeat.command.console import Console

TOKEN = Token(Role.JOIN, "abcd0123", "s3cr3t-s3cr3t_s3cr3t22", "A" * 44)
SHOWN = "drumbeat1.join.abcd0123.[secret]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token {TOKEN.text()} refused", f"token {SHOWN} refused"),
        (f"{{'authorization': 'Bearer {TOKEN.text()}'}}", f"{{'authorization': 'Bearer {SHOWN}'}}"),
        (TOKEN.text()[:-30], SHOWN),
        ("a token begins with drumbeat1.", "a token begins with drumbeat1."),
        ("Bearer eyJhbGciOi.J9 and bearer of news", "Bearer [secret] and bearer of news"),
        ("nothing here", "nothing here"),
    ],
)
def test_the_secret_goes_and_the_id_stays(text: str, shown: str) -> None:
    assert without_tokens(text) == shown


def test_no_text_on_the_console_has_a_token() -> None:
    stream = io.StringIO()
    with closing(Console(stream)) as console:
        console.write(f"agent: error: {TOKEN.text()}\n")
    assert stream.getvalue() == f"agent: error: {SHOWN}\n"
