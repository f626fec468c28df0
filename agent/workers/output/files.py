"""Shell. Decides where the output of a host's workers goes, round by round."""

import os
import shutil
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import structlog

from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.kinds import NOWHERE
from drumbeat.agent.workers.output.kept import (
    STDERR,
    STDOUT,
    Kept,
    KeptFile,
    KeptOutput,
    NotKept,
    StreamKey,
)
from drumbeat.agent.workers.output.logs import CONSOLE, LogsDest, LogsSpecs, make_logs_specs
from drumbeat.agent.workers.output.rules import OutputRules
from drumbeat.agent.workers.output.sources import FollowedFile, OutputPipe
from drumbeat.agent.workers.output.tail import STALL_S, Tail
from drumbeat.command.live_line import device_of, line_at
from drumbeat.text.format import describe
from worker_sdk import context

log = structlog.get_logger()

PRIVATE_LOGS = "logs"
ROUNDS_KEPT_MAX = 8  # whose folders in the private directory are kept, the one that runs included
_NOT_CAPTURED = ("stdout not captured", "stderr not captured")  # as events of the log
CLOSE_STALL_S = 2.0  # how long the console may take nothing at the end before the rest is given up


def is_one_place(first: int, second: int) -> bool:
    """Return whether two descriptors lead to the same file or pipe; a terminal is none."""
    try:
        return not os.isatty(first) and os.fstat(first)[1:3] == os.fstat(second)[1:3]
    except OSError:  # one of them is closed
        return False


class OutputError(Exception):
    """The output of a round can't go where it is meant to; the message says why."""


@dataclass(slots=True)
class _WorkerFiles:
    error_file: Path
    fault_file: Path
    kept: dict[int, Kept] = field(default_factory=dict)  # STDOUT, STDERR
    sources: list[FollowedFile | OutputPipe] = field(default_factory=list)


