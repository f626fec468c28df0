"""``agent join`` with real workers: where their output goes, and what a report has of it."""

import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE_S, ROOT

# Ends without a newline, with a progress bar and bytes that are no text.
BYTES = b"start\n 10%\r 20%\r 30%\r\nraw \x00\xff\xfe\x1b[31m\x1b[0m\n" + b"z" * 300_000 + b"\nend"

WRITE = "import os\nrank = int(os.environ['RANK'])\nround = int(os.environ['DRUMBEAT_ROUND'])\n"
HELLO = (
    WRITE
    + """
import sys
print(f"out {rank} a\\nout {rank} b")
print(f"err {rank} a", file=sys.stderr)
sys.stdout.write(f"out {rank} end")
sys.stderr.write(f"err {rank} end")
"""
)
FAIL = (
    WRITE + "os.write(2, b''.join(b'line %d\\n' % n for n in range(60)) + b'last')\nos._exit(3)\n"
)


class Joined:
    """``agent join --standalone`` that has ended, with the bytes it wrote."""

    def __init__(
        self, folder: Path, source: str, *options: str, env: dict[str, str] | None = None
    ) -> None:
        (folder / "train.py").write_text(source)
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        with Cluster() as cluster:
            environment = {
                **cluster.environment(),
                "TMPDIR": str(self.temporary),
                "PYTHONPATH": f"{ROOT}:{folder}",
                **(env or {}),
            }
            command = (sys.executable, "-m", "drumbeat.agent", "join", "--standalone")
            argv = [*command, "--log-format", "json", *options]
            done = subprocess.run(
                [*argv, str(folder / "train.py")],
                env=environment,
                capture_output=True,
                check=False,
                timeout=DEADLINE_S,
            )
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def text(self) -> str:
        """Standard error as text."""
        return self.err.decode(errors="replace")

    @property
    def passed_on(self) -> bytes:
        """Standard error without the agent's log, a line of which may stand anywhere."""
        return re.sub(rb'\{"[^\n]*\}\n', b"", self.err)

    def shown(self) -> list[str]:
        """Lines of standard error that are not the agent's log."""
        return [line for line in self.text.splitlines() if not line.startswith('{"')]

    def kept(self) -> list[str]:
        """What is left among the temporary files."""
        names = (path.name for path in self.temporary.iterdir())
        return list(names)


def of_worker(line: str, rank: int) -> bool:
    return re.match(rf"\[default{rank}\]:", line) is not None


def test_by_default_output_is_passed_on_and_nothing_is_kept(tmp_path: Path) -> None:
    """Byte by byte."""
    joined = Joined(tmp_path, f"{HELLO}\nsys.stderr.buffer.write({BYTES!r})\n")
    assert joined.code == 0, joined.text
    assert joined.out == b"out 0 a\nout 0 b\nout 0 end"
    assert b"err 0 a\nerr 0 end" + BYTES in joined.passed_on
    assert joined.kept() == []


def test_without_capture_a_report_lacks_the_last_lines_of_stderr(tmp_path: Path) -> None:
    source = f"import sys\nsys.stderr.buffer.write({BYTES!r})\nsys.stderr.flush()\n{FAIL}"
    joined = Joined(tmp_path, source, "--stderr-capture", "off")
    assert joined.code == 1
    assert BYTES in joined.passed_on
    assert "line 59\nlast" in joined.text
    assert "last lines of stderr" not in joined.text


