"""Shell. Keeps a template for a supervisor; loaded only if preloading is asked for."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from drumbeat.agent.model import messages
from drumbeat.agent.workers.supervisor import template_keeper
from drumbeat.agent.workers.supervisor.spawner import WorkerSpawner, opened_outputs
from drumbeat.agent.workers.supervisor.template_process import Broken, Refused, TemplateProcess
from drumbeat.agent.workers.supervisor.worker_group import SpawnFinished


class WarmStarts:
    """Keeps a template, and has it start workers; commands for the worker group come by here.

    ``poll`` is what the supervisor waits with, ``carry`` takes the commands on, ``report`` tells
    the agent, and ``end_everything`` is called when it is unknown what was forked.
    """

    def __init__(
        self,
        preload: messages.Preload,
        spawn: WorkerSpawner,
        poll: select.poll,
        *,
        carry: Callable[[messages.GroupCommand], None],
        report: Callable[[messages.SupervisorEvent], None],
        end_everything: Callable[[], object],
    ) -> None:
        self._spawn = spawn
        self._poll = poll
        self._carry = carry
        self._report = report
        self._end_everything = end_everything
        self._keeper = template_keeper.TemplateKeeper(preload)
        self._template: TemplateProcess | None = None
        self._is_warm = False  # whether what is being started is for the template

    @property
    def spared(self) -> tuple[int, ...]:
        """What is below this process and no worker: the template."""
        return () if self._template is None else (self._template.pid,)

    @property
    def deadline(self) -> float | None:
        """When `look_at_clock` is due, in monotonic seconds."""
        return self._keeper.deadline

    def look_at_clock(self) -> None:
        """Do what is due."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.handle(template_keeper.DeadlineReached())

    def start(self) -> None:
        """Start the first template."""
        self._execute(self._keeper.start(now=time.monotonic()))

    def round_ended(self) -> None:
        """Take in that nothing of a round is alive."""
        self.handle(template_keeper.RoundEnded())

    def handle(self, event: template_keeper.Event) -> None:
        """Hand an event to the keeper of the template, and do what it wants."""
        self._execute(self._keeper.handle(event, now=time.monotonic()))

    def _execute(self, effects: list[template_keeper.Effect]) -> None:
        for effect in effects:
            match effect:
                case template_keeper.Carry():
                    self._is_warm = effect.is_warm
                    self._carry(effect.command)
                case template_keeper.Launch():
                    self._launch(effect)
                case template_keeper.End():
                    self._drop()
                case template_keeper.CheckSources() if self._template is not None:
                    self._template.check_sources()
                case template_keeper.ReadLateImports() if self._template is not None:
                    self.handle(self._template.late_imports())
                case template_keeper.CheckSources() | template_keeper.ReadLateImports():
                    pass  # it has ended meanwhile
                case report:
                    self._report(report)

    def _launch(self, launch: template_keeper.Launch) -> None:
        try:
            self._template = TemplateProcess(launch, self._spawn)
        except OSError as error:
            how = f"could not be started: {error.strerror or error}"
            self.handle(template_keeper.Ended(how=how))
        else:
            self._poll.register(self._template.connection, select.POLLIN)

    def _drop(self) -> None:
        if (template := self._template) is not None:
            self._template = None
            self._listen_no_more(template)
            template.end()

    def _listen_no_more(self, template: TemplateProcess) -> None:
        with suppress(KeyError):  # done already
            self._poll.unregister(template.connection)

    def hear(self) -> None:
        """Take what the template has said by now."""
        if (template := self._template) is None:
            return
        for event in template.read():
            self.handle(event)
        if template.is_closed and template is self._template:
            self._listen_no_more(template)
            template.kill()  # unless it is ending: it has become another program

    def reaped(self, exit_codes: dict[int, int]) -> None:
        """Take in which processes have ended, after the worker group has."""
        template = self._template
        if template is None or (code := exit_codes.get(template.pid)) is None:
            return
        self.hear()  # its last words
        if self._template is template:
            self._drop()
            self.handle(template_keeper.Ended(how=_describe_end(code)))

    def fork(self, command: messages.StartWorkers) -> SpawnFinished | None:
        """Have the template start workers; None if they are to be started without it."""
        template, self._is_warm = self._template if self._is_warm else None, False
        if template is None:
            return None
        try:
            pids = template.fork(command, opened_outputs)
        except Refused as refused:
            if refused.event is not None:
                self.handle(refused.event)
            return None
        except Broken as broken:
            # Nothing else is alive now. What it may have forked is ended with it.
            self._drop()
            self._end_everything()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self.handle(template_keeper.Ended(how=str(broken)))
            return None
        self.handle(template_keeper.Forked())
        return SpawnFinished(pids=pids)


def _describe_end(exit_code: int) -> str:
    if -exit_code in {*signal.Signals}:
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
