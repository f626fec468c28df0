"""The examples of deploy/ start coordinators and members with options that there are."""

import io
import json
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from drumbeat import VERSION
from drumbeat.command.settings import settings_of
from drumbeat.coordinator.command.cli import coordinator, serve
from drumbeat.coordinator.config import CoordinatorConfig
from tests.support.etcd import needs_etcd, program

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "drumbeat-coordinator.service"
CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE = DEPLOY / "compose.yaml"


def commands(name: str) -> list[list[str]]:
    """Return the commands of the compose file that start with a name, without it."""
    found = re.findall(r"^    command: (\[.*\])$", COMPOSE.read_text(), re.MULTILINE)
    return [rest for first, *rest in map(json.loads, found) if first == name]


def config_of(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> CoordinatorConfig:
    """Return what `coordinator serve` makes of its arguments. Raises if it refuses them."""
    monkeypatch.delenv("DRUMBEAT_JOURNAL", raising=False)
    config = serve.main(arguments, standalone_mode=False)
    assert isinstance(config, CoordinatorConfig)
    return config


def test_the_unit_starts_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    command, verb, *arguments = shlex.split(parser["Service"]["ExecStart"])
    assert (Path(command).name, verb) == ("coordinator", "serve")
    assert config_of(arguments, monkeypatch).state_dir == "/var/lib/drumbeat"


def test_the_environment_that_the_unit_names_is_one_of_settings() -> None:
    said = re.findall(r"^#   (DRUMBEAT_\w+)=", UNIT.read_text(), re.MULTILINE)
    known = {f"DRUMBEAT_{name.upper()}" for name in settings_of(CoordinatorConfig)}
    assert said
    assert set(said) <= known


def test_the_compose_file_starts_coordinators_of_one_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = [config_of(rest[1:], monkeypatch) for rest in commands("coordinator")]
    assert len(configs) == 2
    assert len({config.journal for config in configs}) == 1
    assert len({config.advertise for config in configs}) == 2


@needs_etcd
def test_the_compose_file_starts_members_with_options_of_etcd() -> None:
    found = commands("etcd")
    assert len(found) == 3
    said = subprocess.run([program("etcd"), "--help"], capture_output=True, text=True, check=True)
    known = set(re.findall(r"^  (--[\w-]+)", said.stdout, re.MULTILINE))
    for arguments in found:
        assert {each for each in arguments if each.startswith("--")} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """It also looks for the program and the user: those of this process stand in for them."""
    text = UNIT.read_text().replace("/opt/drumbeat/bin/coordinator", "/bin/true")
    unit = tmp_path / UNIT.name
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]

    def verify(text: str) -> tuple[int, str]:
        unit.write_text(text)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert verify(text) == (0, "")
    assert "ProtectSystems" in verify(text.replace("ProtectSystem", "ProtectSystems"))[1]


def stages() -> dict[str, dict[str, list[str]]]:
    """Return the values of each stage of the Containerfile, by instruction."""
    parser = DockerfileParser(fileobj=io.BytesIO(CONTAINERFILE.read_bytes()))
    by_stage: dict[str, dict[str, list[str]]] = {}
    values: dict[str, list[str]] = defaultdict(list)
    for line in parser.structure:
        if line["instruction"] == "FROM":
            by_stage[line["value"].split()[-1]] = values = defaultdict(list)
        values[line["instruction"]].append(line["value"])
    return by_stage


def exec_form(value: str) -> list[str]:
    words: list[str] = json.loads(value[value.index("[") :])
    return words


def test_images_are_those_of_the_manifests() -> None:
    text = CONTAINERFILE.read_text()
    built = dict(re.findall(r"--target=(\w+) -t (\S+) ", text))
    assert built == {name: f"drumbeat-{name}:{VERSION}" for name in ("coordinator", "agent")}
    assert list(stages()) == ["build", *built]
    compose = yaml.safe_load(COMPOSE.read_text())
    head = compose["services"]["head1"]
    assert head["image"] == built["coordinator"]
    assert (COMPOSE.parent / head["build"]["context"] / head["build"]["dockerfile"]).samefile(
        CONTAINERFILE
    )
    assert head["build"]["target"] in stages()
    named = {
        image
        for path in DEPLOY.glob("kubernetes/**/*.yaml")
        for image in re.findall(r"image: (\S+)", path.read_text())
    }
    assert named == set(built.values())


def test_images_have_bases_of_a_version() -> None:
    text = CONTAINERFILE.read_text()
    bases = re.findall(r"^ARG \w+_BASE=(\S+)$", text, re.MULTILINE)
    assert len(bases) == 2
    assert all(re.search(r":\d+\.\d+[\w.-]*$", base) for base in bases)
    assert [stage["FROM"][0].split()[0] for stage in stages().values()] == [
        "${PYTHON_BASE}",
        "${PYTHON_BASE}",
        "${AGENT_BASE}",
    ]


@pytest.mark.parametrize("name", ["coordinator", "agent"])
def test_images_run_as_the_user_of_the_manifests(name: str) -> None:
    stage, users = stages()[name], set()
    for path in DEPLOY.glob("kubernetes/**/*.yaml"):
        users |= set(re.findall(r"runAsUser: (\d+)", path.read_text()))
    assert users == {stage["USER"][-1]}
    assert f"useradd --uid {stage['USER'][-1]} " in " ".join(stage["RUN"])


def test_the_image_of_the_coordinator_has_no_torch_and_starts_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = stages()["coordinator"]
    assert stage["COPY"] == ["--from=build /opt/drumbeat /opt/drumbeat"]
    assert "torch" not in " ".join(stages()["build"]["RUN"] + stage["RUN"])
    command, verb, *arguments = exec_form(stage["CMD"][0])
    assert (command, verb) == ("coordinator", "serve")
    config = config_of(arguments, monkeypatch)
    assert config.state_dir == stage["VOLUME"][0]
    assert str(config.port) in stage["EXPOSE"][0].split()


def test_the_health_check_is_the_probe_of_the_manifests() -> None:
    program, verb, *options = exec_form(stages()["coordinator"]["HEALTHCHECK"][0])
    assert program == "coordinator"
    assert coordinator.commands[verb].make_context(verb, options)
    deployment = (DEPLOY / "kubernetes/coordinator/base/deployment.yaml").read_text()
    probe = yaml.safe_load(deployment)["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    assert probe["exec"]["command"] == [program, verb, *options]
