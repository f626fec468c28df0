"""Which files an archive of evidence has, and that no secret is in any of them."""

import json
from typing import Any

import pytest

from drumbeat.access.redactor import Redactor, without_named_values
from drumbeat.coordinator.evidence.contents import Evidence, File, files_of
from drumbeat.coordinator.wire.stack_groups import Worker

STACKS = 'Thread 0x1 (most recent call first):\n  File "/home/u/train.py", line 8 in step\n'
SECRET = "q7Lx0pW3vbn2Zk9T"
EVENT = {"sequence": 1, "age_s": 2.0, "round_id": None, "kind": "agent_admitted", "reason": "a"}


def whole(**parts: Any) -> Evidence:
    """Return evidence with all parts, some of them as given."""
    every = {
        "stacks": [
            Worker(0, 0, "gpu0", "h0", 17, STACKS, ""),
            Worker(1, 1, "gpu0", "h0", 0, "", "x"),
        ],
        "logs": {"rank-0-stdout": ["one", "two"], "rank-0-stderr": ["\x1b[2Jthree"]},
        "status": {"run_id": "mt5", "phase": "ended"},
        "report": {
            "reason": "rank 0 failed",
            "root_causes": [{"rank": 0, "message": "boom", "traceback": "Traceback\n  f()\n"}],
            "victims": [],
        },
        "hang": {"summary": "rank 0 waits"},
        "events": [EVENT],
        "why": {"what": ["Run mt5 failed."], "advice": []},
        "steps": {"round_id": 0},
        "goodput": {"whole_s": 1.5},
        "versions": {"agents": {"1.0": 2}},
        "settings": {"run": {"agents_min": 1}},
    }
    return Evidence("mt5", "20260101T000000.000Z", "an operator asked for it", parts=every | parts)


def texts(files: list[File]) -> dict[str, str]:
    return {file.name: file.content.decode() for file in files}


def test_an_archive_has_a_readme_and_each_part_as_text_and_for_programs() -> None:
    found = texts(files_of(whole(), Redactor({})))
    assert list(found) == [
        "README.txt",
        "status.json",
        "why.txt",
        "why.json",
        "report.txt",
        "report.json",
        "hang.txt",
        "hang.json",
        "stacks.txt",
        "stacks.json",
        "events.jsonl",
        "events.txt",
        "steps.json",
        "goodput.txt",
        "goodput.json",
        "versions.json",
        "settings.json",
        "logs/rank-0-stdout.txt",
        "logs/rank-0-stderr.txt",
    ]
    for name, text in found.items():
        if name.endswith(".json"):
            assert json.loads(text), name
        is_named = (name.partition("/")[0] if "/" in name else name) in found["README.txt"]
        assert is_named or name == "README.txt"
    assert json.loads(found["events.jsonl"]) == EVENT
    assert found["report.txt"] == (
        "reason: rank 0 failed\n"
        "root_causes:\n"
        "  -\n"
        "    rank: 0\n"
        "    message: boom\n"
        "    traceback:\n"
        "        Traceback\n"
        "          f()\n"
    )
    assert "1 rank (1 on gpu0) gave no stacks: x" in found["stacks.txt"]
    assert found["logs/rank-0-stderr.txt"] == "\\x1b[2Jthree\n"
    assert "Missing" not in found["README.txt"]


def test_the_readme_says_why_a_part_is_missing() -> None:
    evidence = whole()
    del evidence.parts["stacks"]
    evidence.note("stacks", "its agent is not connected\nat all")
    found = texts(files_of(evidence, Redactor({})))
    assert "stacks.txt" not in found
    readme = found["README.txt"]
    assert readme.endswith("Missing or not whole:\nstacks: its agent is not connected\\nat all\n")


@pytest.mark.parametrize(
    "text",
    [
        f"MY_TOKEN={SECRET}",
        f"export DB_PASSWORD='{SECRET} and more'",
        f"--api-key {SECRET} --lr 0.1",
        f"['train.py', '--token', '{SECRET}']",
        f"--token={SECRET}",
        f'{{"client_secret": "{SECRET}"}}',
        f'"{{\\"client_secret\\": \\"{SECRET}\\"}}"',
        f"https://user:{SECRET}@host/path",
        f"https://host/path?a=1&access_token={SECRET}&b=2",
        f"Authorization: Bearer {SECRET}",
        f"drumbeat1.view.abc.{SECRET}",
        f"the worker wrote {SECRET} without a name",
    ],
)
def test_no_file_has_a_secret_wherever_it_was_written(text: str) -> None:
    redact = Redactor({"HF_TOKEN": SECRET} if "without a name" in text else {})
    evidence = whole(
        status={"reason": text, "labels": {"wandb_key": SECRET, "zone": text}},
        stacks=[Worker(0, 0, text, text, 1, f"{STACKS}# {text}\n", text)],
        logs={"rank-0-stdout": [text]},
        report={"root_causes": [{"message": text, "stderr_tail": f"{text}\n{text}"}]},
        events=[EVENT | {"reason": text}],
        why={"what": [text]},
        settings={"coordinator": {"--journal": text, "--some-password": SECRET}},
    )
    evidence.note("steps", text)
    for name, content in texts(files_of(evidence, redact)).items():
        assert SECRET not in content, name


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 4096",
        "num_tokens=1e9",
        "--token-file /etc/drumbeat/token",
        "password: None",
        "in get_token for x",
        "loss=0.25 step=7",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_named_values(text) == text


def test_a_text_full_of_names_takes_no_longer_than_its_length() -> None:
    hidden = without_named_values("token=" * 100_000)
    assert hidden == "token=[value of token]"


def test_files_beyond_the_limit_are_cut_or_left_out_and_named() -> None:
    logs = {f"rank-{rank}-stdout": ["x" * 100] * 10 for rank in range(5)}
    evidence = whole(logs=logs)
    size = sum(len(file.content) for file in files_of(whole(logs={}), Redactor({}))[1:])
    files = files_of(evidence, Redactor({}), bytes_max=size + 2500)
    found = texts(files)
    kept = [name for name in found if name.startswith("logs/")]
    assert kept == [f"logs/rank-{rank}-stdout.txt" for rank in range(3)]
    assert found[kept[-1]].endswith("the archive has reached its limit)\n")
    assert "logs: logs/rank-3-stdout.txt is cut or left out" in found["README.txt"]
    # A part of a JSON file is no use to anyone.
    found = texts(files_of(whole(), Redactor({}), bytes_max=10))
    assert [name for name in found if name.endswith(".json")] == []


@pytest.mark.parametrize("run_id", ["../x", "/etc/passwd", "a b\n", "..", "", "ä" * 300, "x" * 300])
def test_the_name_of_an_archive_is_a_plain_file_name(run_id: str) -> None:
    name = Evidence(run_id, "20260101T000000.000Z", "").name
    assert name.startswith("drumbeat-")
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 120
