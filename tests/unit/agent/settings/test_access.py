"""What the command line and the environment of ``agent`` say of the way into a coordinator."""

import os

import pytest

from drumbeat.access.token import Role, Token
from drumbeat.agent import cli
from tests.support import command_line
from tests.support.command_line import join

SECRET = "s" * 22
TOKEN = Token(Role.JOIN, "abcdefgh", SECRET)
OTHER = Token(Role.JOIN, "ijklmnop", SECRET)
TO_HEAD = ("--coordinator", "head:1")


def refused(*argv: str) -> str:
    said = command_line.refused(*argv)
    assert SECRET[:9] not in said
    return said


@pytest.mark.parametrize(
    "argv",
    [["--token", TOKEN.text()], [f"--token={TOKEN.text()}"], ["--token", TOKEN.text() + "\n"]],
)
def test_a_token_can_be_given_as_an_argument(argv: list[str]) -> None:
    assert join(*TO_HEAD, *argv).token == TOKEN


def test_the_variable_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN.text())
    assert join(*TO_HEAD).token == TOKEN
    assert "DRUMBEAT_TOKEN" not in os.environ


def test_it_leaves_the_environment_where_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", OTHER.text())
    assert join(*TO_HEAD, "--token", TOKEN.text()).token == TOKEN
    assert "DRUMBEAT_TOKEN" not in os.environ


@pytest.mark.parametrize(
    ("argv", "environment", "left"),
    [
        ([*TO_HEAD, "--token", TOKEN.text()], {"TOKEN_FILE": "/t"}, ["token"]),
        ([*TO_HEAD, "--token-file", "/t"], {"TOKEN": TOKEN.text()}, ["token_file"]),
        ([*TO_HEAD, "--insecure"], {"TOKEN": TOKEN.text(), "TLS_CA": "/ca"}, ["insecure"]),
        (
            [*TO_HEAD, "--tls-ca", "/ca"],
            {"INSECURE": "1", "TOKEN_FILE": "/t"},
            ["token_file", "tls_ca"],
        ),
        (TO_HEAD, {"TOKEN_FILE": "/t", "TLS_CA": "/ca"}, ["token_file", "tls_ca"]),
        # One machine trains alone, whatever is set for all of them.
        ([], {"TOKEN": TOKEN.text(), "TLS_CA": "/ca"}, []),
        (["--standalone"], {"COORDINATOR": "head:1", "TOKEN_FILE": "/t", "INSECURE": "1"}, []),
    ],
)
def test_an_argument_counts_before_a_variable_that_it_contradicts(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environment: dict[str, str], left: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"DRUMBEAT_{name}", value)
    assert join(*argv).access_given() == left


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([*TO_HEAD, "--token", TOKEN.text(), "--token-file", "/t"], "--token-file: '/t' is given"),
        ([*TO_HEAD, "--token", TOKEN.text(), "--insecure"], "--insecure: True is given"),
        ([*TO_HEAD, "--tls-cert", "/c"], "--tls-key: nothing is given"),
        ([*TO_HEAD, "--tls-key", "/k"], "--tls-cert: nothing is given"),
        (["--standalone", "--token", TOKEN.text()], "--token: join token abcdefgh is given"),
        (["--insecure"], "nothing without the address of a coordinator"),
        ([*TO_HEAD, "--token", TOKEN.text()[:-1]], "the token is cut short"),
        ([*TO_HEAD, "--token", SECRET], "this is no token"),
        ([*TO_HEAD, "--token", ""], "the token is empty"),
        ([*TO_HEAD, "--token-file", TOKEN.text()], "a text that is not shown is given"),
        # Slips that put a token where another value belongs.
        ([*TO_HEAD, f"-token={TOKEN.text()}"], "--tee"),
        ([*TO_HEAD, TOKEN.text()], "cannot run drumbeat1.join.abcdefgh.[secret]"),
        ([*TO_HEAD, f"--insecure={TOKEN.text()}"], "does not take a value"),
        (
            [f"--coordinator=a b {TOKEN.text()}"],
            "'a b drumbeat1.join.abcdefgh.[secret]' is not an address",
        ),
        ([*TO_HEAD, f"--tokn={TOKEN.text()}"], "--tokn"),
    ],
)
def test_what_is_wrong_is_said_without_the_token(argv: list[str], text: str) -> None:
    assert text in refused(*argv)


def test_a_variable_that_is_wrong_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN.text() + "x")
    assert "'DRUMBEAT_TOKEN'): the token was changed on its way" in refused(*TO_HEAD)


def test_two_variables_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN.text())
    monkeypatch.setenv("DRUMBEAT_INSECURE", "1")
    assert "--insecure: True is given" in refused(*TO_HEAD)


def test_the_help_has_no_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN.text())
    assert cli.main(["join", "--help"], run=lambda _: 1) == 0
    said = capsys.readouterr().out
    assert "DRUMBEAT_TOKEN" in said
    assert SECRET[:9] not in said
