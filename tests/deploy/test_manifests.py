"""The files of `deploy/` that cannot be run here, held against what their readers know."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

# The fields of https://github.com/ray-project/kuberay/tree/master/ray-operator/apis/ray/v1
# (rayjob_types.go, raycluster_types.go, release 1.4) and of the Kubernetes core API v1. The API
# server drops unknown fields or refuses them, so a misspelt one would be a setting that is lost.
_FIELDS = {
    "RayJobSpec": """activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata
        clusterSelector submitterConfig managedBy deletionStrategy entrypoint runtimeEnvYAML jobId
        submissionMode entrypointResources entrypointNumCpus entrypointNumGpus
        ttlSecondsAfterFinished shutdownAfterJobFinishes suspend""",
    "RayClusterSpec": """headGroupSpec workerGroupSpecs rayVersion enableInTreeAutoscaling
        autoscalerOptions headServiceAnnotations suspend managedBy gcsFaultToleranceOptions""",
    "HeadGroupSpec": "serviceType headService enableIngress rayStartParams template",
    "WorkerGroupSpec": """groupName replicas minReplicas maxReplicas numOfHosts rayStartParams
        template scaleStrategy idleTimeoutSeconds suspend""",
    "PodTemplateSpec": "metadata spec",
    "PodSpec": """containers initContainers volumes nodeSelector tolerations affinity
        serviceAccountName restartPolicy securityContext imagePullSecrets priorityClassName
        hostNetwork hostIPC terminationGracePeriodSeconds""",
    "Container": """name image imagePullPolicy command args env envFrom resources volumeMounts ports
        securityContext lifecycle livenessProbe readinessProbe workingDir""",
    "ResourceRequirements": "requests limits",
    "EnvVar": "name value valueFrom",
    "VolumeMount": "name mountPath subPath readOnly",
    "PersistentVolumeClaimSpec": """accessModes resources storageClassName volumeMode volumeName
        selector""",
}


def known(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    unknown = set(value) - set(_FIELDS[kind].split())
    assert not unknown, f"{kind} has no field {unknown}"
    return value


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kuberay" / "rayjob.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def check_pod(template: dict[str, Any]) -> dict[str, Any]:
    """One pod template; gives its only container."""
    pod = known("PodSpec", known("PodTemplateSpec", template)["spec"])
    (container,) = pod["containers"]
    known("Container", container)
    resources = known("ResourceRequirements", container["resources"])
    for name, amount in resources["requests"].items():
        assert resources["limits"][name] == amount, "ranks must not be throttled or evicted"
    for variable in container["env"]:
        known("EnvVar", variable)
        assert isinstance(variable.get("value", ""), str), f"{variable['name']} is not text"
    volumes = {volume["name"] for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        assert known("VolumeMount", mount)["name"] in volumes
    return container  # type: ignore[no-any-return]


def test_the_ray_job_has_only_fields_that_exist(documents: dict[str, dict[str, Any]]) -> None:
    job = documents["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    spec = known("RayJobSpec", job["spec"])
    cluster = known("RayClusterSpec", spec["rayClusterSpec"])
    head = known("HeadGroupSpec", cluster["headGroupSpec"])
    (workers,) = (known("WorkerGroupSpec", group) for group in cluster["workerGroupSpecs"])
    for parameters in (head["rayStartParams"], workers["rayStartParams"]):
        assert all(isinstance(value, str) for value in parameters.values()), "map[string]string"
    main, worker = check_pod(head["template"]), check_pod(workers["template"])
    assert main["image"] == worker["image"]
    assert main["env"] == worker["env"]
    tokens = [variable for variable in main["env"] if variable["name"] == "RAY_AUTH_TOKEN"]
    assert tokens[0]["valueFrom"]["secretKeyRef"], "the token is no part of the manifest"


def test_the_ray_job_agrees_with_itself(documents: dict[str, dict[str, Any]]) -> None:
    spec = documents["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    settings = dict(re.findall(r"--set (\S+)=(\S+)", spec["entrypoint"]))
    assert int(settings["cluster.num_nodes"]) == workers["replicas"]
    container = workers["template"]["spec"]["containers"][0]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(settings["cluster.devices_per_node"]) == gpus
    assert float(spec["entrypointNumCpus"]) <= float(
        cluster["headGroupSpec"]["rayStartParams"]["num-cpus"]
    )
    claim = documents["PersistentVolumeClaim"]
    known("PersistentVolumeClaimSpec", claim["spec"])
    volumes = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes
              if "persistentVolumeClaim" in volume]  # fmt: skip
    assert claims == [claim["metadata"]["name"]]


def test_the_ray_job_runs_the_ray_that_is_installed(documents: dict[str, dict[str, Any]]) -> None:
    from importlib.metadata import version

    assert documents["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == version("ray")


def test_the_settings_of_the_scripts_are_keys_of_a_study(tmp_path: Path) -> None:
    """Every `--set` of the deploy files, with the values that they would have."""
    from tuner.config import load_study_config

    study = tmp_path / "study.toml"
    study.write_text('[model]\nsource = "gpt2-tiny"\n')
    for name in ("slurm/study.sbatch", "kuberay/rayjob.yaml", "hosts/start.sh"):
        keys = re.findall(r"--set ([\w.]+)=", (DEPLOY / name).read_text())
        assert keys, name
        overrides = [f"{key}={SETTINGS[key]}" for key in keys]
        config = load_study_config(study, overrides=overrides)
        assert config.launcher.address == "a:1"


SETTINGS = {
    "launcher.address": "a:1", "cluster.num_nodes": 2, "cluster.devices_per_node": 2,
    "cluster.device_kind": "cuda", "launcher.options.device_kind": "cuda",
}  # fmt: skip
INSTRUCTION = re.compile(r"^(?P<word>[A-Z]+) (?P<rest>.*)$")
LEGAL = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "CMD", "ENTRYPOINT",
         "LABEL", "EXPOSE"}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [INSTRUCTION.match(line) for line in lines]
    assert all(found), lines
    return [(match["word"], match["rest"]) for match in found if match]


def test_the_dockerfile_copies_what_the_package_needs() -> None:
    steps = instructions()
    assert {word for word, _ in steps} <= LEGAL
    assert steps[0][0] == "FROM"
    copied = {part for word, rest in steps if word == "COPY" for part in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied), copied
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) <= copied
    assert project["project"]["readme"] in copied
    (extra,) = re.findall(r"pip install \"\.\[(\w+)\]\"", (DEPLOY / "Dockerfile").read_text())
    assert extra in project["project"]["optional-dependencies"]


def test_the_image_runs_as_an_ordinary_user_and_pins_its_base() -> None:
    steps = instructions()
    (base,) = [rest for word, rest in steps if word == "FROM"]
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    users = [rest for word, rest in steps if word == "USER"]
    assert users
    assert users[-1] != "root"
    assert steps[-1][0] == "CMD"
    declared = {rest.split("=")[0] for word, rest in steps if word == "ARG"}
    used = set(re.findall(r"\$(\w+)", "\n".join(rest for word, rest in steps if word == "RUN")))
    assert used <= declared
