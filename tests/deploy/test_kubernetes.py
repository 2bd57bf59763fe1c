"""The shipped manifests: valid, restricted, of one piece, and what the programs take."""
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

from cluster import BIN, ROOT
from manifests import (ADDED, K8S, OVERLAYS, VARIANTS, config_files, container_of, of_kind, option, pod_templates,
                       render, selects)
from queries import selectors

ROLES = ("router", "prefill", "decode")
# Kinds that a cluster has only with an operator or controller of their own.
CUSTOM = {"LeaderWorkerSet", "PodMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
# The oldest Kubernetes whose API has all that is used (the sleep of preStop), and the newest known here.
VERSIONS = ("1.30", "1.37")
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids="+".join)


@every_variant
def test_objects_are_valid_and_have_no_unknown_fields(variant):
    objects = render(*variant)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    for version in VERSIONS:
        for one in objects:
            if one["kind"] not in CUSTOM:
                kubernetes_validate.validate(one, version, strict=True)
        for name, template in pod_templates(objects).items():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]},
                   "spec": template["spec"]}
            kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("overlay,kinds", [("cpu-demo", set()), ("gpu-single", set()), ("gpu-multi-node", {"LeaderWorkerSet"})])
def test_overlays_need_no_other_custom_resources(overlay, kinds):
    assert {one["kind"] for one in render(overlay)} & CUSTOM == kinds


def violations(template):
    """What the Pod Security profile `restricted` refuses of a pod."""
    spec = template["spec"]
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    found += [f"volume {kind}" for volume in spec["volumes"] for kind in volume
              if kind not in ("name", "configMap", "emptyDir", "persistentVolumeClaim", "secret", "projected")]
    pod = spec.get("securityContext", {})
    for container in spec["containers"] + spec.get("initContainers", []):
        own = {**pod, **container.get("securityContext", {})}
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            found.append("root")
        if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append("seccomp")
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append("privileges")
        if "ALL" not in own.get("capabilities", {}).get("drop", []):
            found.append("capabilities not dropped")
        found += [f"adds {name}" for name in own.get("capabilities", {}).get("add", []) if name != "NET_BIND_SERVICE"]
        found += ["host port" for port in container.get("ports", []) if port.get("hostPort")]
    return found


@every_variant
def test_pods_are_as_restricted_as_their_namespace_says(variant):
    objects = render(*variant)
    (namespace,) = of_kind(objects, "Namespace")
    enforced = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    found = {name: violations(template) for name, template in pod_templates(objects).items()}
    for template in pod_templates(objects).values():
        assert container_of(template)["securityContext"]["readOnlyRootFilesystem"] is True
    if "rdma-ipc-lock" in variant:
        assert enforced == "privileged"
        assert found == {"lynx-router": [], "lynx-prefill": ["root", "adds IPC_LOCK"], "lynx-decode": ["root", "adds IPC_LOCK"]}
    else:
        assert enforced == "restricted" and not any(found.values()), found


@every_variant
def test_an_added_capability_is_in_effect(variant):
    """Capabilities of a user other than root are not in effect unless the program's file has them."""
    for template in pod_templates(render(*variant)).values():
        own = {**template["spec"]["securityContext"], **container_of(template)["securityContext"]}
        assert not own["capabilities"].get("add") or own["runAsUser"] == 0


