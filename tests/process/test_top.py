"""`lynx top`: a look at a cluster from outside."""
import json
import re
import subprocess
import threading

from cluster import BIN, fetch, running_cluster

NAME = "lynx-tiny-moe"


def top(*arguments):
    return subprocess.run([str(BIN / "lynx"), "top", "--once", "--interval", "1s", *arguments],
                          capture_output=True, text=True, timeout=30)


def test_top_shows_nodes_and_what_they_do():
    with running_cluster(decode_flags=("--prompt-rows", 0)) as cluster:
        stop = threading.Event()

        def talk():
            while not stop.is_set():
                assert cluster.post("/v1/completions", {"model": NAME, "prompt": "a b c", "max_tokens": 32})[0] == 200

        talker = threading.Thread(target=talk)
        talker.start()
        try:
            shown = top(cluster.router.url(""))
        finally:
            stop.set()
            talker.join()
        assert shown.returncode == 0, shown.stderr
        lines = {line.split()[1]: line.split() for line in shown.stdout.splitlines()
                 if re.match("(prefill|decode) ", line)}
        assert set(lines) == {node.control for node in cluster.nodes.values()}, shown.stdout
        assert all(line[2] == "ready" for line in lines.values()), shown.stdout
        for role in ("prefill", "decode"):
            assert sum(float(lines[node.control][7]) for node in cluster.of_role(role)) > 0, shown.stdout
        assert re.search(r"a second: [\d.]*[1-9][\d.]* ok", shown.stdout), shown.stdout


def test_nodes_page_names_every_node(cluster):
    status, text = fetch(cluster.router.url("/nodes"))
    assert status == 200
    nodes = {node["endpoint"]: node for node in json.loads(text)["nodes"]}
    for name, process in cluster.nodes.items():
        node = nodes[process.control]
        assert node["role"] == name.split("-")[0] and node["model"] == NAME
        assert node["kv_blocks"] == process.metric("lynx_kv_capacity_blocks")


def test_top_says_what_is_wrong(cluster):
    for arguments, status, words in (
            (("ftp://x",), 2, "ftp"), (("--interval", "0s"), 2, "--interval"), (("http://127.0.0.1:1",), 1, "127.0.0.1:1/nodes"),
            ((cluster.of_role("decode")[0].url(""),), 1, "HTTP 404")):
        shown = top(*arguments)
        assert shown.returncode == status and words in shown.stderr, (arguments, shown)