def test_what_is_redirected_is_in_files_only(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = ("--nproc-per-node", "2", "--run-id", "job", "--log-dir", str(logs))
    joined = Joined(tmp_path, HELLO, *options, "-r", "0:3,1:1")
    assert joined.code == 0, joined.text
    (folder,) = logs.glob("job_*/attempt_0")
    assert (folder / "0/stdout.log").read_text() == "out 0 a\nout 0 b\nout 0 end"
    assert (folder / "0/stderr.log").read_text() == "err 0 a\nerr 0 end"
    assert (folder / "1/stdout.log").read_text() == "out 1 a\nout 1 b\nout 1 end"
    assert not (folder / "1/stderr.log").exists()
    assert joined.out == b""
    assert "err 0" not in joined.text
    assert b"err 1 a\nerr 1 end" in joined.passed_on


def test_files_without_a_directory_of_ones_own_are_kept_and_named(tmp_path: Path) -> None:
    joined = Joined(tmp_path, HELLO, "-r", "1")
    assert joined.code == 0, joined.text
    (kept,) = joined.kept()
    assert str(joined.temporary / kept) in joined.text
    (file,) = (joined.temporary / kept).glob("*/attempt_0/0/stdout.log")
    assert file.read_text().endswith("out 0 end")


def test_prefix_and_filters(tmp_path: Path) -> None:
    joined = Joined(
        tmp_path,
        HELLO,
        *("--tee", "3", "--log-dir", str(tmp_path), "--role", "eval", "--run-id", "job"),
        *("--duplicate-stdout-filters", "0 b,end", "--duplicate-stderr-filters", "nothing"),
        env={
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${run_id} ${role_name} $rank ${local_rank}|"
        },
    )
    assert joined.out == b"".join(
        b"job eval 0 0|out 0 %s\n" % word for word in (b"a", b"b", b"end")
    )
    (folder,) = tmp_path.glob("job_*/attempt_0")
    lines = (folder / "filtered_stdout.log").read_text().splitlines()
    assert lines == ["job eval 0 0|out 0 b", "job eval 0 0|out 0 end"]
    assert (folder / "filtered_stderr.log").read_text() == ""


def test_what_is_teed_is_complete_and_prefixed_for_the_chosen_workers(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "3", "--local-ranks-filter", "0,2")
    joined = Joined(tmp_path, HELLO, *options, "-t", "3", "--log-dir", str(tmp_path))
    assert joined.code == 0, joined.text
    for rank in (0, 2):
        own = [line for line in joined.out.decode().splitlines() if of_worker(line, rank)]
        assert own == [f"[default{rank}]:out {rank} {word}" for word in ("a", "b", "end")]
        errors = [line for line in joined.shown() if of_worker(line, rank)]
        assert errors == [f"[default{rank}]:err {rank} {word}" for word in ("a", "end")]
    assert joined.out.endswith(b"\n")
    assert not any(of_worker(line, 1) for line in joined.out.decode().splitlines())
    assert "err 1" not in joined.text
    (file,) = tmp_path.glob("*/attempt_0/1/stdout.log")
    assert file.read_text().endswith("out 1 end")


def test_a_report_has_the_last_lines_of_stderr(tmp_path: Path) -> None:
    joined = Joined(tmp_path, FAIL)
    assert joined.code == 1
    _, _, report = joined.text.partition("last lines of stderr:\n")
    lines = report.split("=" * 20)[0].splitlines()
    assert lines == [f"    line {number}" for number in range(11, 60)] + ["    last"]


def test_a_report_names_the_files_that_have_all_output(tmp_path: Path) -> None:
    joined = Joined(tmp_path, FAIL, "-r", "2", "-t", "1", "--log-dir", str(tmp_path))
    assert joined.code == 1
    files = [str(next(tmp_path.glob(f"*/attempt_0/0/{name}.log"))) for name in ("stdout", "stderr")]
    assert f"  output    : {files[0]} and {files[1]}\n" in joined.text


def test_a_program_may_open_its_stderr_anew(tmp_path: Path) -> None:
    """A shell's ``> /dev/stderr`` would empty a file."""
    source = "import os\nos.system('for n in 1 2 3 4; do echo line $n > /dev/stderr; done')\n"
    joined = Joined(tmp_path, source)
    assert joined.shown() == ["line 1", "line 2", "line 3", "line 4"]


def test_on_a_terminal_stderr_is_a_terminal(tmp_path: Path) -> None:
    """Of the same size, and line ends are turned once, not twice."""
    (tmp_path / "train.py").write_text(
        "import os\nsize = os.get_terminal_size(2)\n"
        "said = f'{os.isatty(2)} {size.columns} {size.lines}'\n"
        "os.write(2, f'{said}\\n1%\\r2%\\r'.encode())\nos._exit(5)\n"
    )
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 77))
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(master, 65536):
                chunks.append(chunk)
        except OSError:
            pass  # how a terminal ends

    reader = threading.Thread(target=read)
    with Cluster() as cluster:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "drumbeat.agent",
                "join",
                "--standalone",
                str(tmp_path / "train.py"),
            ],
            env=cluster.environment(),
            cwd=ROOT,
            stderr=slave,
        )
        os.close(slave)
        reader.start()
        assert process.wait(DEADLINE_S) == 1
    reader.join()
    os.close(master)
    data = b"".join(chunks)
    assert b"True 77 33\r\n1%\r2%\r" in data
    assert b"last lines of stderr:\r\n    True 77 33\r\n    2%\r\n" in data


