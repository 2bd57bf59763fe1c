"""Many clients at once, some of whom leave, and nodes that freeze under them."""
import json
import os
import random
import signal
import socket
import threading
import time

from cluster import LONG, running_cluster, wait_for

NAME = "lynx-tiny-moe"
PROMPTS = ["import os", "def f(x):\n    return", "Sort: 42 7 19 88", "a", "The quick brown fox " * 20,
           "€uro 日本語 text ✓", ["one", "two"], [7] * 16, [9] * 33]


def random_request(rng):
    """(path, body) whose answer is a function of the body."""
    body = {"model": NAME, "max_tokens": rng.choice([1, 2, 5, 20, 60, 120]), "temperature": 0}
    chat = rng.random() < 0.35
    if chat:
        body["messages"] = [{"role": "user", "content": rng.choice(PROMPTS[:6])}]
    else:
        body["prompt"] = rng.choice(PROMPTS)
    options = [
        {"n": rng.choice([2, 3, 4])},
        {"stop": rng.choice(["\n", ["e", "zz"], [" the", "in"], "."])},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"temperature": rng.choice([0.5, 1.0, 1.5]), "seed": rng.randrange(1000)},
        {"top_p": 0.9}, {"top_k": 20}, {"ignore_eos": True},
        {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": rng.choice([0, 1, 5])},
        {} if chat else {"echo": True},
    ]
    for option in options:
        if rng.random() < 0.4:
            body.update(option)
    return ("/v1/chat/completions" if chat else "/v1/completions"), body


def content(choices):
    """{index: [text, finish reason, log-probabilities]} of whole choices or of a stream's pieces."""
    folded = {}
    for choice in choices:
        entry = folded.setdefault(choice["index"], ["", None, []])
        piece = choice.get("message") or choice.get("delta")
        entry[0] += choice["text"] if piece is None else piece.get("content") or ""
        entry[1] = choice["finish_reason"] or entry[1]
        logprobs = choice.get("logprobs") or {}
        entry[2] += logprobs.get("content") or logprobs.get("token_logprobs") or []
    return folded


def ask(cluster, request, stream=False, leave=None):
    """(status, content or error). `leave()` says whether to go after some more bytes; then (None, None)."""
    path, body = request
    data = json.dumps({**body, "stream": stream}).encode()
    host, port = cluster.router.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                           b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        received = b""
        while piece := connection.recv(4096):
            received += piece
            if leave and leave():
                return None, None
    head, _, text = received.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if not stream or status != 200:
        answer = json.loads(text)
        return status, content(answer["choices"]) if status == 200 else answer["error"]
    events, rest = b"", text
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        events, rest = events + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    events = [line[6:] for line in events.decode().split("\n") if line.startswith("data: ")]
    parts = [json.loads(event) for event in events if event != "[DONE]"]
    error = next((part["error"] for part in parts if "error" in part), None)
    assert (events[-1] == "[DONE]") == (error is None), events[-2:]
    return (200, content(c for part in parts for c in part["choices"])) if error is None else (500, error)


def descriptors(process):
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))


def run_clients(count, work):
    """Runs `work(rng)` on `count` threads until each has returned; raises what one of them raised."""
    failures = []

    def one(seed):
        try:
            work(random.Random(seed))
        except BaseException as failure:  # Whatever it is, the test's thread must see it.
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def load(cluster, requests, want, clients, leaving, until):
    """Clients that ask at random until `until()`; every whole answer must be the wanted one. Returns
    {status: count}."""
    counts = {}
    lock = threading.Lock()

    def work(rng):
        while not until():
            index = rng.randrange(len(requests))
            leave = (lambda: rng.random() < 0.3) if rng.random() < leaving else None
            try:
                status, answer = ask(cluster, requests[index], rng.random() < 0.6, leave)
            except json.JSONDecodeError as failure:
                raise AssertionError(f"half an answer to {requests[index]}") from failure
            if status == 200:
                assert answer == want[index], requests[index]
            with lock:
                counts[status] = counts.get(status, 0) + 1

    run_clients(clients, work)
    return counts


