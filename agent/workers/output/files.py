"""Shell. Owns where the output of a host's workers goes, round by round, until the agent ends."""

import os
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
PRIVATE_LOGS = "logs"
CLOSE_STALL_S = 2.0  # how long the console may take nothing before the rest of stderr is given up


class OutputError(Exception):
    """The output of a round can't go where it is meant to; the message says why."""


@dataclass(slots=True)
class _WorkerFiles:
    error_file: Path
    fault_file: Path
    stderr: Path | StderrPipe | None = None
    teed: list[FollowedFile] = field(default_factory=list)


class WorkerOutput:
    """The files, the tee and the last words of this host's workers.

    Rounds come one after another: `prepare` is called when nothing of the one before is alive.
    Raises an `AgentError` if the configuration can't be used.
    """

    def __init__(self, config: AgentConfig, directory: PrivateDirectory) -> None:
        self._config = config
        # A foreign class knows itself what it keeps.
        is_known = config.logs_specs is not None or config.log_dir is not None
        self._is_kept = is_known or {config.redirects, config.tee} != {NOWHERE}
        self._is_to_be_told = self._is_kept and not is_known
        self._is_capture_told = False
        self.directory = directory
        self._specs = self._make_specs()
        # Two threads: a file that can't be read now must not hold up the pipes.
        self._tail, self._stderr_tail = Tail("tee"), Tail("stderr", CLOSE_STALL_S)
        # Of the latest round, by its id and the local rank.
        self._workers: dict[tuple[int, int], _WorkerFiles] = {}

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
            if self._is_to_be_told:
                self._is_to_be_told = False
                log.info("output of the workers is kept", reason=self._specs.root_log_dir)
            self._follow(round_id, dest, envs)
            return {
                rank: (dest.stdouts.get(rank, CONSOLE), self._stderr_of(round_id, rank, dest))
                for rank in envs
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

    def ended(self, round_id: int, local_rank: int) -> tuple[Path | None, str, str]:
        """Return what a worker that is gone left; its last line may be shown unfinished.

        Its error file, if the round is the latest; that again if it was written and stays; and the
        last lines of its standard error.
        """
        worker = self._workers.get((round_id, local_rank))
        if worker is None:
            return None, "", ""
        for file in worker.teed:
            file.finish()
        path, stderr, tail = worker.error_file, worker.stderr, ""
        if isinstance(stderr, StderrPipe):
            tail = stderr.last_lines()
        elif stderr is not None:
            with suppress(OSError):
                if stderr.is_file():
                    with stderr.open("rb") as content:
                        content.seek(max(0, stderr.stat().st_size - LAST_BYTES_MAX))
                        tail = last_lines(content.read(LAST_BYTES_MAX))
        is_kept = self._is_kept and not path.is_relative_to(self.directory.path)
        return path, str(path) if is_kept and path.is_file() else "", tail

    def close(self) -> None:
        """Show all that is left, unless a destination takes nothing."""
        self._end_round()
        self._stderr_tail.close()
        self._tail.close()

    def _make_specs(self) -> LogsSpecs:
        if self._is_kept:
            return make_logs_specs(self._config.log_dir, self._config)
        with suppress(OSError):  # which they tell of
            self.directory.ensure(PRIVATE_LOGS)
        return make_logs_specs(str(self.directory.path / PRIVATE_LOGS), self._config)

    def _follow(self, round_id: int, dest: LogsDest, envs: dict[int, dict[str, str]]) -> None:
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
                    self._workers[round_id, rank].teed.append(followed)

    def _stderr_of(self, round_id: int, local_rank: int, dest: LogsDest) -> str:
        path = dest.stderrs.get(local_rank, CONSOLE)
        worker = self._workers[round_id, local_rank]
        if path not in (CONSOLE, os.devnull):
            worker.stderr = Path(path)
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
            with suppress(OSError):
                if not worker.fault_file.stat().st_size:
                    worker.fault_file.unlink()
        self._workers.clear()