@every_variant
def test_every_name_that_is_referred_to_is_there(variant):
    objects = render(*variant)
    have = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for name, template in pod_templates(objects).items():
        spec = template["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in have
        assert spec["enableServiceLinks"] is False and spec["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in spec["volumes"]}
        for mount in container_of(template)["volumeMounts"]:
            assert mount["name"] in volumes, (name, mount)
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in have, (name, volume)
            if "secret" in volume:  # Made by the operator: as the component says, and open to the pod's group alone.
                secret = volume["secret"]
                text = (K8S / "components" / volume["name"] / "kustomization.yaml").read_text()
                made = re.search(f"create secret generic {secret['secretName']} (.*)", text).group(1)
                files = re.findall(r"--from-file=([\w.-]+)", made)
                assert secret["defaultMode"] == 0o440 and spec["securityContext"]["fsGroup"] == 65532
                (mount,) = [one for one in container_of(template)["volumeMounts"] if one["name"] == volume["name"]]
                values = [one["value"] for one in container_of(template)["env"]]
                used = [value for value in values if value.startswith(mount["mountPath"])]
                assert used and set(used) <= {f"{mount['mountPath']}/{file}" for file in files} | {mount["mountPath"]}
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in have, (name, volume)
        assert re.fullmatch(r"lynx:\d[\w.-]+", container_of(template)["image"]), name
    for one in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = one["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in have, one
    scaled = [one["spec"]["scaleTargetRef"]["name"] for one in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")]
    assert len(set(scaled)) == len(scaled)


@every_variant
def test_selectors_match_pods_and_ports_exist(variant):
    objects = render(*variant)
    templates = pod_templates(objects)

    def ports(name):
        return {port["name"]: port["containerPort"] for port in container_of(templates[name])["ports"]}

    for one in of_kind(objects, "Deployment"):
        assert selects(one["spec"]["selector"]["matchLabels"], one["spec"]["template"])
        assert set(one["spec"]["selector"]["matchLabels"]) == {"app.kubernetes.io/name"}, "selectors cannot be changed later"
    for one in of_kind(objects, "Service"):
        name = one["metadata"]["name"]
        assert [n for n, template in templates.items() if selects(one["spec"]["selector"], template)] == [name]
        for port in one["spec"]["ports"]:
            assert ports(name)[port["targetPort"]] == port["port"]
    for one in of_kind(objects, "PodDisruptionBudget"):
        matched = [n for n, template in templates.items() if selects(one["spec"]["selector"]["matchLabels"], template)]
        assert matched == [one["metadata"]["name"]]
        assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert {one["metadata"]["name"] for one in of_kind(objects, "PodDisruptionBudget")} == set(templates)
    for one in of_kind(objects, "PodMonitor"):
        assert all(selects(one["spec"]["selector"]["matchLabels"], template) for template in templates.values())
        for endpoint in one["spec"]["podMetricsEndpoints"]:
            assert all(endpoint["port"] in ports(name) for name in templates)


@every_variant
def test_probes_ask_three_different_things(variant):
    for name, template in pod_templates(render(*variant)).items():
        container = container_of(template)
        ports = {port["name"] for port in container["ports"]}
        probes = {kind: container[kind + "Probe"] for kind in ("startup", "liveness", "readiness")}
        assert {kind: probe["httpGet"]["path"] for kind, probe in probes.items()} == {
            "startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}, name
        for probe in probes.values():
            assert probe["httpGet"]["port"] in ports and probe.get("initialDelaySeconds", 0) == 0
        assert probes["liveness"]["failureThreshold"] > 1
        budget = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
        gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert budget >= (3600 if gpu else 300), name


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


@every_variant
def test_pods_have_time_to_drain(variant):
    objects = render(*variant)
    for name, template in pod_templates(objects).items():
        text = config_files(objects)[name.removeprefix("lynx-") + ".conf"]
        before = container_of(template).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain = seconds(option(text, "drain-timeout"))
        assert template["spec"]["terminationGracePeriodSeconds"] >= before + drain + 15, name
    router = container_of(pod_templates(objects)["lynx-router"])
    assert router["lifecycle"]["preStop"]["sleep"]["seconds"] >= 10, "gateways go on sending for a while"


@every_variant
def test_network_policies_open_the_ports_there_are_and_no_others(variant):
    objects = render(*variant)
    templates = pod_templates(objects)
    policies = of_kind(objects, "NetworkPolicy")
    deny = [one for one in policies if one["spec"]["podSelector"] == {} and "ingress" not in one["spec"] and "egress" not in one["spec"]]
    assert [one["spec"]["policyTypes"] for one in deny] == [["Ingress", "Egress"]]
    allowed = set()  # (from, to, port) between our pods, by ingress; and the same by egress.
    expected = set()
    for one in policies:
        of = [n for n, template in templates.items() if selects(one["spec"]["podSelector"].get("matchLabels", {}), template)]
        assert of, one["metadata"]["name"]
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for rule in one["spec"].get(direction, []):
                others = [n for n, template in templates.items() for peer in rule.get(peers, [])
                          if "podSelector" in peer and selects(peer["podSelector"]["matchLabels"], template)]
                for port in rule.get("ports", [{"port": "any"}]):
                    receivers = of if direction == "ingress" else others
                    for receiver in receivers:
                        named = {p["name"] for p in container_of(templates[receiver])["ports"]}
                        assert port["port"] in named | {9200, "any"}, (one["metadata"]["name"], port)
                    for own in of:
                        for other in others:
                            pair = (other, own) if direction == "ingress" else (own, other)
                            (allowed if direction == "ingress" else expected).add((*pair, port["port"]))
    assert allowed == expected, "what one side may send the other may receive"
    flows = {("lynx-router", "lynx-prefill", "control"), ("lynx-router", "lynx-decode", "control"),
             ("lynx-prefill", "lynx-decode", 9200), ("lynx-decode", "lynx-prefill", 9200),
             ("lynx-decode", "lynx-decode", 9200)}
    if variant[0] == "gpu-multi-node":
        flows |= {("lynx-prefill", "lynx-prefill", "any"), ("lynx-decode", "lynx-decode", "any")}
    assert allowed == flows
    for name in ("lynx-prefill", "lynx-decode"):
        env = {one["name"]: one["value"] for one in container_of(templates[name])["env"]}
        ranges = {f'{port["port"]}-{port["endPort"]}' for one in policies for rule in one["spec"].get("ingress", [])
                  for port in rule.get("ports", []) if "endPort" in port}
        assert ranges == {env["UCX_TCP_PORT_RANGE"]}


def help_of(program):
    shown = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
    return shown, set(re.findall(r"^  (?:-h,)?--([A-Za-z0-9-]+)", shown, re.M))


@every_variant
def test_programs_take_their_flags_files_and_variables(variant, tmp_path):
    objects = render(*variant)
    files = config_files(objects)
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    for name, template in pod_templates(objects).items():
        container = container_of(template)
        program, *arguments = container["command"] + container.get("args", [])
        assert program == name
        flags = help_of(program)[1]
        given = {one["name"]: one["value"] for one in container.get("env", [])}
        for variable in given:
            if variable.startswith("LYNX_"):
                assert variable.removeprefix("LYNX_").lower().replace("_", "-") in flags, variable
        # As LeaderWorkerSet would, of a group's first pod.
        group = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
        command = [re.sub(r"\$\((\w+)\)", lambda m: group[m[1]], argument).replace("/etc/lynx/", f"{tmp_path}/") for argument in arguments]
        command += ["--check-config"]
        environment = {key: value for key, value in given.items() if key.startswith("LYNX_")}
        done = subprocess.run([BIN / program, *command], capture_output=True, text=True, env=environment, timeout=30)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_of_files_and_manifests_are_the_same(overlay):
    objects = render(overlay)
    files = config_files(objects)
    templates = pod_templates(objects)
    for role, options in (("router", {"http": "listen", "metrics": "admin-listen"}),
                          ("prefill", {"control": "control", "metrics": "http"}),
                          ("decode", {"control": "control", "metrics": "http"})):
        ports = {port["name"]: port["containerPort"] for port in container_of(templates[f"lynx-{role}"])["ports"]}
        for port, name in options.items():
            assert option(files[f"{role}.conf"], name) == f"0.0.0.0:{ports[port]}", (role, port)
        if role != "router":
            services = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == f"lynx-{role}"]
            assert services[0]["spec"]["clusterIP"] == "None"
            assert option(files["router.conf"], role) == f"lynx-{role}:{ports['control']}"
    models = {option(text, "model") for text in files.values()}
    names = {option(text, "served-model-name") for text in files.values()}
    assert len(models) == 1 and len(names) == 1


def test_routes_lead_to_routers_and_cut_no_long_answer():
    objects = render("cpu-demo", "gateway-api")
    services = {one["metadata"]["name"]: {port["port"] for port in one["spec"]["ports"]} for one in of_kind(objects, "Service")}
    (route,) = of_kind(objects, "HTTPRoute")
    for rule in route["spec"]["rules"]:
        assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
        for backend in rule["backendRefs"]:
            assert backend["port"] in services[backend["name"]]


def test_groups_are_as_large_as_the_nodes_have_ranks():
    objects = render("gpu-multi-node")
    for one in of_kind(objects, "LeaderWorkerSet"):
        role = one["metadata"]["name"].removeprefix("lynx-")
        assert option(config_files(objects)[f"{role}.conf"], "tp") == str(one["spec"]["leaderWorkerTemplate"]["size"])
        assert one["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert one["spec"]["startupPolicy"] == "LeaderCreated"


def test_nodes_are_told_to_compute_on_gpus_once_they_can():
    ranks = subprocess.run([BIN / "lynx-decode", "--check-config", "--model", "x", "--device", "cuda", "--tp", "2"], capture_output=True)
    for overlay, can in (("gpu-single", True), ("gpu-multi-node", ranks.returncode == 0)):
        told = {option(text, "device") for file, text in config_files(render(overlay)).items() if file != "router.conf"}
        assert told == ({"cuda"} if can else {None}), overlay


def test_rules_of_the_operator_are_those_of_prometheus():
    written = subprocess.run([K8S / "components/monitoring/make_rules.py"], capture_output=True, text=True, check=True).stdout
    assert written == (K8S / "components/monitoring/prometheusrule.yaml").read_text()
    groups = [group for name in ("slo.rules.yml", "alerts.yml")
              for group in yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["groups"]]
    (rule,) = of_kind(render("cpu-demo", "monitoring"), "PrometheusRule")
    assert rule["spec"]["groups"] == groups


def test_autoscalers_go_by_metrics_that_exist():
    page = (ROOT / "docs/metrics.md").read_text()
    queries = [trigger["metadata"]["query"] for one in of_kind(render("cpu-demo", "autoscale-keda"), "ScaledObject")
               for trigger in one["spec"]["triggers"]]
    names = {re.match(r"\w+", selector)[0] for query in queries for selector in selectors(query)}
    for one in of_kind(render("cpu-demo", "autoscale-hpa"), "HorizontalPodAutoscaler"):
        names |= {metric["pods"]["metric"]["name"] for metric in one["spec"]["metrics"] if metric["type"] == "Pods"}
    assert len(names) >= 3
    for name in names:
        assert f"| `{name}` |" in page, name
