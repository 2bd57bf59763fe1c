"""Experts that change ranks while a node serves: nobody's tokens notice."""
import concurrent.futures
import json
import signal
import time

from cluster import running_cluster
from test_up import Up

NAME = "lynx-tiny-moe"
PROMPTS = ["import os", "static int __init ", "The quick brown", "def f(x):\n    return", "SELECT * FROM", "#include <"]


def streams(cluster):
    """Text and log-probabilities of exact answers that are made beside each other."""

    def ask(number):
        status, answer = cluster.post("/v1/completions", {
            "model": NAME, "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 40, "seed": number, "logprobs": 3,
            "temperature": number % 2, "ignore_eos": True})
        assert status == 200, answer
        return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        return list(pool.map(ask, range(12)))


def ranks(*more):
    return {"decode-0": ("--tp", 2, "--ep", 2, "--ep-spare", 1, *more)}


def test_streams_are_those_of_a_node_whose_experts_stay():
    with running_cluster(own_flags=ranks("--ep-rebalance-interval", "0s")) as cluster:
        undisturbed = streams(cluster)
        node = cluster.nodes["decode-0"]
        assert node.metric("lynx_moe_spare_experts") == 1
        assert node.metric("lynx_moe_placement_changes_total", result="made") == 0
    moving = ranks("--ep-rebalance-interval", "50ms", "--ep-rebalance-gain", 0)
    with running_cluster(own_flags=moving) as cluster:
        node = cluster.nodes["decode-0"]

        def made():
            return node.metric("lynx_moe_placement_changes_total", result="made")

        deadline = time.monotonic() + 120
        while made() < 3:
            assert time.monotonic() < deadline, node.log()
            assert streams(cluster) == undisturbed
        assert streams(cluster) == undisturbed
        assert node.metric("lynx_moe_placement_changes_total", result="dropped") == 0
        assert node.metric("lynx_moe_placement_moved_bytes_total") > 0
        cluster.wait_idle()


def test_up_gives_decode_nodes_spare_slots(tmp_path):
    up = Up(tmp_path, "--decode-tp", "2", "--decode-ep", "2", "--decode-ep-spare", "1")
    up.ask()
    assert up.end(signal.SIGINT) == 0
    classes = [json.loads(line)["numeric_class"] for line in up.log().splitlines() if '"model loaded"' in line]
    assert sorted(name.endswith("/tp2/dp1/ep2/experts-move") for name in classes) == [False, True]
