"""The rendered manifests of deploy/k8s."""
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import yaml

from cluster import ROOT

K8S = ROOT / "deploy" / "k8s"
KUBECTL = pathlib.Path(sys.executable).parent / "kubectl"
OVERLAYS = ("cpu-demo", "gpu-single", "gpu-multi-node")
# What an operator may add to which overlay.
ADDED = [("cpu-demo", "monitoring"), ("cpu-demo", "gateway-api"), ("cpu-demo", "autoscale-hpa"), ("cpu-demo", "autoscale-keda"),
         ("gpu-single", "monitoring"), ("gpu-single", "autoscale-hpa"), ("gpu-single", "autoscale-keda"),
         ("gpu-multi-node", "monitoring"), ("gpu-multi-node", "rdma-ipc-lock"),
         ("cpu-demo", "api-keys"), ("gpu-multi-node", "api-keys"),
         ("gpu-single", "control-keys"), ("gpu-multi-node", "control-keys", "rdma-ipc-lock"),
         ("cpu-demo", "tls"), ("gpu-multi-node", "tls"), ("cpu-demo", "api-keys", "control-keys", "tls")]
VARIANTS = [(overlay,) for overlay in OVERLAYS] + ADDED


@functools.cache
def render(overlay, *components):
    """[object]"""
    folder = K8S / "overlays" / overlay
    if not components:
        return build(folder)
    with tempfile.TemporaryDirectory() as made:
        def relative(path):
            return os.path.relpath(path, os.path.realpath(made))
        own = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "lynx",
               "resources": [relative(folder)],
               "components": [relative(K8S / "components" / component) for component in components]}
        (pathlib.Path(made) / "kustomization.yaml").write_text(yaml.safe_dump(own))
        return build(made)


def build(folder):
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects, *kinds):
    return [one for one in objects if one["kind"] in kinds]


def pod_templates(objects):
    """{name of the Deployment or LeaderWorkerSet: pod template, with the labels that the controller adds}"""
    found = {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind(objects, "Deployment")}
    for one in of_kind(objects, "LeaderWorkerSet"):
        template = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        labels = {**template["metadata"]["labels"], "leaderworkerset.sigs.k8s.io/worker-index": "0"}
        found[one["metadata"]["name"]] = {**template, "metadata": {"labels": labels}}
    return found


def container_of(template):
    (container,) = template["spec"]["containers"]
    return container


def selects(selector, template):
    labels = template["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def config_files(objects):
    """{file name: text} of the mounted configuration."""
    (config,) = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"].startswith("lynx-config")]
    return config["data"]


def option(text, name):
    """The value of an option in a configuration file; None when it is not there."""
    values = [line.split("=", 1)[1].strip() for line in text.splitlines() if line.split("=")[0].strip() == name]
    assert len(values) < 2, name
    return values[0] if values else None
