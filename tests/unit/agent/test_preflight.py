"""What is looked at on this host before an agent joins."""

import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from drumbeat.agent.errors import LogDirectoryUnusable, ScriptNotFound, UsageError
from drumbeat.agent.runtime import preflight
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.devices.nvml import visible_gpus

NOBODY = 65534


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A device directory of a host with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("0,1", 2),
        (" 3 , 0 ", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 1),
        ("0,-1,1", 1),
        ("0,4,1", 1),
        ("0,,1", 1),
        ("GPU-8932f937,GPU-1234", 2),
        ("MIG-GPU-1/1/0", 1),
    ],
)
def test_gpus_are_those_visible(devices: Path, visible: str | None, count: int) -> None:
    assert visible_gpus(visible, device_dir=devices) == count


@pytest.mark.parametrize("visible", [None, "0,1"])
def test_without_devices_nothing_is_visible(tmp_path: Path, visible: str | None) -> None:
    assert visible_gpus(visible, device_dir=tmp_path) == 0
    assert visible_gpus(visible, device_dir=tmp_path / "missing") == 0


@pytest.mark.parametrize("rule", ["error=x:fail", "oom:fail"])
def test_rules_with_a_pattern_need_the_library_regex(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda _name: None)
    config = AgentConfig(run_id="r", program=Program("program", "x"), restart_rule=(rule,))
    if rule == "oom:fail":
        assert preflight.check_restart_rules(config).restart_rule == (rule,)
        return
    with pytest.raises(UsageError) as caught:
        preflight.check_restart_rules(config)
    assert "error= needs the library regex" in str(caught.value)
    assert "drumbeat[patterns]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"oom:fail\n" * 65, "rules:65: more than 64 rules"),
        (b"#" * (64 * 1024 + 1), "more than 65536 characters"),
        (b"oom:fail\n\xff\xfe", "can't decode byte 0xff"),
        (b"oom:fail\nerror=(:fail", "rules:2: no regular expression"),
    ],
)
def test_a_file_of_rules_that_is_no_such_file_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "rules"
    path.write_bytes(content)
    config = AgentConfig(run_id="r", program=Program("program", "x"), restart_rules=str(path))
    with pytest.raises(UsageError) as caught:
        preflight.check_restart_rules(config)
    assert said in str(caught.value)


def test_a_readable_script_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    preflight.check_script(str(tmp_path / "train.py"))


def test_a_script_that_cannot_be_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptNotFound) as caught:
        preflight.check_script("train.py")
    assert str(caught.value) == (
        f"cannot run train.py: there is no such file (looked in {tmp_path})"
    )
    with pytest.raises(ScriptNotFound, match="it is a directory"):
        preflight.check_script(str(tmp_path))


@contextmanager
def without_rights_of_root() -> Iterator[None]:
    """Be somebody else for a while: root could read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_an_unreadable_script_is_refused(*, is_hidden: bool) -> None:
    """Whether it is the file or a directory above it that can't be read."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        script = directory / "train.py"
        script.touch(mode=0o644 if is_hidden else 0o000)
        directory.chmod(0o000 if is_hidden else 0o755)
        try:
            with without_rights_of_root(), pytest.raises(ScriptNotFound, match="cannot be read"):
                preflight.check_script(str(script))
        finally:
            directory.chmod(0o755)


def test_programs_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.touch(mode=0o755)
    preflight.check_program("tool", search_path=str(tmp_path))
    preflight.check_program(str(program), search_path="")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("tool", "no such program on PATH"),
        ("./", "it is a directory"),
        ("./data", "it is not executable"),
        ("./missing", "there is no such file"),
    ],
)
def test_a_program_that_cannot_be_run_is_named(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").touch(mode=0o644)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptNotFound, match=why) as caught:
        preflight.check_program(program, search_path=str(tmp_path))
    assert caught.value.args[0] == program


def test_metrics_without_the_package_that_writes_them_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = AgentConfig(program=Program("program", "true"), metrics_port="127.0.0.1:0")
    monkeypatch.setattr(preflight, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="--metrics-port: prometheus_client is not") as caught:
        preflight.check_host(config)
    assert caught.value.hint == "pip install 'drumbeat[metrics]' installs it"


def test_log_directory_is_created_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert preflight.prepare_log_dir("a/b") == str(tmp_path / "a" / "b")
    assert preflight.prepare_log_dir("a/b") == str(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LogDirectoryUnusable, match="it is not a directory") as caught:
            preflight.prepare_log_dir(str(path))
        assert caught.value.args[0] == str(path)


def test_an_unwritable_log_directory_is_refused() -> None:
    """Nobody, not even root, creates directories in /proc."""
    with pytest.raises(LogDirectoryUnusable, match="/proc/nowhere cannot be used"):
        preflight.prepare_log_dir("/proc/nowhere")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package in the current directory that says so if it is imported."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "trainer_of_test"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "main.py").touch()
    return package


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["json.tool", "zipfile", "site", "trainer_of_test.main", "this"])
def test_a_module_that_is_there_passes_and_is_not_imported(name: str) -> None:
    before = set(sys.modules)
    preflight.check_module(name)
    assert not {module for module in set(sys.modules) - before if "test" in module}


