"""Restart rules: how a text is read, what it matches, and how a mistake is named."""

import re

import pytest

from drumbeat.restart_rules import (
    RULES_MAX,
    RestartAction,
    RootCause,
    parse_rule,
    parse_rules,
    rules_of_file,
)

KILLED = RootCause(exit_code=-9, signal_name="SIGKILL")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("exit=42,50-59:fail", RootCause(exit_code=42)),
        ("exit=42,50-59:fail", RootCause(exit_code=59)),
        ("signal=KILL:fail", KILLED),
        ("signal=sigsegv, sigkill:fail", KILLED),
        ("signal=IOT:fail", RootCause(exit_code=-6, signal_name="SIGABRT")),
        ("error=disk: full:fail", RootCause(exit_code=1, matched_rules=(1,))),
        ("hang:fail", RootCause(is_hang=True)),
        ("oom:fail", RootCause(exit_code=-9, signal_name="SIGKILL", is_out_of_memory=True)),
        ("host=rack=b7:fail", RootCause(labels={"rack": "b7"})),
        ("host=rack=:fail", RootCause(labels={"rack": ""})),
    ],
)
def test_a_rule_matches_its_root_cause(text: str, cause: RootCause) -> None:
    assert parse_rule(text).matches(cause)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("exit=42,50-59:fail", RootCause(exit_code=60)),
        ("exit=9:fail", RootCause(exit_code=-9, signal_name="SIGKILL")),
        ("exit=1:fail", RootCause(exit_code=1, is_hang=True)),
        ("signal=KILL:fail", RootCause(exit_code=-9, signal_name="SIGKILL", is_hang=True)),
        ("signal=KILL:fail", RootCause(exit_code=137)),
        ("error=disk:fail", RootCause(exit_code=1, matched_rules=(2,))),
        ("hang:fail", KILLED),
        ("oom:fail", KILLED),
        ("host=rack=b7:fail", RootCause(labels={"rack": "b8"})),
        ("host=rack=b7:fail", RootCause()),
    ],
)
def test_a_rule_does_not_match_another_root_cause(text: str, cause: RootCause) -> None:
    assert not parse_rule(text).matches(cause)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "1 to 512 printable characters"),
        ("oom\n:fail", "printable"),
        ("oom", "no :ACTION"),
        ("oom:stop", "unknown action 'stop'"),
        ("oom=yes:fail", "unknown condition 'oom=yes'"),
        ("code=1:fail", "unknown condition 'code=1'"),
        ("exit:fail", "'exit=' has no value"),
        ("exit=1,0:fail", "'0' is no exit code"),
        ("exit=9-3:fail", "'9-3' is no exit code"),
        ("exit=256:fail", "'256' is no exit code"),
        ("signal=KILL,FOO:fail", "'FOO' is no name of a signal"),
        ("host=rack:fail", "'rack' is not LABEL=VALUE"),
    ],
)
def test_a_bad_rule_is_refused_with_the_part_that_is_wrong(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part)):
        parse_rule(text)


def test_the_action_stands_after_the_last_colon() -> None:
    rule = parse_rule("error=RuntimeError: a:b:restart-free")
    assert (rule.regex, rule.action) == ("RuntimeError: a:b", RestartAction.RESTART_FREE)


def test_a_file_has_a_rule_in_each_line_and_a_mistake_is_named_with_its_line() -> None:
    content = "# site rules\n\n  exit=42:fail\noom:exclude\n"
    assert rules_of_file(content, "rules.txt") == ("exit=42:fail", "oom:exclude")
    with pytest.raises(ValueError, match=r"rules\.txt:5: unknown action 'no'"):
        rules_of_file(f"{content}hang:no\n", "rules.txt")


def test_a_run_has_no_more_rules_than_the_limit() -> None:
    texts = ("oom:fail",) * RULES_MAX
    assert [rule.number for rule in parse_rules(texts)] == list(range(1, RULES_MAX + 1))
    with pytest.raises(ValueError, match="65 rules; allowed are 64"):
        parse_rules((*texts, "oom:fail"))
    with pytest.raises(ValueError, match=f"f:{RULES_MAX + 1}: more than {RULES_MAX} rules"):
        rules_of_file("oom:fail\n" * (RULES_MAX + 1), "f")
