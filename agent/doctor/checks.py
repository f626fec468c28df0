"""Shell. All checks in one table. They run at the same time, each with a limit of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import click

from drumbeat import VERSION
from drumbeat.access.redactor import Redactor
from drumbeat.agent.doctor import coordinator, network, programs, resources
from drumbeat.agent.doctor.model import Finding, Findings, Host, Level, fail, ok
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.command.options import EXIT_INTERRUPTED
from drumbeat.format import count, describe, one_line

_FILES = "likely a file system: look at `mount` and `dmesg`, and unmount or repair it"
_NAMES = "likely the name service: check /etc/resolv.conf, and `getent hosts NAME`"
_DRIVER = "likely the driver: reload it, or restart this host"
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


class Check(NamedTuple):
    """A row. The function's first line says what it checks; ``stalled`` is for one that hangs."""

    name: str
    run: Callable[..., Findings]
    stalled: str = _FILES
    limit_s: float = 5.0
    targets: Callable[[Host], Sequence[str]] | None = None  # it runs for each of them


CHECKS = (
    Check(
        "coordinator", coordinator.check_coordinator, _NAMES, 15.0, lambda host: host.coordinators
    ),
    Check("other host", network.check_peer, _NAMES, 10.0, lambda host: host.peers),
    Check("interfaces", network.check_interfaces, _NAMES),
    Check("own name", network.check_own_name, _NAMES),
    Check("proxies", network.check_proxies),
    Check("shared memory", resources.check_shared_memory),
    Check("TMPDIR", resources.check_temporary_directory),
    Check("log directory", resources.check_log_directory),
    Check("limits", resources.check_limits),
    Check("cgroup", resources.check_cgroup),
    Check("tracing", resources.check_tracing),
    Check("GPUs", programs.check_gpus, _DRIVER),
    Check("torch", programs.check_torch, limit_s=programs.TORCH_S + 5.0),
    Check("variables", programs.check_variables),
    Check("leftovers", programs.check_leftovers),
)


async def examine(host: Host, checks: Sequence[Check] = CHECKS) -> list[tuple[str, str, Finding]]:
    """Return what was found, without secrets, beside the check and its target."""
    redact = Redactor(host.environment, os.path.exists)

    async def run(check: Check, *targets: str) -> list[tuple[str, str, Finding]]:
        found = await _run(check, partial(check.run, host, *targets))
        hidden = (Finding(level, *map(redact, map(one_line, texts))) for level, *texts in found)
        return [(check.name, "".join(targets), finding) for finding in hidden]

    rows = [
        run(check, *target)
        for check in checks
        for target in ([()] if check.targets is None else zip(check.targets(host)))
    ]
    return [row for each in await asyncio.gather(*rows) for row in each]


async def _run(check: Check, work: Callable[[], Findings]) -> list[Finding]:
    findings, thread = list[Finding](), FileThread(check.name)
    try:
        await thread.run(lambda: findings.extend(work()), timeout_s=check.limit_s)
    except FilesStalled:  # its thread may still add to the list
        return [*findings, fail(f"no answer within {check.limit_s:g} s", check.stalled)]
    except Exception as error:  # noqa: BLE001 - one check must not hide the others
        findings.append(fail(f"the check broke: {describe(error)}", "report this as a bug"))
    thread.close()
    return findings or [ok("nothing to report")]


def diagnose(host: Host) -> int:
    """Check this host, write what was found, and return the exit code."""
    try:
        if host.settings.listen is not None:
            return network.listen(host.settings.listen)
        rows = asyncio.run(examine(host))
        levels = [found.level for *_, found in rows]
        if host.settings.output == "json":
            findings = [{"check": name, "target": to} | found._asdict() for name, to, found in rows]
            click.echo(json.dumps({"host": host.name, "version": VERSION, "findings": findings}))
        else:
            failures, warnings = levels.count(Level.FAIL), levels.count(Level.WARN)
            summary = f"{count(failures, 'failure')}, {count(warnings, 'warning')}"
            click.echo("\n".join([*(_line(*row) for row in rows), summary]))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        # What Python still holds must not fail at the end once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):  # as of `head`, which has seen enough
            click.echo(f"agent: error: standard output cannot be written: {error}", err=True)
        return 1
    return int(Level.FAIL in levels)


def _line(check: str, target: str, found: Finding) -> str:
    level = click.style(f"{found.level:4}", _COLOURS[found.level])
    advice = f"\n      -> {found.advice}" if found.advice else ""
    return f"{level}  {f'{check} {target}'.strip()}: {found.text}{advice}"
