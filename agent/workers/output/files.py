"""Shell. Owns where the output of a host's workers goes, round by round, until the agent ends."""

import os
import stat
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import structlog

from agent.errors import PrivateDirectoryUnusable
from agent.runtime.private_directory import PrivateDirectory
from agent.settings.config import AgentConfig
from agent.settings.kinds import NOWHERE
from agent.workers.output.lines import LAST_BYTES_MAX, last_lines
from agent.workers.output.logs import CONSOLE, LogsDest, LogsSpecs, make_logs_specs
from agent.workers.output.streams import FollowedFile, StderrPipe
from agent.workers.output.tail import Tail
from drumbeat.format import describe
from worker_sdk import context

log = structlog.get_logger()

STDOUT, STDERR = 1, 2

CLOSE_STALL_S = 2.0
"""How long the console may take nothing at the end before the rest of stderr is given up."""
LOGS = "logs"
"""In the agent's own directory: files of workers that were not asked for."""


class OutputError(Exception):
    """The output of a round can't go where it is meant to; the message says why."""


@dataclass(slots=True)
class _WorkerFiles:
    error_file: Path
    stderr: str | StderrPipe = ""
    teed: list[FollowedFile] = field(default_factory=list)


class WorkerOutput:
    """The files, the tee and the last words of this host's workers.

    Rounds come one after another: `prepare` is called when nothing of the one before is alive.
    Raises an `AgentError` if the configuration can't be used.
    """

    def __init__(self, config: AgentConfig, directory: PrivateDirectory) -> None:
        self._config = config
        # A foreign class knows itself what it keeps.
        is_place_known = config.logs_specs is not None or config.log_dir is not None
        self._is_kept = is_place_known or {config.redirects, config.tee} != {NOWHERE}
        self._is_told = is_place_known or not self._is_kept
        self._is_capture_told = False
        self.directory = directory
        self._specs = self._make_specs()
        # Two threads: a file that can't be read now must not hold up the pipes.
        self._tail, self._stderr_tail = Tail("tee"), Tail("stderr")
        self._turn = 0
        # Of the latest round, by its id and the local rank.
        self._workers: dict[tuple[int, int], _WorkerFiles] = {}

    def prepare(self, round_id: int, envs: dict[int, dict[str, str]]) -> dict[int, tuple[str, str]]:
        """Make the files of a round; return each worker's stdout and stderr by local rank.

        ``""`` stands for the agent's own. What a worker has to know is added to its environment in
        ``envs``. Raises ``OutputError``.
        """
        self._end_round()
        before = self.directory.path
        try:
            # What a cleaner has removed is made again; elsewhere, if it can't be where it was.
            if self.directory.ensure() != before and not self._is_kept:
                self._specs = self._make_specs()
            dest = self._specs.reify(envs)
            workers = {rank: self._files_of(round_id, rank, envs[rank], dest) for rank in envs}
            if not self._is_told:
                self._is_told = True
                log.info("output of the workers is kept", reason=self._specs.root_log_dir)
            self._follow(dest, workers, envs)
            return {
                rank: (dest.stdouts.get(rank, CONSOLE), self._stderr_of(rank, worker, dest))
                for rank, worker in workers.items()
            }
        except Exception as error:
            # A foreign class may do what it likes, and its round ends with a report.
            why = f"the logs specs {type(self._specs).__name__} failed: {describe(error)}"
            if isinstance(error, OSError):  # without the number: "[Errno 28]" explains nothing
                where = f"{error.filename}: " if error.filename else ""
                why = f"{where}{error.strerror or error}"
            elif isinstance(error, PrivateDirectoryUnusable):
                why = str(error)
            raise OutputError(why) from error

    def error_file(self, round_id: int, local_rank: int) -> Path | None:
        """Return where a worker leaves its error; None if the round is not the latest."""
        worker = self._workers.get((round_id, local_rank))
        return worker.error_file if worker else None

    def kept_error_file(self, round_id: int, local_rank: int) -> str:
        """Return where a worker has left its error, if it did and the file stays there."""
        path = self.error_file(round_id, local_rank)
        if path is None or not self._is_kept or path.is_relative_to(self.directory.path):
            return ""
        return str(path) if path.is_file() else ""

    def ended(self, round_id: int, local_rank: int) -> None:
        """Take note that a worker is gone: its last line may be shown unfinished."""
        if worker := self._workers.get((round_id, local_rank)):
            for file in worker.teed:
                file.finish()

    def last_lines(self, round_id: int, local_rank: int) -> str:
        """Return the last lines that a worker which is gone wrote to its standard error."""
        worker = self._workers.get((round_id, local_rank))
        stderr = worker.stderr if worker else ""
        return stderr.last_lines() if isinstance(stderr, StderrPipe) else _end_of(stderr)

    def close(self) -> None:
        """Show all that is left, unless a destination takes nothing."""
        self._end_round()
        self._stderr_tail.close(CLOSE_STALL_S)
        self._tail.close()

    def _make_specs(self) -> LogsSpecs:
        log_dir = str(self.directory.path / LOGS) if not self._is_kept else self._config.log_dir
        return make_logs_specs(log_dir, self._config)

    def _files_of(
        self, round_id: int, local_rank: int, env: dict[str, str], dest: LogsDest
    ) -> _WorkerFiles:
        text = env.get(context.ERROR_FILE) or dest.error_files.get(local_rank, "")
        if text in ("", os.devnull):
            # Without files users still want to know why a run failed.
            folder = self.directory.ensure("errors", str(round_id), str(local_rank))
            text = str(folder / "error.json")
        env[context.ERROR_FILE] = text
        # Its presence tells the worker to leave the stacks of a crash there.
        _fault_file(Path(text)).touch()
        worker = self._workers[round_id, local_rank] = _WorkerFiles(Path(text))
        return worker

    def _follow(
        self, dest: LogsDest, workers: dict[int, _WorkerFiles], envs: dict[int, dict[str, str]]
    ) -> None:
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
                        turn=self._turn,
                    )
                    workers[rank].teed.append(followed)

    def _stderr_of(self, local_rank: int, worker: _WorkerFiles, dest: LogsDest) -> str:
        path = dest.stderrs.get(local_rank, CONSOLE)
        if path not in (CONSOLE, os.devnull):
            worker.stderr = path
        elif self._config.stderr_capture:
            pipe_path = str(self.directory.ensure() / f"stderr_{local_rank}")
            try:
                pipe = self._stderr_tail.add_pipe(pipe_path, STDERR, is_shown=path == CONSOLE)
            except OSError as error:
                # Its end is missing in a report then; that is no reason not to train.
                if not self._is_capture_told:
                    why = f"of local rank {local_rank}: {error.strerror}; told once"
                    log.warning("stderr not captured", reason=why)
                self._is_capture_told = True
            else:
                worker.stderr = pipe
                return pipe.path
        return path

    def _end_round(self) -> None:
        for worker in self._workers.values():
            if isinstance(worker.stderr, StderrPipe):
                worker.stderr.finish()
            for file in worker.teed:
                file.finish()
            faults = _fault_file(worker.error_file)
            with suppress(OSError):
                if not faults.stat().st_size:
                    faults.unlink()
        self._workers.clear()
        self._turn += 1


def _fault_file(error_file: Path) -> Path:
    return Path(f"{error_file}{context.FAULT_FILE_SUFFIX}")


def _end_of(path: str) -> str:
    """Return the last lines of a file; nothing if it is no regular one."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError), open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            file.seek(max(0, status.st_size - LAST_BYTES_MAX))
            return last_lines(file.read(LAST_BYTES_MAX))
    return ""
