"""Shell. All checks in one table. They run at the same time, each with a limit of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click

from drumbeat import VERSION
from drumbeat.access.redactor import Redactor
from drumbeat.agent.doctor import coordinator, network, resources
from drumbeat.agent.doctor.model import LEVELS, Finding, Findings, Host, fail, ok
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.settings.doctor import DoctorSettings
from drumbeat.text.format import count, describe, one_line

_FILES = "likely a file system: look at `mount` and `dmesg`, and unmount or repair it"
_NAMES = "likely the name service: check /etc/resolv.conf, and `getent hosts NAME`"
_NONE = [ok("nothing to report")]
_DRIVER = "likely the driver: reload it, or restart this host"


class Check(NamedTuple):
    """A row. The function's first line says what it checks; ``stalled`` is for one that hangs."""

    name: str
    run: Callable[..., Findings]
    stalled: str = _FILES
    limit_s: float = 5.0
    targets: Callable[[Host], Sequence[str]] = lambda _: ("",)  # it runs for each of them


Row = dict[str, str]  # the check, its target, and a finding

CHECKS = (
    Check("coordinator", coordinator.check, _NAMES, 15.0, lambda host: host.coordinators),
    Check("other host", network.check_peer, _NAMES, 10.0, lambda host: host.peers),
    Check("interfaces", network.check_interfaces, _NAMES),
    Check("own name", network.check_own_name, _NAMES),
    Check("space", resources.check_space, targets=resources.directories),
    Check("limits", resources.check_limits),
    Check("cgroup", resources.check_cgroup),
    Check("tracing", resources.check_tracing),
    Check("GPUs", resources.check_gpus, _DRIVER),
    Check("torch", resources.check_torch, limit_s=resources.TORCH_S + 5.0),
    Check("variables", resources.check_variables),
    Check("proxies", network.check_proxies),
    Check("leftovers", resources.check_leftovers),
)


async def examine(host: Host, checks: Sequence[Check] = CHECKS) -> list[Row]:
    """Return what was found, without secrets."""
    redact = Redactor(host.environment, os.path.exists)

    async def run(check: Check, target: str) -> list[Row]:
        work = partial(check.run, host, target) if target else partial(check.run, host)
        findings, thread = list[Finding](), FileThread(check.name)
        try:
            await thread.run(lambda: findings.extend(work()), timeout_s=check.limit_s)
        except FilesStalled:  # its thread may still add to the list
            findings = [*findings, fail(f"no answer within {check.limit_s:g} s", check.stalled)]
        except Exception as error:  # noqa: BLE001 - one check must not hide the others
            findings.append(fail(f"the check broke: {describe(error)}", "report this as a bug"))
        finally:
            thread.close()
        shown = [(level, *map(redact, map(one_line, rest))) for level, *rest in findings or _NONE]
        row = {"check": check.name, "target": target}
        return [row | Finding(*parts)._asdict() for parts in shown]

    pending = (run(check, target) for check in checks for target in check.targets(host))
    return [row for rows in await asyncio.gather(*pending) for row in rows]


def diagnose(settings: DoctorSettings, environment: Mapping[str, str]) -> int:
    """Check this host, write what was found, and return the exit code."""
    if settings.listen is not None:
        return network.listen(settings.listen)
    host = Host(settings=settings, environment=environment)
    rows = asyncio.run(examine(host))
    document = {"host": host.name, "version": VERSION, "findings": rows}
    click.echo(json.dumps(document) if settings.output == "json" else _text(rows))
    return int(any(row["level"] == "fail" for row in rows))


def _text(rows: Sequence[Row]) -> str:
    lines, levels = list[str](), [row["level"] for row in rows]
    for name, target, level, text, advice in map(dict.values, rows):
        shown = click.style(f"{level:4}", LEVELS[level])
        lines.append(f"{shown}  {f'{name} {target}'.strip()}: {text}")
        lines += [f"      -> {advice}"] * bool(advice)
    summary = f"{count(levels.count('fail'), 'failure')}, {count(levels.count('warn'), 'warning')}"
    return "\n".join([*lines, summary])
