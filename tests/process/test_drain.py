"""Decode nodes that drain hand their sequences to others, with the KV."""
import json
import signal

from cluster import fetch, running_cluster, wait_for
from test_failover import ask_all, in_mid_stream

TOKENS = 600


def moves(cluster, result):
    return cluster.router.metric("lynx_router_moves_total", result=result)


def expect_nothing_was_computed_again(cluster):
    assert cluster.router.metric("lynx_router_retries_total") == 0
    assert cluster.router.metric("lynx_router_failovers_total") == 0


def test_a_node_that_drains_under_load_costs_no_stream():
    with running_cluster(prefill=2, decode=2) as cluster:
        want = ask_all(cluster, tokens=TOKENS)

        def strike(name):
            def meanwhile(events):
                in_mid_stream(events)
                node = cluster.nodes[name]
                wait_for(lambda: node.metric("lynx_node_running_requests") > 5, 20, "work on the node")
                assert node.stop(60) == 0, "in far less than the grace"
                assert any(events[i][-1] != "[DONE]" for i in range(len(events))), "it did not wait for the answers"
            return meanwhile

        # There and back: the second has what the first handed over.
        for name in ("decode-0", "decode-1", "decode-0"):
            before = moves(cluster, "moved")
            assert ask_all(cluster, strike(name), TOKENS) == want
            assert moves(cluster, "moved") > before + 5
            cluster.restart_node(name)
            wait_for(lambda: cluster.router.metric("lynx_router_nodes", state="ready") == 4, 30, "all nodes")
        expect_nothing_was_computed_again(cluster)
        cluster.wait_idle()


def test_every_rank_of_a_node_hands_over_what_it_holds():
    with running_cluster(decode=2, decode_flags=("--tp", 2)) as cluster:
        want = ask_all(cluster)

        def strike(events):
            in_mid_stream(events)
            assert cluster.nodes["decode-0"].stop(60) == 0

        assert ask_all(cluster, strike) == want
        assert moves(cluster, "moved") > 0
        expect_nothing_was_computed_again(cluster)


def test_a_second_signal_ends_the_drain():
    with running_cluster() as cluster:
        want = ask_all(cluster, tokens=TOKENS)
        node = cluster.nodes["decode-0"]

        def strike(events):
            in_mid_stream(events)
            node.signal(signal.SIGTERM)
            wait_for(lambda: fetch(node.url("/readyz"))[0] == 503, 10, "drain")
            assert node.process.poll() is None, "nobody can take what it has"
            node.signal(signal.SIGTERM)
            assert node.process.wait(20) == 0
            assert any(one[-1] != "[DONE]" for one in events)
            cluster.restart_node("decode-0")

        assert ask_all(cluster, strike, TOKENS) == want
        assert moves(cluster, "no_node") > 0


def test_a_router_has_a_node_drain_that_was_asked_to():
    with running_cluster(decode=2, router_flags=("--allow-drain",)) as cluster:
        node = cluster.nodes["decode-0"]
        want = ask_all(cluster, tokens=TOKENS)

        def ask(body, kind="application/json"):
            return fetch(cluster.router.url("/nodes/drain"), data=body, headers={"Content-Type": kind})[0]

        def strike(events):
            in_mid_stream(events)
            assert ask(json.dumps({"node": node.control}).encode()) == 202
            assert node.process.wait(60) == 0

        assert ask_all(cluster, strike, TOKENS) == want
        assert moves(cluster, "moved") > 0
        expect_nothing_was_computed_again(cluster)
        for body, kind, status in ((b"{}", "application/json", 400), (b'{"node": 1}', "application/json", 400),
                                   (b'{"node": "x:1"}', "application/json", 409), (b'{"node": "x:1"}', "text/plain", 415),
                                   (json.dumps({"node": node.control}).encode(), "application/json", 409)):
            assert ask(body, kind) == status, body
