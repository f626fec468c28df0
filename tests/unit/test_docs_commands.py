"""Every block of the documentation is checked: its commands, its code and its files.

``tests/e2e/test_docs_commands.py`` runs some of them.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml

from drumbeat.agent.cli import agent
from drumbeat.coordinator.command.cli import coordinator
from tests.support.fences import PAGES, Block, blocks, programs
from tests.support.processes import ROOT

COMMANDS: dict[str, click.Group] = {"agent": agent, "coordinator": coordinator}

ELSEWHERE = {
    "docker": "an image is built from a registry, which tests do not reach",
    "etcdctl": "roles and users belong to etcd",
    "kubectl": "tests/unit/test_kubernetes.py checks the manifests",
    "openssl": "of the system",
    "pkill": "of the system; the test of the README kills the worker itself",
    "rm": "of the system",
    "sbatch": "tests/e2e/test_slurm.py submits the script",
    "srun": "tests/e2e/test_slurm.py starts agents with it",
    "ssh": "of the system",
    "systemctl": "tests/unit/test_deploy.py checks the unit",
    "torchft_lighthouse": "the coordinator takes its place",
    "torchrun": "tests/e2e/test_torchrun_handler.py runs it on the coordinator",
    "torchx": "tests/unit/drumbeat/test_torchx.py reads these command lines",
    "umask": "of the shell",
}
"""Programs of others, and what else checks that they are used well."""

OPTIONS_ELSEWHERE = {
    "coordinator evidence": ["--api-key"],  # an example of a secret
    "deploy/slurm/drains.py": ["--drain-slurm", "--period"],
    "bench.scale.curves": ["--add", "--from-results", "--into", "--parts", "--repeats", "--sizes"],
    "docker": ["--build-arg", "--shm-size"],
    "etcd": ["--auto-compaction-retention", "--client-cert-auth", "--quota-backend-bytes"],
    "etcdutl": ["--bump-revision", "--mark-compacted"],
    "pip": ["--no-deps"],
    "pytest": ["--rewrite"],
    "sbatch": ["--cpus-per-task", "--exclusive", "--nodes"],
    "srun": ["--export", "--kill-on-bad-exit", "--no-kill", "--ntasks-per-node", "--wait"],
    "tests.chaos.run": ["--before", "--mistake", "--only"],
    "torchft_lighthouse": [
        "--heartbeat_timeout_ms",
        "--join_timeout_ms",
        "--min_replicas",
        "--quorum_tick_ms",
    ],
    "torchx": ["--max_restarts", "--max_retries", "--options", "--token_file"],
}
"""Options in sentences that belong to programs of others."""

NOT_PARSED = {"nginx": "its syntax belongs to nginx", "text": "output, diagrams and lists"}
"""Languages of blocks that nothing here can parse."""

ALL = list(blocks())


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


def parse(words: list[str]) -> None:
    """Read the command line of one of our programs. Raises ``click.ClickException``."""
    command: click.Command | None = COMMANDS[words[0]]
    rest = words[1:]
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), rest.pop(0))
    assert command is not None, f"no command {shlex.join(words)}"
    command.make_context(words[0], rest)


def our_part(words: list[str]) -> list[str] | None:
    """Return our command line in one that may start with a program of others."""
    for index, word in enumerate(words):
        if word in COMMANDS and len(words) > index + 1:
            return words[index:]
        if word.endswith("/train.sbatch"):
            return ["agent", "join", *words[index + 1 :]]
    return None


def check(words: list[str]) -> None:
    """Check the words that start a program."""
    program = words[0]
    if ours := our_part(words):
        parse(ours)
        assert program in {*COMMANDS, *ELSEWHERE}, program
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\[([\w,]+)\]", " ".join(words)):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras
    elif program == "make":
        assert re.search(rf"(?m)^{words[1]}:", (ROOT / "Makefile").read_text()), words[1]
    else:
        assert program in ELSEWHERE, f"nothing checks {program!r}"


@pytest.mark.parametrize("block", of("sh", "console"), ids=str)
def test_commands_have_the_options_and_arguments_that_there_are(block: Block) -> None:
    started = [words for line in block.commands() for words in programs(line)]
    assert started, "no commands"
    for words in started:
        check(words)


def test_blocks_have_a_language_that_is_checked() -> None:
    checked = {"sh", "console", "python", "yaml", "toml", "json", *NOT_PARSED}
    assert [f"{block} {block.language}" for block in ALL if block.language not in checked] == []


def test_text_has_no_commands() -> None:
    verbs = "|".join({*agent.commands, *coordinator.commands})
    command = re.compile(rf"(?m)^(?:\S*\$ .*|(?:agent|coordinator) (?:{verbs}) .*)$")
    for block in of("text"):
        assert command.findall(block.text) == [], block


def test_code_and_files_have_the_syntax_of_their_language() -> None:
    read: dict[str, Callable[[str], Any]] = {
        "python": ast.parse,
        "yaml": yaml.safe_load,
        "toml": tomllib.loads,
        "json": json.loads,
    }
    for block in of(*read):
        assert read[block.language](block.text), block


def spans() -> list[tuple[str, str]]:
    """Return page and text of each piece of code that stands in a sentence or a table."""
    return [
        (page.name, span.replace("\\", ""))
        for page in PAGES
        if page.parent.name != "adr"  # which speak of their time
        for span in re.findall(r"`([^`]+)`", re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text()))
    ]


def flags_of(command: click.Command) -> set[str]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {"--help", *(flag for param in command.params for flag in param.opts)}
    return own.union(*map(flags_of, below))


def test_options_in_sentences_exist() -> None:
    """Those of one command belong to it; an option alone belongs to any command."""
    foreign = {option for options in OPTIONS_ELSEWHERE.values() for option in options}
    everywhere = flags_of(agent) | flags_of(coordinator) | foreign
    unknown = []
    for page, span in spans():
        command: click.Command | None = None
        for word in span.split():
            if command is None or isinstance(command, click.Group):
                group = COMMANDS if command is None else command.commands
                command = group.get(word, command)
        known = everywhere if command is None else flags_of(command)
        named = re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
        unknown += [f"{page}: {span}" for option in named if option not in known]
    assert unknown == []


def test_commands_in_sentences_exist() -> None:
    messages = {"coordinator lost", "coordinator ready at"}
    unknown = []
    for page, span in spans():
        match = re.match(r"(agent|coordinator) ([a-z]\S*[^:\s])(\s|$)", span)
        if match and match[2] not in COMMANDS[match[1]].commands and span not in messages:
            unknown.append(f"{page}: {span}")
    assert unknown == []
