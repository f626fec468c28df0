"""The manifests of deploy/kubernetes: valid, without secrets or rights, with options there are."""

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.kinds import health_path
from drumbeat.coordinator.command.cli import coordinator, serve
from drumbeat.coordinator.config import CoordinatorConfig
from tests.support.command_line import join
from tests.support.manifests import (
    DIRECTORY,
    FIELDS,
    check,
    environment,
    identity,
    load,
    merged,
    pods,
    render,
)

ROOT = DIRECTORY.parents[1]
COORDINATORS = ["coordinator/sqlite", "coordinator/etcd"]
JOBS = ["job", "jobset", "trainer"]
TRAINJOB = DIRECTORY / "trainer" / "trainjob.yaml"
RENDERED = {name: render(DIRECTORY / name) for name in (*COORDINATORS, *JOBS)} | {
    "trainjob": load(TRAINJOB)
}
EACH = [
    pytest.param(manifest, id=f"{name}-{manifest['kind']}")
    for name, manifests in RENDERED.items()
    for manifest in manifests
]
# What Kubeflow Trainer puts into the environment of a runtime with mlPolicy.torch.
OF_TRAINER = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}


def find(name: str, kind: str) -> dict[str, Any]:
    """Return the only manifest of a kind."""
    (found,) = [each for each in RENDERED[name] if each["kind"] == kind]
    return found


def pod_of(name: str) -> dict[str, Any]:
    (pod,) = pods(RENDERED[name])
    return pod


def container_of(name: str) -> dict[str, Any]:
    (container,) = pod_of(name)["containers"]
    found: dict[str, Any] = container
    return found


def started(
    name: str, monkeypatch: pytest.MonkeyPatch, directory: Path, extra: dict[str, str] | None = None
) -> AgentConfig:
    """Return what an agent is told by a manifest."""
    container = container_of(name)
    for key, value in (environment(container) | (extra or {})).items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(directory)
    (directory / "train.py").touch()
    assert container["command"] == ["agent", "join"]
    return join(*container["args"], script=None)


@pytest.mark.parametrize("manifest", EACH)
def test_a_manifest_obeys_its_schema(manifest: dict[str, Any]) -> None:
    check(manifest)


@pytest.mark.parametrize("manifest", EACH)
def test_a_field_that_the_schema_does_not_know_is_noticed(manifest: dict[str, Any]) -> None:
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["replica"] = 1
    with pytest.raises(Exception, match="replica"):
        check(wrong)
    for pod in pods(wrong := copy.deepcopy(manifest)):
        pod["containers"][0]["comand"] = ["x"]
        with pytest.raises(Exception, match="comand"):
            check(wrong)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("name", [*COORDINATORS, *JOBS])
