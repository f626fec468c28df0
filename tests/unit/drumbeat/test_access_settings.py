"""What both command lines and programs can say of the way into a coordinator."""

from typing import Any

import pytest

from drumbeat.access.token import Role, Token
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings.launch_config import LaunchConfig

SECRET = "s" * 22
TOKEN = Token(Role.JOIN, "abcdefgh", SECRET)


def refusal(**given: Any) -> str:
    """What is said of a configuration."""
    with pytest.raises(InvalidConfiguration) as caught:
        LaunchConfig(1, 1, 1, **({"coordinator": "head:1"} | given))
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"token": TOKEN, "token_file": "/t"},
            "token_file: '/t' is given, allowed is nothing beside a token that is given itself",
        ),
        (
            {"token": TOKEN, "insecure": True},
            (
                "insecure: True is given, allowed is plaintext alone: without encryption there "
                "is no token and no certificate"
            ),
        ),
        (
            {"tls_cert": "/c"},
            (
                "tls_key: nothing is given, allowed is the path of a file, for the certificate "
                "needs its key"
            ),
        ),
        (
            {"tls_key": "/k"},
            (
                "tls_cert: nothing is given, allowed is the path of a file, for the key needs "
                "its certificate"
            ),
        ),
        (
            {"tls_server_name": "head"},
            (
                "tls_server_name: 'head' is given, allowed is nothing without authorities: the "
                "token says whom to trust"
            ),
        ),
        (
            {"coordinator": None, "token_file": "/t"},
            (
                "token_file: '/t' is given, allowed is nothing without the address of a "
                "coordinator, for a standalone agent is alone"
            ),
        ),
        ({"tls_ca": ""}, "tls_ca: '' is given, allowed is the path of a file"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], text: str) -> None:
    assert refusal(**given) == text


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"insecure": True},
        {"token": TOKEN},
        {"token": TOKEN.text()},
        {"token_file": "/t", "tls_ca": "/ca", "tls_server_name": "head"},
        {"tls_ca": "/ca", "tls_cert": "/c", "tls_key": "/k"},
    ],
)
def test_what_fits_together_is_taken(given: dict[str, Any]) -> None:
    config = LaunchConfig(1, 1, 1, coordinator="head:1", **given)
    assert config.access_given() == list(given)
    assert config.token == (TOKEN if "token" in given else None)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (f"drumbeat1.join.abcdefgh.{SECRET}", "the token is cut short"),
        (SECRET, "this is no token: one begins with 'drumbeat1.'"),
        (TOKEN.text().replace("s", "t", 1), "the token was changed on its way"),
        (SECRET.encode(), "this is no token"),
    ],
)
def test_no_message_has_a_token_that_is_wrong(given: Any, reason: str) -> None:
    text = refusal(token=given)
    assert f"; {reason}" in text
    assert text.startswith("token: a text that is not shown is given, allowed is a token, as ")
    assert SECRET[:9] not in text


def test_a_token_in_place_of_its_file_is_not_shown() -> None:
    text = refusal(token_file=TOKEN.text())
    assert text == (
        "token_file: a text that is not shown is given, allowed is the path of a file with a token"
    )


def test_nothing_that_is_shown_of_a_configuration_has_the_secret() -> None:
    config = LaunchConfig(1, 1, 1, coordinator="head:1", token=TOKEN.text())
    assert "abcdefgh" in repr(config)
    assert SECRET not in f"{config!r} {config}"
