"""Shell. All checks in one table. They run at the same time, each with a limit of its own."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import click

from drumbeat import VERSION
from drumbeat.access.redactor import Redactor
from drumbeat.agent.doctor import coordinator, network, programs, resources
from drumbeat.agent.doctor.model import Finding, Findings, Host, Level, fail, ok
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.format import count, describe, one_line

_FILES = "a file system does not answer: look at `mount` and `dmesg`, and unmount or repair it"
_NAMES = "the name service does not answer: check /etc/resolv.conf, and `getent hosts NAME`"
_DRIVER = "the driver does not answer: reload it, or restart this host"
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


async def examine(
    host: Host, checks: Sequence[Check] = CHECKS
) -> list[tuple[str, str, list[Finding]]]:
    """Return the name, the target and the findings of each check, without secrets."""
    rows = [
        (check, target)
        for check in checks
        for target in (check.targets(host) if check.targets else ("",))
    ]
    found = await asyncio.gather(*(_run(host, *row) for row in rows))
    redact = Redactor(host.environment, os.path.exists)
    return [
        (
            check.name,
            target,
            [Finding(level, *(redact(one_line(word)) for word in words)) for level, *words in each],
        )
        for (check, target), each in zip(rows, found, strict=True)
    ]


async def _run(host: Host, check: Check, target: str) -> list[Finding]:
    findings, thread = list[Finding](), FileThread(check.name)
    work = partial(check.run, host, *((target,) if check.targets else ()))
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
    if host.settings.listen is not None:
        return network.listen(host.settings.listen)
    began, answers = time.monotonic(), asyncio.run(examine(host))
    rows = [(name, target, found) for name, target, each in answers for found in each]
    levels = [found.level for *_, found in rows]
    if host.settings.output == "json":
        findings = [{"check": name, "target": to} | found._asdict() for name, to, found in rows]
        took_s = round(time.monotonic() - began, 3)
        document = {"host": host.name, "version": VERSION, "took_s": took_s, "findings": findings}
        click.echo(json.dumps(document))
        return int(Level.FAIL in levels)
    for name, target, found in rows:
        level = click.style(f"{found.level:4}", _COLOURS[found.level])
        click.echo(f"{level}  {f'{name} {target}'.strip()}: {found.text}")
        if found.advice:
            click.echo(f"      -> {found.advice}")
    failures, warnings = levels.count(Level.FAIL), levels.count(Level.WARN)
    click.echo(f"{count(failures, 'failure')}, {count(warnings, 'warning')}")
    return int(Level.FAIL in levels)