def test_kubectl_renders_the_same(name: str) -> None:
    command = ["kubectl", "kustomize", str(DIRECTORY / name)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = list(yaml.safe_load_all(rendered.stdout))
    assert sorted(theirs, key=identity) == sorted(RENDERED[name], key=identity)


@pytest.mark.parametrize("name", [*COORDINATORS, *JOBS])
def test_pods_have_no_rights_that_they_do_not_need(name: str) -> None:
    pod, container = pod_of(name), container_of(name)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", [*COORDINATORS, *JOBS, "trainjob"])
def test_images_have_a_version(name: str) -> None:
    text = yaml.safe_dump(RENDERED[name])
    images = re.findall(r"image: (\S+)", text)
    assert images
    assert all(re.search(r":\d+\.\d+\.\d+$", image) for image in images)


def test_no_manifest_has_a_secret() -> None:
    for path in DIRECTORY.rglob("*.yaml"):
        text = path.read_text()
        assert "kind: Secret" not in text, path
        assert not re.search(r"drumbeat1\.|password:|BEGIN .*KEY", text), path
        assert not re.search(r"(?i)_TOKEN, value|--token |insecure", text), path


@pytest.mark.parametrize("name", JOBS)
def test_secrets_of_agents_are_files_that_they_accept(name: str) -> None:
    (token,) = [each for each in pod_of(name)["volumes"] if each["name"] == "token"]
    assert token["secret"]["defaultMode"] == 0o440  # of root, and of the group fsGroup
    assert pod_of(name)["securityContext"]["fsGroup"]


@pytest.mark.parametrize("name", COORDINATORS)
def test_a_coordinator_starts_with_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container = container_of(name)
    for key, value in environment(container).items():
        monkeypatch.setenv(key, value)
    command, verb, *arguments = container["command"]
    assert (command, verb) == ("coordinator", "serve")
    config = serve.main(arguments, standalone_mode=False)
    assert isinstance(config, CoordinatorConfig)
    assert not config.insecure
    assert (config.host, config.port, config.http_port) == ("0.0.0.0", 29400, 29480)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": config.port, "https": config.http_port}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any((config.state_dir or "").startswith(f"{mount}/") for mount in mounts)
    assert (config.journal is None) == (name == "coordinator/sqlite")


@pytest.mark.parametrize("name", COORDINATORS)
@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_probes_run_a_command_that_there_is(name: str, probe: str) -> None:
    program, verb, *options = container_of(name)[probe]["exec"]["command"]
    assert program == "coordinator"
    command = coordinator.commands[verb]
    assert command.make_context(verb, options).params["coordinator"] == "127.0.0.1:29400"


def test_a_coordinator_with_a_volume_is_never_doubled() -> None:
    spec = find("coordinator/sqlite", "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert find("coordinator/etcd", "Deployment")["spec"]["replicas"] == 3


@pytest.mark.parametrize("name", JOBS)
def test_agents_start_with_their_settings(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = started(name, monkeypatch, tmp_path, OF_TRAINER if name == "trainer" else None)
    assert config.coordinator == "drumbeat.drumbeat.svc:29400"
    assert config.token_file == "/etc/drumbeat/token"
    assert (config.run_id, config.name) == ("train", FIELDS["metadata.name"])
    assert config.local_addr == FIELDS["status.podIP"]
    assert config.max_nodes == 2
    assert config.preemption_signal == "SIGTERM"
    grace_s = pod_of(name)["terminationGracePeriodSeconds"]
    assert config.preemption_grace < grace_s, "else the kubelet kills workers that save"


def test_the_volume_of_checkpoints_in_the_docs_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\n(# job/checkpoints\.yaml.*?)```", page, re.DOTALL)
    patch = yaml.safe_load(text)
    job = merged(find("job", "Job"), patch)
    assert identity(job) == identity(patch)
    check(job)
    monkeypatch.setitem(RENDERED, "job", [job])
    (path,) = started("job", monkeypatch, tmp_path).health_path
    mounts = [mount["mountPath"] for mount in container_of("job")["volumeMounts"]]
    assert health_path(path) == ("/checkpoints", 50 * 10**9)
    assert {"/checkpoints", "/etc/drumbeat", "/tmp", "/dev/shm"} == set(mounts)


def test_variables_of_kubeflow_trainer_do_not_choose_rank_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = started("trainer", monkeypatch, tmp_path, OF_TRAINER)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 4)
    assert (config.master_addr, config.master_port, config.notes) == ("", 0, ())


def test_ports_of_network_policies_are_those_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = started("job", monkeypatch, tmp_path)
    first, last = map(int, config.port_range.split("-"))
    for name in JOBS:
        (rule,) = find(name, "NetworkPolicy")["spec"]["ingress"]
        opened = [(port["port"], port["endPort"]) for port in rule["ports"]]
        assert (first, last) in opened
    for name in COORDINATORS:
        rules = find(name, "NetworkPolicy")["spec"]["ingress"]
        assert [port["port"] for rule in rules for port in rule["ports"]] == [29400, 29480]
        ports = find(name, "Service")["spec"]["ports"]
        assert [port["port"] for port in ports] == [29400, 29480]


@pytest.mark.parametrize("name", JOBS)
def test_network_policies_let_agents_in(name: str) -> None:
    def labels(value: Any) -> list[dict[str, str]]:
        if isinstance(value, list):
            return [found for each in value for found in labels(each)]
        if not isinstance(value, dict):
            return []
        own = [value["metadata"].get("labels", {})] if "containers" in value.get("spec", {}) else []
        return own + labels(list(value.values()))

    wanted = {"app.kubernetes.io/name": "drumbeat-agent"}
    (of_pod,) = labels(RENDERED[name])
    assert wanted.items() <= of_pod.items()
    assert find(name, "NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": wanted}
    policy = find("coordinator/sqlite", "NetworkPolicy")
    assert policy["spec"]["ingress"][0]["from"][0]["podSelector"] == {"matchLabels": wanted}


@pytest.mark.parametrize("name", JOBS)
def test_exit_codes_decide_whether_a_pod_is_replaced(name: str) -> None:
    def policies(value: Any) -> list[Any]:
        children = value if isinstance(value, list) else list(value.values())
        own = [value["podFailurePolicy"]] if "podFailurePolicy" in value else []
        return own + [
            it for each in children if isinstance(each, dict | list) for it in policies(each)
        ]

    (policy,) = policies(RENDERED[name])
    actions = {
        code: rule["action"]
        for rule in policy["rules"]
        for code in rule.get("onExitCodes", {}).get("values", ())
    }
    assert actions == {2: "FailJob", 4: "FailJob", 5: "FailJob", 143: "Ignore"}
    assert pod_of(name)["restartPolicy"] == "Never", "a pod failure policy needs it"


def test_commands_of_the_docs_are_those_of_the_coordinator() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    found = re.findall(r"-- coordinator ([^|`\n]+)", page)
    assert len(found) > 3
    for line in found:
        command, words = coordinator.commands[line.split()[0]], line.split()[1:]
        if isinstance(command, click.Group):
            command, words = command.commands[words[0]], words[1:]
        command.make_context("coordinator", words)


def test_the_docs_name_what_there_is() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    for name in re.findall(r"deploy/kubernetes/([\w./-]+)", page):
        assert (DIRECTORY / name).exists(), name
    for name in (*COORDINATORS, *JOBS, "trainer/trainjob.yaml"):
        assert f"deploy/kubernetes/{name}" in page
    for path in DIRECTORY.rglob("*.yaml"):
        for secret in re.findall(r"secretName: ([\w-]+)", path.read_text()):
            assert f"secret generic {secret} " in page
