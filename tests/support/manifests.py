"""The manifests of deploy/kubernetes, rendered as kustomize does, and their schemas.

Of kustomize it knows resources, and patches that are strategic merges by name.
"""

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"
Manifest = dict[str, Any]

# Names of their models.
CUSTOM = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): (
        "TrainerV1alpha1ClusterTrainingRuntime"
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
}
# Types that Kubernetes writes as plain values, and the models as objects.
_PLAIN = {"IntOrString": ["integer", "string"], "Quantity": ["integer", "string"]}
_MERGE_KEYS = {"volumeMounts": "mountPath"}


def load(path: Path) -> list[Manifest]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def render(directory: Path) -> list[Manifest]:
    """Return the resources of a kustomization with its patches."""
    (told,) = load(directory / "kustomization.yaml")
    assert told.keys() <= {"apiVersion", "kind", "resources", "patches"}, "not rendered here"
    found: list[Manifest] = []
    for name in told["resources"]:
        path = directory / name
        found += render(path) if path.is_dir() else load(path)
    for patch in told.get("patches", ()):
        (change,) = load(directory / patch["path"])
        (target,) = [each for each in found if identity(each) == identity(change)]
        found[found.index(target)] = merged(target, change)
    return found


def identity(manifest: Manifest) -> tuple[str, str]:
    """Return kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def merged(value: Any, change: Any, key: str = "") -> Any:
    """Return a manifest, or a part of one, with a patch."""
    if isinstance(change, dict) and isinstance(value, dict):
        both = {name: merged(value.get(name), each, name) for name, each in change.items()}
        return value | both
    by = _MERGE_KEYS.get(key, "name")
    if isinstance(change, list) and value and by in change[0]:
        changes = {each[by]: each for each in change}
        kept = [merged(each, changes.pop(each[by], {})) for each in value]
        return [*changes.values(), *kept]
    return change


def check(manifest: Manifest) -> None:
    """Raise if a manifest breaks its schema, or has a field that the schema does not know."""
    _validator(manifest["apiVersion"], manifest["kind"])(manifest)


@functools.cache
def _validator(version: str, kind: str) -> Callable[[Manifest], object]:
    """Return what checks manifests of a kind; here, as what it needs takes long to import."""
    with pytest.MonkeyPatch.context() as patch:
        # jsonschema makes parsers of it for seconds, for formats, which nobody checks here.
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        import jsonschema
        import kubernetes_validate

    if (version, kind) in CUSTOM:
        found: Callable[[Manifest], object] = jsonschema.Draft202012Validator(
            _schema(CUSTOM[version, kind])
        ).validate
        return found
    latest = kubernetes_validate.latest_version().rpartition(".")[0]
    return functools.partial(kubernetes_validate.validate, desired_version=latest, strict=True)


def _schema(model: str) -> Any:
    """Return the schema of a kind that Kubernetes does not bring, without unknown fields."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fields named as those of pydantic
        from kubeflow_trainer_api import models
    found = getattr(models, model).model_json_schema(by_alias=True)
    for name, each in (("", found), *found["$defs"].items()):
        if plain := next((it for end, it in _PLAIN.items() if name.endswith(end)), None):
            each.clear()
            each["type"] = plain
        elif "properties" in each:
            each.setdefault("additionalProperties", False)
    return found


# What the kubelet puts in where a manifest names a field of the pod.
FIELDS = {
    "metadata.name": "train-0-x7k2p",
    "status.podIP": "127.0.0.1",
    "metadata.labels['batch.kubernetes.io/job-name']": "train",
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "train",
}


def environment(container: Manifest) -> dict[str, str]:
    """Return the environment that the kubelet gives a container."""
    found = {}
    for variable in container["env"]:
        if "value" in variable:
            assert isinstance(variable["value"], str), variable["name"]
            found[variable["name"]] = variable["value"]
        else:
            found[variable["name"]] = FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return found


def pods(manifest: Any) -> list[Manifest]:
    """Return the specifications of pods anywhere in a manifest."""
    if isinstance(manifest, list):
        return [pod for each in manifest for pod in pods(each)]
    if not isinstance(manifest, dict):
        return []
    if "containers" in manifest:
        return [manifest]
    return [pod for each in manifest.values() for pod in pods(each)]