class WorkerOutput:
    """The files, the tee, what is kept, and the last words of this host's workers.

    Rounds come one after another: `prepare` is called when nothing of the one before is alive.
    Raises an `AgentError` if the configuration can't be used.
    """

    def __init__(self, config: AgentConfig, directory: PrivateDirectory) -> None:
        self._config = config
        # A class of the user's decides itself what it keeps.
        is_place_known = config.logs_specs is not None or config.log_dir is not None
        self._is_kept = is_place_known or {config.redirects, config.tee} != {NOWHERE}
        self._is_place_unlogged = self._is_kept and not is_place_known
        self._is_failure_logged = False  # a stream that could not be captured
        self.directory = directory
        self._specs = self._make_specs()
        # Threads of their own: a file that can't be read now must not hold up the pipes.
        self._tail = Tail("tee")
        # At a terminal that takes nothing, as after Ctrl-S, its user waits for the end.
        stdout_stall_s = CLOSE_STALL_S if os.isatty(STDOUT) else STALL_S
        stdout = Tail("stdout", stdout_stall_s)
        # By one thread, if both lead to one place: it writes whole lines there.
        self._is_one_place = is_one_place(STDOUT, STDERR)
        stderr = stdout if self._is_one_place else Tail("stderr", CLOSE_STALL_S)
        self._pipe_tails = {STDOUT: stdout, STDERR: stderr}
        self.kept = KeptOutput()
        patterns = config.output_patterns
        self.rules = OutputRules(patterns) if patterns else None
        # Of their own: a console that takes nothing must not keep files from being matched.
        self._rules_tail = Tail("matched files")
        self._unmatched: set[str] = set()  # streams that patterns don't see, once that is logged
        # Of the latest round, by its id and the local rank.
        self._workers: dict[tuple[int, int], _WorkerFiles] = {}

    @property
    def log_dir(self) -> Path:
        """Where the files of the workers are."""
        root = getattr(self._specs, "root_log_dir", "")  # a foreign class may have none
        return self.directory.path if root in ("", os.devnull) else Path(root)

    def prepare(self, round_id: int, envs: dict[int, dict[str, str]]) -> dict[int, tuple[str, str]]:
        """Make the files of a round; return each worker's stdout and stderr by local rank.

        ``""`` stands for the agent's own. What a worker has to know is added to its environment in
        ``envs``. Raises ``OutputError``.
        """
        self._end_round()
        try:
            before = self.directory.path
            # What a cleaner has removed is made again; elsewhere, if it can't be where it was.
            if self.directory.ensure() != before and not self._is_kept:
                self._specs = self._make_specs()
            if not self._is_kept:
                self.directory.ensure(PRIVATE_LOGS)
            self._prune()
            if self.rules is not None:
                self.rules.begin()
            dest = self._specs.reify(envs)
            for rank, env in envs.items():
                path = env.get(context.ERROR_FILE) or dest.error_files.get(rank, "")
                if path in ("", os.devnull):
                    # Without files users still want to know why a run failed.
                    folder = self.directory.ensure("errors", str(round_id), str(rank))
                    path = str(folder / "error.json")
                env[context.ERROR_FILE] = path
                faults = Path(path + context.FAULT_FILE_SUFFIX)
                faults.touch()  # its presence tells the worker to leave the stacks of a crash there
                self._workers[round_id, rank] = _WorkerFiles(Path(path), faults)
            if self._is_place_unlogged:
                self._is_place_unlogged = False
                log.info("output of the workers is kept", reason=self._specs.root_log_dir)
            self._tee(round_id, dest, envs)
            return self._connect(round_id, dest, envs)
        except Exception as error:
            # A foreign class may do what it likes, and its round ends with a report.
            why = f"the logs specs {type(self._specs).__name__} failed: {describe(error)}"
            if isinstance(error, OSError):  # without the number: "[Errno 28]" explains nothing
                where = f"{error.filename}: " if error.filename else ""
                why = f"{where}{error.strerror or error}"
            elif isinstance(error, PrivateDirectoryUnusable):
                why = str(error)
            raise OutputError(why) from error

    def ended(self, round_id: int, local_rank: int) -> tuple[Path | None, str, str]:
        """Return what a worker that is gone left; its last line may be shown unfinished.

        Its error file, if the round is the latest; that again if it was written and stays; and the
        last lines of its standard error.
        """
        worker = self._workers.get((round_id, local_rank))
        if worker is None:
            return None, "", ""
        for source in worker.sources:
            source.drain()
        path, stderr = worker.error_file, worker.kept.get(STDERR)
        tail = stderr.last_lines() if stderr is not None else ""
        is_kept = self._is_kept and not path.is_relative_to(self.directory.path)
        return path, str(path) if is_kept and path.is_file() else "", tail

    def files_of(self, round_id: int, local_rank: int) -> tuple[str, ...]:
        """Return the files that a worker of the latest round writes to: stdout's, then stderr's."""
        worker = self._workers.get((round_id, local_rank))
        kept = () if worker is None else worker.kept.values()
        return tuple(stream.path for stream in kept if isinstance(stream, KeptFile))

    def last_lines(self, round_id: int, local_rank: int) -> list[str]:
        """Return the last line of each stream of a worker that is gone, as far as it is kept."""
        if (worker := self._workers.get((round_id, local_rank))) is None:
            return []
        for source in worker.sources:
            source.drain()
        ends = (kept.last_lines().strip() for kept in worker.kept.values())
        return [end.rpartition("\n")[2] for end in ends]

    def close(self) -> None:
        """Show all that is left, unless a destination takes nothing."""
        self._end_round()
        for tail in set(self._pipe_tails.values()):
            tail.close()
        self._tail.close()
        self._rules_tail.close()
        if self.rules is not None:
            self.rules.close()

    def _prune(self) -> None:
        """Remove the oldest rounds' folders in the private directory; those of users stay."""
        private = self.directory.path
        for folder in (private / "errors", *(private / PRIVATE_LOGS).glob("*")):
            with suppress(OSError):
                rounds = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
                for path in rounds[: -ROUNDS_KEPT_MAX + 1]:  # one more comes
                    shutil.rmtree(path, ignore_errors=True)

    def _make_specs(self) -> LogsSpecs:
        if self._is_kept:
            return make_logs_specs(self._config.log_dir, self._config)
        with suppress(OSError):  # which they report
            self.directory.ensure(PRIVATE_LOGS)
        return make_logs_specs(str(self.directory.path / PRIVATE_LOGS), self._config)

    def _tee(self, round_id: int, dest: LogsDest, envs: dict[int, dict[str, str]]) -> None:
        config = self._config
        template = Template(config.log_line_prefix_template or "[${role_name}${local_rank}]:")
        for tees, console, filters, collected in (
            (dest.tee_stdouts, STDOUT, config.duplicate_stdout_filters, dest.filtered_stdout),
            (dest.tee_stderrs, STDERR, config.duplicate_stderr_filters, dest.filtered_stderr),
        ):
            is_filtered = tees and filters and collected not in ("", os.devnull)
            with open(collected, "ab") if is_filtered else nullcontext() as file:  # noqa: PTH123
                for rank, path in tees.items():
                    if path == os.devnull:
                        continue
                    prefix = template.safe_substitute(
                        role_name=config.role,
                        run_id=config.run_id,
                        local_rank=rank,
                        rank=envs[rank][context.RANK],
                    )
                    followed = self._tail.add(
                        path,
                        console,
                        prefix=os.fsencode(prefix),
                        filters=filters or (),
                        filtered=file.fileno() if file else None,
                        turn=round_id,
                    )
                    self._workers[round_id, rank].sources.append(followed)

    def _connect(
        self, round_id: int, dest: LogsDest, envs: dict[int, dict[str, str]]
    ) -> dict[int, tuple[str, str]]:
        """Return where workers write, by local rank; what is kept of it can be read from now on."""
        paths: dict[int, tuple[str, str]] = {}
        kept: dict[StreamKey, Kept | NotKept] = {}
        for local_rank, env in envs.items():
            places = {}
            for number, files in ((STDOUT, dest.stdouts), (STDERR, dest.stderrs)):
                path = files.get(local_rank, CONSOLE)
                places[number], stream = self._stream(round_id, local_rank, number, path)
                kept[StreamKey(round_id, int(env[context.RANK]), number)] = stream
                if not isinstance(stream, NotKept):
                    self._workers[round_id, local_rank].kept[number] = stream
            paths[local_rank] = places[STDOUT], places[STDERR]
        self.kept.begin(round_id, kept)
        return paths

    def _stream(
        self, round_id: int, local_rank: int, number: int, path: str
    ) -> tuple[str, Kept | NotKept]:
        """Return where one stream of a worker goes, and what of it is kept."""
        config = self._config
        name = "stdout" if number == STDOUT else "stderr"
        rules, worker = self.rules, self._workers[round_id, local_rank]
        key = WorkerKey(round_id, local_rank)
        if path not in (CONSOLE, os.devnull):
            if rules is not None and (os.path.isfile(path) or not os.path.exists(path)):  # noqa: PTH110, PTH113
                worker.sources.append(self._rules_tail.add_reader(path, rules.add(key)))
            elif rules is not None:
                self._tell_unmatched(name, f"{path} is no file")
            return path, KeptFile(path)
        is_captured = config.stdout_capture if number == STDOUT else config.stderr_capture
        # A report needs the end of stderr; stdout is for readers and patterns, and there may be
        # none. Nor may it be written where a line of ours stands, without our going out of the way.
        # And what goes straight to where standard error goes, too, would stand within its lines.
        is_alone = config.is_standalone and not self._is_one_place
        is_read = number == STDERR or not is_alone or line_at(device_of(number))
        if not is_captured or not (is_read or rules or config.preflight):
            if rules is not None:
                why = f"it does not pass the agent: --{name}-capture is off; redirect it, or tee it"
                self._tell_unmatched(name, why)
            return path, NotKept(f"its {name} goes straight to its agent's console")
        pipe_path = str(self.directory.ensure() / f"{name}_{local_rank}")
        try:
            pipe = self._pipe_tails[number].add_pipe(pipe_path, number, is_shown=path == CONSOLE)
        except OSError as error:
            # Its end is missing in a report then; that is no reason not to train.
            if not self._is_failure_logged:
                why = f"of local rank {local_rank}: {error.strerror}; logged once"
                log.warning(_NOT_CAPTURED[number == STDERR], reason=why)
            self._is_failure_logged = True
            return path, NotKept(f"its {name} could not be captured: {error.strerror}")
        pipe.on_news = self.kept.tell
        if rules is not None:
            pipe.on_chunk = rules.add(key, pipe.has_unread)
        worker.sources.append(pipe)
        return pipe.path, pipe.kept

    def _tell_unmatched(self, name: str, why: str) -> None:
        """Log once that patterns do not see a stream."""
        if name not in self._unmatched:
            self._unmatched.add(name)
            log.warning("output not matched", reason=f"{name}: {why}")

    def _end_round(self) -> None:
        for worker in self._workers.values():
            for source in worker.sources:
                source.finish()
            with suppress(OSError):
                if not worker.fault_file.stat().st_size:
                    worker.fault_file.unlink()
        self._workers.clear()
        self.kept.ended()
