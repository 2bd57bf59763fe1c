"""Clients that close their connection in every phase of a request: both sides are free again."""
import json
import random
import signal
import socket
import threading
import time

import pytest

from cluster import LONG, running_cluster, wait_for

NAME = "lynx-tiny-moe"


def begin(cluster, path="/v1/completions", sent=None, **fields):
    """A connection on which so many bytes of a request, or all, are sent."""
    body = {"model": NAME, "max_tokens": 1000, "temperature": 0, "ignore_eos": True, **fields}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "hi"}]
    else:
        body.setdefault("prompt", "import os")
    data = json.dumps(body).encode()
    whole = (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
             % (path.encode(), len(data)) + data)
    host, port = cluster.router.http.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(whole[:sent])
    return connection


def leave(connection, how):
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    elif how == "half":
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 20)
    connection.close()


def placed(cluster):
    return cluster.router.metric("lynx_router_inflight_sequences")


def released(cluster):
    return cluster.router.metric("lynx_router_release_duration_seconds_count")


def expect_at_rest(cluster):
    wait_for(lambda: placed(cluster) == 0 and cluster.router.metric("lynx_router_queued_requests") == 0, 20,
             "empty router")
    cluster.wait_idle()
    wait_for(lambda: all(node.metric(f"lynx_node_{state}_requests") == 0 for node in cluster.nodes.values()
                         for state in ("running", "waiting")), 10, "idle nodes")


@pytest.fixture(scope="module")
def pair():
    with running_cluster(router_flags=("--max-inflight", "2")) as cluster:
        yield cluster
        status, answer = cluster.post("/v1/completions", {"model": NAME, "prompt": "import os", "max_tokens": 4})
        assert status == 200, answer


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [True, False])
def test_whoever_leaves_while_decoding_is_gone_at_once(pair, stream, how):
    tokens = pair.nodes["decode-0"].metric("lynx_node_output_tokens_total")
    before = released(pair)
    connection = begin(pair, stream=stream)
    wait_for(lambda: pair.nodes["decode-0"].metric("lynx_node_output_tokens_total") > tokens + 5, 20, "decoding")
    leave(connection, how)
    expect_at_rest(pair)
    wait_for(lambda: released(pair) == before + 1, 10, "released sequence")


@pytest.mark.parametrize("stream", [True, False])
def test_whoever_leaves_while_the_prompt_is_computed_or_waits_for_it(pair, stream):
    prefill = pair.nodes["prefill-0"]
    decisions = pair.router.metric("lynx_router_routing_decisions_total")
    before = released(pair)
    prefill.signal(signal.SIGSTOP)
    try:
        connections = [begin(pair, prompt=[7 + i] * 1000, stream=stream, n=1) for i in range(2)]
        wait_for(lambda: pair.router.metric("lynx_router_routing_decisions_total") == decisions + 2, 20, "prompts sent")
        for connection in connections:
            connection.close()
        wait_for(lambda: placed(pair) == 0, 10, "cancelled sequences")
    finally:
        prefill.signal(signal.SIGCONT)
    expect_at_rest(pair)
    wait_for(lambda: released(pair) == before + 2, 10, "released sequences")


def test_whoever_leaves_the_queue_held_nothing(pair):
    before = released(pair)
    running = [begin(pair, stream=True) for _ in range(2)]
    wait_for(lambda: placed(pair) == 2, 20, "running sequences")
    waiting = [begin(pair, stream=stream) for stream in (True, False, True)]
    wait_for(lambda: pair.router.metric("lynx_router_queued_requests") == 3, 20, "queue")
    for connection in waiting:
        connection.close()
    wait_for(lambda: pair.router.metric("lynx_router_queued_requests") == 0, 10, "empty queue")
    assert placed(pair) == 2 and released(pair) == before
    for connection in running:
        connection.close()
    expect_at_rest(pair)


@pytest.mark.parametrize("sent", [1, 40, 120, -10])
def test_whoever_leaves_before_all_is_sent_was_never_here(pair, sent):
    for _ in range(5):
        begin(pair, sent=sent).close()
    expect_at_rest(pair)


def test_all_choices_of_a_request_leave_with_it(pair):
    before = released(pair)
    connection = begin(pair, "/v1/chat/completions", stream=True, n=2)
    wait_for(lambda: placed(pair) == 2, 20, "both choices")
    connection.close()
    expect_at_rest(pair)
    wait_for(lambda: released(pair) == before + 2, 10, "released sequences")


def test_clients_that_leave_at_any_moment_leave_nothing():
    with running_cluster(prefill=2, decode=2) as cluster:
        def work(seed):
            rng = random.Random(seed)
            for _ in range(60 if LONG else 15):
                connection = begin(cluster, stream=rng.random() < 0.5, n=rng.choice([1, 1, 2]),
                                   prompt=[rng.randrange(1000)] * rng.choice([3, 100, 900]))
                time.sleep(rng.random() * rng.choice([0.003, 0.03, 0.3]))
                leave(connection, rng.choice(["close", "reset"]))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect_at_rest(cluster)
        assert released(cluster) > 0
        assert cluster.post("/v1/completions", {"model": NAME, "prompt": "import os", "max_tokens": 4})[0] == 200