def test_a_package_of_a_user_may_be_called_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    for name in ("__init__.py", "trainer_of_test.py"):
        (tmp_path / "agent" / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    preflight.check_module("agent.trainer_of_test")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module", "there is no module named no_such_module"),
        ("no_such.module", "there is no module named no_such"),
        ("trainer_of_test.mian", "there is no module named trainer_of_test.mian"),
        ("trainer_of_test.main.x", "trainer_of_test.main is not a package"),
        ("trainer_of_test", "it is a package without trainer_of_test.__main__"),
        ("trainer_of_test..main", "it is not the name of a module"),
        ("./train.py", "it is not the name of a module"),
    ],
)
def test_a_module_that_is_not_there_is_named(name: str, why: str) -> None:
    with pytest.raises(ScriptNotFound) as raised:
        preflight.check_module(name)
    assert str(raised.value) == f"cannot run {name}: {why}"


@pytest.mark.parametrize("text", ["__path__.append('/x')", "sys.meta_path.append(Finder())"])
def test_a_package_that_looks_elsewhere_is_left_to_python(package: Path, text: str) -> None:
    (package / "__init__.py").write_text(text)
    preflight.check_module("trainer_of_test.anywhere")


def test_a_package_without_init_may_hold_the_module(package: Path) -> None:
    (package / "__init__.py").unlink()
    (package / "inner" / "main.py").touch()
    preflight.check_module("trainer_of_test.main")
    preflight.check_module("trainer_of_test.inner.main")
    with pytest.raises(ScriptNotFound):
        preflight.check_module("trainer_of_test.mian")


def test_a_package_with_main_can_be_run(package: Path) -> None:
    (package / "__main__.py").touch()
    preflight.check_module("trainer_of_test")


def preloading(program: Program, **more: Any) -> AgentConfig:
    config = AgentConfig(
        run_id="r", program=program, python=sys.executable, preload=("torch",), **more
    )
    return preflight.check_preloading(config)


def test_modules_to_preload_are_found_where_the_program_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a link, in an archive, in the working directory; or where a launcher found them."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    real = tmp_path / "real"
    real.mkdir()
    (real / "train.py").touch()
    (tmp_path / "link.py").symlink_to(real / "train.py")
    with zipfile.ZipFile("train.zip", "w") as archive:
        archive.writestr("__main__.py", "")
    assert preloading(Program("script", "link.py")).preload_path == (str(real),)
    assert preloading(Program("script", "train.zip")).preload_path == ("train.zip",)
    assert preloading(Program("module", "a.b")).preload_path == (str(tmp_path),)
    told = preloading(Program("function", "f"), preload_path=("/a", "/b"))
    assert told.preload_path == ("/a", "/b")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert preloading(Program("script", "link.py")).preload_path == ()


def test_only_the_agents_own_python_preloads() -> None:
    config = AgentConfig(
        run_id="r", program=Program("script", "x.py"), python="/other/python", preload=("torch",)
    )
    told = preflight.check_preloading(config)
    assert not told.is_preloading
    assert "PYTHON_EXEC names another interpreter" in told.notes[0]


def test_a_script_to_preload_with_has_to_be_there(tmp_path: Path) -> None:
    program = Program("script", str(tmp_path / "x.py"))
    with pytest.raises(UsageError, match=r"--preload-script: cannot run .* there is no such file"):
        preloading(program, preload_script=str(tmp_path / "missing.py"))
