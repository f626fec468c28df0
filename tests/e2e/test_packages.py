"""What users install: a wheel and a source archive, built and put into clean environments.

Dependencies are those of this environment, linked, so that only declared ones are there and nothing
is downloaded. Another Python than this one gets them from pip's index.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from drumbeat import VERSION
from drumbeat.text.format import install_command
from scripts.floors import constraints
from tests.support.processes import ROOT

# Longer than other tests may take: another Python has to download its dependencies.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PYTHONS = ["python3.11", "python3.12", "python3.13", "python3.14"]
THIS = f"python3.{sys.version_info.minor}"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
NEEDED = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"]]
IGNORED = [Path(line).name for line in (ROOT / ".gitignore").read_text().split()]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without settings of this environment; return all that it writes."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(source: Path, out: Path, *options: str) -> Path:
    """Build one package in a folder of its own; return its path."""
    log = run(sys.executable, "-m", "build", "-n", "-o", out, *options, source, cwd=source)
    warnings = [line for line in log.splitlines() if re.search("warning", line, re.IGNORECASE)]
    # That files to be left out are not there is as it should be.
    assert [line for line in warnings if "no previously-included files" not in line] == []
    (package,) = out.iterdir()
    return package


def files_below(folder: Path) -> set[str]:
    """Return files and links below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(folder)) for path in paths}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of all that belongs to the project, because building writes into it."""
    copy = tmp_path_factory.mktemp("packages") / "checkout"
    ignored = shutil.ignore_patterns(".git", *IGNORED)
    return shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)


@pytest.fixture(scope="module")
def source_archive(checkout: Path) -> Path:
    return build(checkout, checkout.with_name("sdist"), "--sdist")


@pytest.fixture(scope="module")
def wheel(source_archive: Path) -> Path:
    """Return the wheel that is built from the source archive, as users of that build it."""
    folder = source_archive.parents[1]
    with tarfile.open(source_archive) as archive:
        archive.extractall(folder, filter="data")
    return build(folder / f"drumbeat-{VERSION}", folder / "wheel", "--wheel")


def test_packages_have_what_they_should(checkout: Path, source_archive: Path, wheel: Path) -> None:
    unpacked = source_archive.parents[1] / f"drumbeat-{VERSION}"
    made = {"PKG-INFO", "setup.cfg"}
    built = re.compile(r"build/|src/drumbeat\.egg-info/")
    of_archive = {name for name in files_below(unpacked) if not built.match(name)} - made
    of_checkout = {name for name in files_below(checkout) if not built.match(name)}
    assert of_archive == of_checkout

    # An image has only what .dockerignore lets in, and builds the same wheel.
    context = source_archive.parents[1] / "context"
    context.mkdir()
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for name in let_in:
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, context / name, symlinks=True)
        else:
            shutil.copy(checkout / name, context / name)
    other = build(context, context.with_name("other"), "--wheel")
    files = contents(wheel)
    assert contents(other) == files

    assert {name.split("/")[0] for name in files} == {
        "drumbeat",
        "worker_sdk",
        f"drumbeat-{VERSION}.dist-info",
    }
    pages = {
        f"drumbeat/docs/{path.relative_to(ROOT / 'docs')}" for path in ROOT.glob("docs/**/*.md")
    }
    assert pages < files.keys()
    run(sys.executable, "-m", "twine", "check", "--strict", source_archive, wheel, cwd=checkout)


def test_the_description_of_packages_leads_nowhere_else() -> None:
    """An index shows it, and a link to a file of the project would be dead there."""
    description = (ROOT / PROJECT["readme"]).read_text()
    assert "](" not in description
    assert "urls" not in PROJECT, "then the description can have links"


def find(name: str) -> Path | None:
    """Return a Python by its name: this one, one of the search path, or one beside this one."""
    programs = [Path(sys.executable)] if name == THIS else []
    programs += [Path(folder, name) for folder in os.get_exec_path()]
    programs += sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
    for program in programs:
        # A shim of pyenv may lead to no Python.
        if program.exists() and not subprocess.run((program, "-V"), check=False).returncode:
            return program
    return None


def link_dependencies(site: Path) -> None:
    """Link the distributions of ``NEEDED``, and all that they need, from this environment."""
    names, wanted = set(), list(map(Requirement, NEEDED))
    while wanted:
        needed = wanted.pop()
        if needed.name in names or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        names.add(needed.name)
        parts = distribution(needed.name)
        wanted += map(Requirement, parts.requires or ())
        for top in {file.parts[0] for file in parts.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():  # a namespace is of several
                link.symlink_to(Path(str(parts.locate_file(top))))


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the interpreter of a clean environment, with what drumbeat needs and without pip."""
    name, program = str(request.param), find(request.param)
    if program is None:
        pytest.skip(f"there is no {name} here")
    run(program, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env/bin/python"
    if name == THIS:
        link_dependencies(site_of(python))
    else:
        done = subprocess.run(
            [*pip(python), "install", "--no-compile", *PROJECT["dependencies"]],
            check=False,
            capture_output=True,
        )
        if done.returncode:
            pytest.skip(f"no dependencies for {name}: {done.stderr.decode()[-200:]}")
    return python


def site_of(python: Path) -> Path:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    return site


def pip(python: Path) -> list[str | Path]:
    """Return how to call pip of this environment for another one."""
    return [sys.executable, "-m", "pip", "--python", python]


def test_clean_environments_run_it(
    python: Path, wheel: Path, source_archive: Path, tmp_path: Path
) -> None:
    site, bin_ = site_of(python), python.parent
    before = {path.name for path in site.iterdir()}
    install = [*pip(python), "install", "--no-index", "--no-build-isolation", "--no-compile"]
    if site.parent.name == THIS:
        run(*install, source_archive, cwd=tmp_path)
        assert run(bin_ / "drumbeat", "--version", cwd=tmp_path) == f"drumbeat {VERSION}\n"
    run(*install, "--force-reinstall", "--no-deps", wheel, cwd=tmp_path)
    after = {path.name for path in site.iterdir()} - {"__pycache__"}
    assert after - before == {"drumbeat", "worker_sdk", f"drumbeat-{VERSION}.dist-info"}

    assert run(python, "-c", "import drumbeat, worker_sdk", cwd=tmp_path) == ""
    for command in ([bin_ / "agent"], [bin_ / "coordinator"], [python, "-m", "drumbeat"]):
        (first,) = re.findall("Documentation: (.*)", run(*command, "--help", cwd=tmp_path))
        assert Path(first).is_relative_to(site)
        assert (Path(first).parent / "docs/operating.md").is_file()
    assert "--journal" in run(bin_ / "coordinator", "serve", "--help", cwd=tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint('rank', os.environ['RANK'], 'torch' in sys.modules)\n")
    said = run(bin_ / "agent", "join", "--nproc-per-node", "2", script, cwd=tmp_path)
    assert {"rank 0 False", "rank 1 False"} <= set(said.splitlines())

    # A hint adds an extra to what is installed: pip looks for no drumbeat elsewhere.
    hint = shlex.split(install_command("patterns"))
    assert hint[:2] == ["pip", "install"]
    run(*install, "--no-deps", *hint[2:], cwd=tmp_path)

    # As `make dist` lists the components of an installation.
    listed = tmp_path / "components.json"
    program = Path(sys.executable).with_name("cyclonedx-py")
    run(program, "environment", "--output-file", listed, python, cwd=tmp_path)
    components = {each["name"]: each for each in json.loads(listed.read_text())["components"]}
    assert {
        "drumbeat",
        *(Requirement(each).name for each in PROJECT["dependencies"]),
    } <= components.keys()
    assert components["drumbeat"]["version"] == VERSION
    assert not {"torch", "pytest", "pip"} & components.keys()


def test_the_oldest_dependencies_run_a_job(wheel: Path, tmp_path: Path) -> None:
    """With a session over gRPC, and front ends."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env/bin/python"
    floors = tmp_path / "floors.txt"
    floors.write_text("\n".join(constraints((ROOT / "pyproject.toml").read_text())))
    install = [*pip(python), "install", "--no-compile"]
    done = subprocess.run(
        [*install, "-c", floors, *PROJECT["dependencies"]], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no dependencies: {done.stderr.decode()[-200:]}")
    run(*install, "--no-index", "--no-deps", wheel, cwd=tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'])\n")
    bin_ = python.parent
    options = ("--port", "0", "--state-dir", tmp_path / "state", "--frontends", "1")
    with (tmp_path / "coordinator.log").open("w") as log:
        coordinator = subprocess.Popen(
            [bin_ / "coordinator", "serve", *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={"HOME": str(tmp_path)},
        )
    try:
        assert coordinator.stdout is not None
        address = coordinator.stdout.readline().rpartition(" ")[2].strip()
        joined = ("--coordinator", address, "--nproc-per-node", "2", script)
        said = run(bin_ / "agent", "join", *joined, cwd=tmp_path).splitlines()
        assert {"rank 0", "rank 1"} <= set(said), said
    finally:
        coordinator.terminate()
        coordinator.communicate()
    assert coordinator.returncode == 0
