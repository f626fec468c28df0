"""Patterns that are looked for in the output of workers: how they are given, and refused."""

import pytest

from drumbeat.agent.runtime import preflight
from drumbeat.agent.settings.kinds import OutputPattern
from tests.support.command_line import join, refused


def test_patterns_are_given_one_by_one() -> None:
    config = join(
        *("--hang-pattern", r"iteration \d+=10m", "--hang-pattern=a=b=500ms"),
        *("--fatal-pattern", "NCCL error, or not", "--fatal-pattern", "CUDA"),
    )
    assert config.output_patterns == (
        OutputPattern(r"iteration \d+", 600.0),
        OutputPattern("a=b", 0.5),
        OutputPattern("NCCL error, or not"),
        OutputPattern("CUDA"),
    )


def test_a_variable_has_a_pattern_in_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_HANG_PATTERN", "step [0-9]+, loss=1m\n\nsaved=1h\n")
    assert join().hang_pattern == ("step [0-9]+, loss=1m", "saved=1h")
    assert join("--hang-pattern", "x=1").hang_pattern == ("x=1",)


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        ("hang", "iter(=10m", "missing ), unterminated subpattern at character 5, '('"),
        ("hang", r"x\=10m", "bad escape (end of pattern) at character 2, '\\'"),
        ("hang", "a{2,1}b=10m", "min repeat greater than max repeat at character 3, '2,1}b'"),
        ("hang", "a{99999999999}=1s", "the repetition number is too large"),
        ("hang", "iteration", "it has no =DURATION"),
        ("hang", "iteration=soon", "'soon' is not a duration: give a number of seconds"),
        ("hang", "iteration=10ms", "allowed is 0.1 to 2592000 seconds"),
        ("hang", "=10m", "a regular expression has 1 to 256 printable characters"),
        ("fatal", "a*|b", "it matches an empty text, and so every line"),
        ("fatal", "[a", "unterminated character set at character 1, '[a'"),
    ],
)
def test_a_pattern_that_cannot_be_is_named_with_the_place_of_the_mistake(
    option: str, given: str, why: str
) -> None:
    said = refused("--hang-pattern", "fine=1s", f"--{option}-pattern", given)
    assert f"'--{option}-pattern'" in said
    assert f"'{given}': " in said
    assert why in said
    assert "allowed is " in said


def test_more_patterns_than_are_allowed_are_refused() -> None:
    said = refused(*(f"--hang-pattern=x{number}=1s" for number in range(17)))
    assert "--hang-pattern: " in said
    assert "allowed is up to 16 of REGEX=DURATION" in said


def test_what_only_the_matching_library_does_not_take_is_refused() -> None:
    assert "--hang-pattern: the library regex does not take '{i}'" in refused(
        "--hang-pattern={i}=1s"
    )


def test_patterns_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda _: None)
    said = refused("--fatal-pattern", "x")
    assert "--fatal-pattern: the library regex is not installed" in said
    assert "pip install 'drumbeat[patterns]'" in said
    assert join().output_patterns == ()