def test_answers_under_load_are_those_given_alone():
    rng = random.Random(20240607)
    requests = [random_request(rng) for _ in range(120 if LONG else 50)]
    # The second cluster preempts: its pool holds a little more than one context.
    for flags in ((), ("--kv-blocks", "130")):
        with running_cluster(node_flags=flags) as cluster:
            want = []
            for request in requests:
                status, answer = ask(cluster, request)
                assert status == 200, (request, answer)
                want.append(answer)
            open_before = None
            for _ in range(10 if LONG else 2):
                end = time.monotonic() + (15 if LONG else 3)
                counts = load(cluster, requests, want, 64, 0.35, lambda: time.monotonic() > end)
                assert set(counts) <= {200, None} and counts[200] > 20, counts
                cluster.wait_idle()
                wait_for(lambda: cluster.router.metric("lynx_router_inflight_requests") == 0, 10, "quiet router")
                now = [descriptors(p) for p in cluster.processes()]
                open_before = open_before or now
                assert all(a <= b + 8 for a, b in zip(now, open_before)), (now, open_before)


def test_a_frozen_node_keeps_nothing_of_what_was_given_up_meanwhile():  # SCH-6
    rng = random.Random(7)
    requests = [random_request(rng) for _ in range(30)]
    with running_cluster(prefill=2, decode=2) as cluster:
        want = [ask(cluster, request)[1] for request in requests]
        over = threading.Event()
        counts = {}
        clients = threading.Thread(
            target=lambda: counts.update(load(cluster, requests, want, 24, 0.2, over.is_set)))
        clients.start()
        try:
            # Longer than the router's patience of two seconds, shorter than the node's of ten.
            for name in ("decode-0", "prefill-0", "decode-1") * (3 if LONG else 1):
                node = cluster.nodes[name]
                node.signal(signal.SIGSTOP)
                time.sleep(2.6)
                node.signal(signal.SIGCONT)
                wait_for(lambda: sum(v for (n, labels), v in cluster.router.metrics().items()
                                     if n == "lynx_router_nodes" and ("state", "ready") in labels) == 4,
                         20, f"{name} back")
        finally:
            over.set()
            clients.join()
        assert set(counts) <= {200, None} and counts[200] > 50, counts
        cluster.wait_idle()
        for request, answer in zip(requests, want):
            assert ask(cluster, request) == (200, answer)


def test_overload_is_refused_at_once_and_passes():
    with running_cluster(router_flags=("--max-inflight", "1", "--max-queued", "1")) as cluster:
        body = {"model": NAME, "prompt": "import os", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        want = ask(cluster, ("/v1/completions", body))
        answers = []

        def one(_):
            began = time.monotonic()
            answers.append((ask(cluster, ("/v1/completions", body)), time.monotonic() - began))

        run_clients(40, one)
        refused = [(error, took) for (status, error), took in answers if status == 429]
        assert len(refused) >= 30 and all(took < 5 and error["message"] for error, took in refused)
        assert [answer for answer, _ in answers if answer[0] != 429] == [want] * (40 - len(refused))
        cluster.wait_idle()
        assert ask(cluster, ("/v1/completions", body)) == want


def test_more_choices_than_the_queue_can_ever_take_are_the_requests_fault():
    with running_cluster(router_flags=("--max-inflight", "2", "--max-queued", "1")) as cluster:
        body = {"model": NAME, "prompt": "import os", "max_tokens": 4}
        for fields, param in (({"n": 4}, "n"), ({"prompt": ["a"] * 4}, "prompt"), ({"prompt": ["a"] * 2, "n": 2}, "prompt")):
            status, answer = cluster.post("/v1/completions", {**body, **fields})
            assert status == 400 and answer["error"]["param"] == param and "3" in answer["error"]["message"], answer
        status, answer = cluster.post("/v1/completions", {**body, "n": 3})
        assert status == 200 and len(answer["choices"]) == 3
