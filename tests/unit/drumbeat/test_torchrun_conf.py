"""What ``--rdzv-conf`` may say."""

import pytest

from drumbeat.torchrun.config import CLOSE_TIMEOUT_S, KEYS, client_settings


def test_keys_are_settings_of_the_client_and_torchruns_own_key_means_nothing() -> None:
    given = {"join_timeout": "90", "last_call_timeout": "2s", "token_file": "/t", "timeout": 900}
    expected = {"join_timeout": 90.0, "last_call": 2.0, "token_file": "/t"}
    assert client_settings(given) == (expected, CLOSE_TIMEOUT_S)
    assert client_settings({"close_timeout": "5"}) == ({}, 5.0)


def test_an_unknown_key_is_refused_with_all_that_are_allowed() -> None:
    with pytest.raises(ValueError, match=r"is_host, read_timeout is not known, allowed") as error:
        client_settings({"read_timeout": "3", "is_host": "1"})
    assert all(key in str(error.value) for key in KEYS)


@pytest.mark.parametrize("key", ["join_timeout", "last_call_timeout", "close_timeout"])
def test_a_value_that_is_not_allowed_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(ValueError, match=f"--rdzv-conf {key}: 'soon' is not a duration"):
        client_settings({key: "soon"})


def test_a_token_in_the_command_line_is_refused() -> None:
    with pytest.raises(ValueError, match="token is not known"):
        client_settings({"token": "secret"})
