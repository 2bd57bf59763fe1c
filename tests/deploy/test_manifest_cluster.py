"""The overlays' own commands, files and variables, run on this machine."""
import copy
import json
import pathlib
import re
import signal

import pytest

from cluster import MODEL, Process, fetch, wait_for
from manifests import config_files, container_of, pod_templates, render
from prometheus import free_port


def listening_ports(process):
    """TCP ports that a process listens at."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{process.process.pid}/fd").iterdir():
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", str(fd.readlink())))
        except FileNotFoundError:  # Closed meanwhile.
            pass
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


class Pods:
    """Processes started as the pods of an overlay are; only addresses, the model's folder and memory are this machine's."""

    def __init__(self, folder, overlay):
        self.folder = folder
        objects = render(overlay)
        self.templates = copy.deepcopy(pod_templates(objects))
        for name, text in config_files(objects).items():
            (folder / name).write_text(text)
        self.running = {}

    def start(self, name, role, *own, group=None):
        """`group`: what LeaderWorkerSet sets."""
        container = container_of(self.templates[f"lynx-{role}"])
        program, *arguments = [re.sub(r"\$\((\w+)\)", lambda m: group[m[1]], argument.replace("/etc/lynx/", f"{self.folder}/"))
                               for argument in container["command"] + container.get("args", [])]
        # Which network devices there are is the hosts' own.
        env = {one["name"]: one["value"] for one in container.get("env", [])
               if one["name"] not in ("LYNX_UCX_TLS", "LYNX_UCX_NET_DEVICES", "UCX_IB_GID_INDEX")}
        self.running[name] = Process(self.folder, name, program, *arguments, "--model", MODEL, *own, env=env)
        return self.running[name]

    def start_router(self, prefill, decode):
        router = self.start("router", "router", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
                            "--prefill", prefill.control, "--decode", decode.control).wait_announced()
        wait_for(lambda: fetch(router.url("/readyz"))[0] == 200, 60, "ready router")

    def stop(self):
        for process in self.running.values():  # All at once, as Kubernetes does: a group ends with its leader.
            process.signal(signal.SIGTERM)
        try:
            ended = {name: process.process.wait(30) for name, process in self.running.items()}
        finally:
            for process in self.running.values():
                process.kill()
        assert set(ended.values()) == {0}, ended
        for process in self.running.values():  # UCX tells of variables that nobody reads.
            assert "unused env" not in process.log(), process.log()


NODE = ("--http", "127.0.0.1:0", "--control", "127.0.0.1:0", "--threads", 1, "--kv-memory", "64MiB")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """{role: Process} of the overlay cpu-demo."""
    pods = Pods(tmp_path_factory.mktemp("demo"), "cpu-demo")
    try:
        for role in ("prefill", "decode"):
            pods.start(role, role, *NODE)
        for role in ("prefill", "decode"):
            pods.running[role].wait_announced()
        pods.start_router(pods.running["prefill"], pods.running["decode"])
        yield pods.running
    finally:
        pods.stop()


def ask(router, model):
    body = {"model": model, "prompt": "import os", "max_tokens": 8, "n": 4}
    status, text = fetch(router.url("/v1/completions"), data=json.dumps(body).encode(),
                         headers={"Content-Type": "application/json"})
    assert status == 200, text


def test_it_answers_and_remaps_experts(demo):
    ask(demo["router"], MODEL.name)
    assert demo["decode"].metric("lynx_moe_policy_info", policy="lynx") == 1
    assert demo["decode"].metric("lynx_kv_transfers_total", direction="recv", result="ok") > 0


def test_nodes_listen_only_where_policies_let_peers_in(demo):
    for role in ("prefill", "decode"):
        process = demo[role]
        own = {int(address.rsplit(":", 1)[1]) for address in (process.http, process.control)}
        others = listening_ports(process) - own
        assert own < listening_ports(process)
        assert all(9200 <= port <= 9299 for port in others), (role, others)


def test_groups_of_ranks_find_one_another_and_answer(tmp_path):
    pods = Pods(tmp_path, "gpu-multi-node")
    try:
        for role in ("prefill", "decode"):
            port = free_port()
            for rank in ("0", "1"):
                group = {"LWS_WORKER_INDEX": rank, "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
                template = container_of(pods.templates[f"lynx-{role}"])
                template["args"] = [argument.replace(":9300", f":{port}") for argument in template["args"]]
                pods.start(f"{role}-{rank}", role, *NODE, group=group)
        for role in ("prefill", "decode"):
            pods.running[f"{role}-0"].wait_announced()
        pods.start_router(pods.running["prefill-0"], pods.running["decode-0"])
        ask(pods.running["router"], "model")
        for role in ("prefill", "decode"):
            assert pods.running[f"{role}-0"].metric("lynx_node_ranks") == 2
    finally:
        pods.stop()
