"""Nodes that die or freeze under many streams."""
import json
import signal
import threading
import time

import pytest

from cluster import LONG, running_cluster, wait_for
from test_failures import completion, events_of

STREAMS = 30


def body_of(i):
    """Every stream is its own: sampled, with a penalty, or greedy with log-probabilities."""
    fields = ({"temperature": 1, "seed": i}, {"temperature": 0.7, "seed": i, "frequency_penalty": 0.5},
              {"temperature": 0, "logprobs": 1})[i % 3]
    return completion(prompt=f"def step_{i}(", max_tokens=150, ignore_eos=True, stream=True, **fields)


def essence(events):
    """What a stream says, but for how it is cut into chunks."""
    assert events[-1] == "[DONE]", events[-1]
    text, logprobs, reasons = "", [], []
    for event in events[:-1]:
        choice, = json.loads(event)["choices"]
        text += choice["text"]
        logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
    return text, logprobs, reasons


def ask_all(cluster, meanwhile=lambda events: None, tokens=150):
    """The answers to all streams at once; `meanwhile` runs beside them and sees their events."""
    events = [[] for _ in range(STREAMS)]
    broken = []

    def ask(i):
        try:
            _, ended = events_of(cluster, {**body_of(i), "max_tokens": tokens}, events=events[i])
            if not ended:
                broken.append((i, "closed"))
        except OSError as error:
            broken.append((i, error))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    meanwhile(events)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not broken, broken
    return [essence(one) for one in events]


def in_mid_stream(events):
    """Waits until every stream has begun and a good part of them is far from its end."""
    wait_for(lambda: all(len(one) > 10 for one in events), 60, "streams under way")


@pytest.mark.parametrize("how", ["kill", "freeze", "terminate"])
def test_nodes_that_die_or_freeze_in_mid_stream_cost_no_stream(how):
    flags = ("--drain-timeout", "0s") if how == "terminate" else ()
    with running_cluster(prefill=2, decode=2, decode_flags=flags) as cluster:
        want = ask_all(cluster)
        router, victim = cluster.router, cluster.nodes["decode-0"]

        def strike(events):
            in_mid_stream(events)
            wait_for(lambda: victim.metric("lynx_node_running_requests") > 5, 20, "work on the node")
            if how == "kill":
                victim.kill()
            elif how == "terminate":
                assert victim.stop() == 0
            else:
                victim.signal(signal.SIGSTOP)

        assert ask_all(cluster, strike) == want
        assert router.metric("lynx_router_failovers_total", result="resumed") > 0
        assert router.metric("lynx_router_failovers_total", result="failed") == 0
        if how == "freeze":
            victim.signal(signal.SIGCONT)
        else:
            cluster.restart_node("decode-0")
        wait_for(lambda: router.metric("lynx_router_nodes", state="ready") == 4, 30, "all nodes")
        assert ask_all(cluster) == want
        cluster.wait_idle()


def test_the_only_decode_node_that_returns_in_time_costs_no_stream():
    with running_cluster() as cluster:
        want = ask_all(cluster)

        def strike(events):
            in_mid_stream(events)
            cluster.nodes["decode-0"].kill()
            time.sleep(3)  # The router takes it for gone meanwhile.
            cluster.restart_node("decode-0")

        assert ask_all(cluster, strike) == want


def test_exact_streams_between_unlike_layouts_are_repeated():
    """Prefill nodes have one rank and decode nodes two: their bits differ."""
    with running_cluster(decode=2, decode_flags=("--tp", 2, "--ep", 2)) as cluster:
        want = ask_all(cluster)
        victim = cluster.nodes["decode-0"]

        def strike(events):
            in_mid_stream(events)
            wait_for(lambda: victim.metric("lynx_node_running_requests") > 5, 20, "work on the node")
            victim.kill()

        assert ask_all(cluster, strike) == want
        assert cluster.router.metric("lynx_router_failovers_total", result="resumed") > 5
        assert cluster.router.metric("lynx_router_failovers_total", result="failed") == 0
        cluster.restart_node("decode-0")
        cluster.wait_idle()


@pytest.mark.skipif(not LONG, reason="LYNX_LONG is not set")
def test_node_after_node_dies_and_no_stream_notices():
    with running_cluster(prefill=2, decode=2, router_flags=("--max-retries", 100)) as cluster:
        want = ask_all(cluster)
        for round_ in range(20):
            name = ("decode-0", "prefill-0", "decode-1", "prefill-1")[round_ % 4]

            def strike(events):
                in_mid_stream(events)
                cluster.nodes[name].kill()
                cluster.restart_node(name)

            assert ask_all(cluster, strike) == want
            wait_for(lambda: cluster.router.metric("lynx_router_nodes", state="ready") == 4, 30, "all nodes")
        cluster.wait_idle()