SPECS = """
import os
from drumbeat.agent.multiprocessing import LogsDest, LogsSpecs, Std

class Flat(LogsSpecs):
    '''One folder, files by rank.'''
    @property
    def root_log_dir(self):
        return self._root_log_dir
    def reify(self, envs):
        assert self._tee == Std.OUT and self._local_ranks_filter == {0}, "as torchrun makes it"
        dest = LogsDest()
        for local_rank, env in envs.items():
            env["OF_SPECS"] = env["TORCHELASTIC_RUN_ID"]
            path = os.path.join(self.root_log_dir, f"rank{env['RANK']}.txt")
            dest.stdouts[local_rank] = dest.tee_stdouts[local_rank] = path
            dest.stderrs[local_rank] = ""
        return dest

class Raises(Flat):
    def reify(self, envs):
        raise RuntimeError("reify is broken")

class Unmade(Flat):
    def __init__(self, **settings):
        raise RuntimeError("never made")
"""


def offer_specs(folder: Path) -> None:
    (folder / "own_specs.py").write_text(SPECS)
    info = folder / "own_specs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-specs\nVersion: 1\n")
    names = {"flat": "Flat", "raises": "Raises", "unmade": "Unmade"}
    entries = "\n".join(f"{name} = own_specs:{kind}" for name, kind in names.items())
    (info / "entry_points.txt").write_text(f"[torchrun.logs_specs]\n{entries}\n")


def join_with(specs: str, folder: Path) -> Joined:
    offer_specs(folder)
    source = WRITE + "print('of', os.environ['OF_SPECS'])\nraise RuntimeError('boom')\n"
    options = ("-t", "1", "--local-ranks-filter", "0", "--run-id", "job", "--log-dir")
    return Joined(folder, source, *options, str(folder), "--logs-specs", specs)


def test_logs_specs_of_a_package_decide_on_files(tmp_path: Path) -> None:
    joined = join_with("flat", tmp_path)
    assert (tmp_path / "rank0.txt").read_text() == "of job\n"
    assert joined.out == b"[default0]:of job\n"
    assert joined.code == 1
    assert "RuntimeError: boom" in joined.text.partition("last lines of stderr")[2]
    assert joined.kept() == []


@pytest.mark.parametrize(
    ("specs", "code", "problem"),
    [
        ("raises", 1, "the logs specs Raises failed: RuntimeError: reify is broken"),
        ("unmade", 2, "the logs specs unmade cannot be used: RuntimeError: never made"),
    ],
)
def test_logs_specs_that_fail_are_named(
    tmp_path: Path, specs: str, code: int, problem: str
) -> None:
    joined = join_with(specs, tmp_path)
    assert joined.code == code
    assert problem in joined.text
    assert "Traceback" not in joined.text


@pytest.mark.slow
@pytest.mark.torch
def test_torchs_own_logs_specs_work(tmp_path: Path) -> None:
    options = ("--logs-specs", "default", "-t", "0:3", "--run-id", "job", "--log-dir")
    joined = Joined(tmp_path, HELLO, *options, str(tmp_path))
    assert joined.code == 0, joined.text
    assert joined.out == b"[default0]:out 0 a\n[default0]:out 0 b\n[default0]:out 0 end\n"
    (file,) = tmp_path.glob("job_*/attempt_0/0/stderr.log")
    assert file.read_text() == "err 0 a\nerr 0 end"
