"""The demo overlay's own commands, files and variables, run on this machine."""
import json
import pathlib
import re

import pytest

from cluster import MODEL, Process, fetch, wait_for
from manifests import config_files, container_of, pod_templates, render


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


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """{role: Process} of the overlay cpu-demo; only addresses and the model's folder are this machine's."""
    folder = tmp_path_factory.mktemp("demo")
    objects = render("cpu-demo")
    for name, text in config_files(objects).items():
        (folder / name).write_text(text)
    running = {}

    def start(role, *own):
        container = container_of(pod_templates(objects)[f"lynx-{role}"])
        program, *arguments = [argument.replace("/etc/lynx/", f"{folder}/") for argument in container["command"]]
        env = {one["name"]: one["value"] for one in container.get("env", [])}
        running[role] = Process(folder, role, program, *arguments, "--model", MODEL, *own, env=env)

    try:
        for role in ("prefill", "decode"):
            start(role, "--http", "127.0.0.1:0", "--control", "127.0.0.1:0", "--threads", 1)
        for role in ("prefill", "decode"):
            running[role].wait_announced()
        start("router", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
              "--prefill", running["prefill"].control, "--decode", running["decode"].control)
        running["router"].wait_announced()
        wait_for(lambda: fetch(running["router"].url("/readyz"))[0] == 200, 60, "ready router")
        yield running
    finally:
        ended = {role: process.stop() for role, process in reversed(running.items())}
    assert set(ended.values()) == {0}, ended
    for process in running.values():  # UCX tells of variables that nobody reads.
        assert "unused env" not in process.log(), process.log()


def test_it_answers_and_remaps_experts(demo):
    body = {"model": MODEL.name, "prompt": "import os", "max_tokens": 8, "n": 4}
    status, text = fetch(demo["router"].url("/v1/completions"), data=json.dumps(body).encode(),
                         headers={"Content-Type": "application/json"})
    assert status == 200, text
    assert demo["decode"].metric("lynx_moe_policy_info", policy="lynx") == 1
    assert demo["decode"].metric("lynx_kv_transfers_total", direction="recv", result="ok") > 0


def test_nodes_listen_only_where_policies_let_peers_in(demo):
    for role in ("prefill", "decode"):
        process = demo[role]
        own = {int(address.rsplit(":", 1)[1]) for address in (process.http, process.control)}
        others = listening_ports(process) - own
        assert own < listening_ports(process)
        assert all(9200 <= port <= 9299 for port in others), (role, others)
