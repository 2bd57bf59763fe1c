"""Processes that die, come back, or never should have started."""
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

from cluster import BIN, LONG, MODEL, ROOT, Process, fetch, running_cluster, wait_for

NAME = "lynx-tiny-moe"


def completion(**fields):
    return {"model": NAME, "prompt": "import os", "max_tokens": 8, "temperature": 0, **fields}


def events_of(cluster, body, on_event=lambda n: None, events=None):
    """Reads one stream to its end; returns the data of its events and whether it ended properly. on_event hears the
    number of events; `events` is the list to collect them in."""
    host, port = cluster.router.http.rsplit(":", 1)
    data = json.dumps(body).encode()
    events, received = [] if events is None else events, b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(data) + data)
        while b"0\r\n\r\n" not in received[-7:]:
            piece = connection.recv(65536)
            if not piece:
                return events, False
            received += piece
            found = re.findall(rb"data: (.*)\n", received)
            for event in found[len(events):]:
                events.append(event.decode())
                on_event(len(events))
    return events, True


def test_the_only_decode_node_that_dies_in_mid_stream_is_an_error_not_an_end():  # STR-6
    with running_cluster(router_flags=("--resume-timeout", "2s")) as cluster:
        decode = cluster.nodes["decode-0"]

        def kill_after_five(count):
            if count == 5:
                decode.kill()

        events, _ = events_of(cluster, completion(max_tokens=1500, ignore_eos=True, stream=True), kill_after_five)
        assert "[DONE]" not in events
        last = json.loads(events[-1])
        assert set(last) == {"error"} and last["error"]["message"]
        assert all("choices" in json.loads(event) for event in events[:-1])

        # Not streamed: a 5xx with a JSON error, and 503 while nothing can serve.
        status, answer = cluster.post("/v1/completions", completion())
        assert status in (500, 503) and answer["error"]["message"]
        wait_for(lambda: fetch(cluster.router.url("/readyz"))[0] == 503, 20, "unready router")
        failures = [v for (n, labels), v in cluster.router.metrics().items()
                    if n == "lynx_router_requests_total" and ("outcome", "stream_error") in labels]
        assert sum(failures) >= 1


def dead_after_prefill(cluster, ask):
    """Runs `ask` in a thread and kills decode at a known point: prefill has sampled the first token, and the router,
    which is frozen, has not read it."""
    decode, prefill, router = cluster.nodes["decode-0"], cluster.nodes["prefill-0"], cluster.router
    placed = router.metric("lynx_router_routing_decisions_total")
    sampled = prefill.metric("lynx_node_output_tokens_total")
    prefill.signal(signal.SIGSTOP)
    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: router.metric("lynx_router_routing_decisions_total") == placed + 1, 20, "prompt on its way")
    decode.signal(signal.SIGSTOP)  # It must not answer either.
    router.signal(signal.SIGSTOP)
    prefill.signal(signal.SIGCONT)
    wait_for(lambda: prefill.metric("lynx_node_output_tokens_total") == sampled + 1, 20, "first token")
    decode.kill()
    router.signal(signal.SIGCONT)
    thread.join(60)
    assert not thread.is_alive()


def failures(cluster):
    return sum(v for (n, labels), v in cluster.router.metrics().items() if n == "lynx_router_requests_total"
               and dict(labels)["outcome"] in ("stream_error", "server_error", "rejected"))


def test_a_decode_node_that_dies_before_the_first_token_is_read_is_an_error():  # STR-6
    with running_cluster(router_flags=("--gone-after", "5s", "--resume-timeout", "2s")) as cluster:
        answers = []
        dead_after_prefill(cluster, lambda: answers.append(events_of(cluster, completion(stream=True))))
        (events, _), = answers
        assert "[DONE]" not in events
        errors = [event for event in events if "error" in json.loads(event)]
        assert errors == events[-1:] and json.loads(errors[0])["error"]["message"]
        for event in events[:-1]:
            choice, = json.loads(event)["choices"]
            assert choice["finish_reason"] is None and "text" in choice
        assert failures(cluster) == 1

        cluster.restart_node("decode-0")
        cluster.wait_ready()
        answers = []
        dead_after_prefill(cluster, lambda: answers.append(cluster.post("/v1/completions", completion())))
        (status, answer), = answers
        assert status >= 500 and answer["error"]["message"] and "choices" not in answer
        assert failures(cluster) == 2


@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_a_node_that_dies_with_its_last_token_costs_nothing(tokens):  # STR-6
    with running_cluster() as cluster:
        assert cluster.post("/v1/completions", completion())[0] == 200  # The nodes are connected.
        body = completion(max_tokens=tokens, ignore_eos=True, stream=True)
        want, ended = events_of(cluster, body)
        assert ended and want[-1] == "[DONE]"

        def text(events):
            return "".join(json.loads(event)["choices"][0]["text"] for event in events if event != "[DONE]")

        so_far, killed = [], []

        def kill_at_the_end(_):
            if not killed and text(so_far) == text(want):
                killed.append(cluster.nodes["prefill-0" if tokens == 1 else "decode-0"].kill())

        events, ended = events_of(cluster, body, kill_at_the_end, so_far)
        assert killed and ended and events[-1] == "[DONE]" and text(events) == text(want)
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


def test_a_node_that_comes_back_on_its_address_serves_at_once():  # NODE-1
    with running_cluster(prefill=2, decode=2) as cluster:
        want = cluster.post("/v1/completions", completion(max_tokens=24))[1]["choices"][0]["text"]
        for round_ in range(10 if LONG else 3):
            for name in ("decode-0", "prefill-0"):
                survivors = [p.process.pid for n, p in cluster.nodes.items() if n != name]
                cluster.nodes[name].kill()
                cluster.restart_node(name)

                def joined():
                    gauge = [v for (n, labels), v in cluster.router.metrics().items()
                             if n == "lynx_router_nodes" and ("state", "ready") in labels]
                    return sum(gauge) == 4

                wait_for(joined, 30, f"{name} back in round {round_}")
                # Enough requests that every pair of nodes is used.
                for _ in range(8):
                    status, answer = cluster.post("/v1/completions", completion(max_tokens=24))
                    assert status == 200 and answer["choices"][0]["text"] == want
                assert survivors == [p.process.pid for n, p in cluster.nodes.items() if n != name]
        cluster.wait_idle()


def test_answers_go_on_while_one_of_each_role_remains():
    with running_cluster(prefill=2, decode=2) as cluster:
        cluster.nodes["prefill-1"].kill()
        cluster.nodes["decode-1"].kill()
        deadline = time.monotonic() + 30
        good = 0
        while good < 10 and time.monotonic() < deadline:
            good = good + 1 if cluster.post("/v1/completions", completion())[0] == 200 else 0
        assert good == 10


def test_a_router_that_was_frozen_takes_no_node_for_gone():
    with running_cluster() as cluster:  # Nodes are gone after two seconds of silence.
        def freeze(count):
            if count == 3:
                cluster.router.signal(signal.SIGSTOP)
                time.sleep(3)
                cluster.router.signal(signal.SIGCONT)

        events, ended = events_of(cluster, completion(max_tokens=400, ignore_eos=True, stream=True), freeze)
        assert ended and events[-1] == "[DONE]"
        assert cluster.router.metric("lynx_router_nodes_gone_total") == 0
        assert cluster.post("/v1/completions", completion())[0] == 200


def test_readiness_follows_the_nodes():
    with running_cluster(decode_flags=("--prompt-rows", 0)) as cluster:
        cluster.nodes["prefill-0"].kill()
        wait_for(lambda: fetch(cluster.router.url("/readyz"))[0] == 503, 20, "unready router")
        assert fetch(cluster.router.url("/livez"))[0] == 200
        assert "prefill" in fetch(cluster.router.url("/readyz"))[1]
        status, answer = cluster.post("/v1/completions", completion())
        assert status == 503 and answer["error"]["message"]
        cluster.restart_node("prefill-0")
        cluster.wait_ready()
        assert cluster.post("/v1/completions", completion())[0] == 200


@pytest.mark.parametrize("flags", [("--compute-dtype", "f32"), ("--kv-dtype", "f32")])
def test_nodes_that_do_not_fit_together_are_never_paired(flags):  # KV-5
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        common = ("--model", MODEL, "--control", "127.0.0.1:0", "--http", "127.0.0.1:0", "--threads", 1)
        prefill = Process(folder, "prefill", "lynx-prefill", *common)
        decode = Process(folder, "decode", "lynx-decode", *common, "--prompt-rows", 0, *flags)
        prefill.wait_announced(), decode.wait_announced()
        router = Process(folder, "router", "lynx-router", "--model", MODEL, "--listen", "127.0.0.1:0",
                         "--prefill", prefill.control, "--decode", decode.control).wait_announced()
        try:
            def reason():
                status, text = fetch(router.url("/readyz"))
                return status == 503 and "compatib" in text and text

            text = wait_for(reason, 20, "reason for unreadiness")
            hashes = [re.search(r'"compatibility_hash":"(\w+)"', p.log()).group(1) for p in (prefill, decode)]
            assert hashes[0] != hashes[1] and all(h[:8] in text for h in hashes), text
            began = time.monotonic()
            status, answer = fetch(router.url("/v1/completions"), 30, json.dumps(completion()).encode())
            assert status == 503 and time.monotonic() - began < 5
        finally:
            assert [p.stop() for p in (router, prefill, decode)] == [0, 0, 0]


def run_to_end(program, *arguments, timeout=30):
    return subprocess.run([str(BIN / program), *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout)


def node_fails(model):
    """A node refuses the folder: returns what it says."""
    done = run_to_end("lynx-prefill", "--model", model, "--control", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.fixture
def model_copy(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    return folder


def test_broken_model_folders_are_refused_by_name(model_copy):  # LOAD-2
    weights = model_copy / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert "model.safetensors" in node_fails(model_copy)
    weights.write_bytes(b"")
    assert "model.safetensors" in node_fails(model_copy)
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 31260520\n")
    assert "model.safetensors" in node_fails(model_copy)
    weights.unlink()
    assert "model.safetensors" in node_fails(model_copy)
    weights.write_bytes(whole)
    config = model_copy / "config.json"
    good = json.loads(config.read_text())
    for key, value in (("model_type", "bert"), ("hidden_size", "x"), ("num_experts", 63), ("vocab_size", 5000)):
        config.write_text(json.dumps({**good, key: value}))
        assert re.search(key + "|embed_tokens|gate", node_fails(model_copy)), key
    config.write_text("{" * 10000)
    assert "config.json" in node_fails(model_copy)
    config.unlink()
    assert "config.json" in node_fails(model_copy)
    done = run_to_end("lynx-router", "--model", model_copy, "--listen", "127.0.0.1:0", "--prefill",
                      "127.0.0.1:1", "--decode", "127.0.0.1:2")
    assert done.returncode != 0 and "config.json" in done.stderr


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for program, flags in (("lynx-router", ("--listen", address, "--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2")),
                               ("lynx-decode", ("--http", address, "--control", "127.0.0.1:0")),
                               ("lynx-prefill", ("--control", address, "--http", "127.0.0.1:0"))):
            done = run_to_end(program, "--model", MODEL, *flags)
            assert done.returncode == 1, done.stderr
            sentences = [line for line in done.stderr.splitlines() if line.startswith(f"{program}: ")]
            assert len(sentences) == 1 and address.split(":")[1] in sentences[0], done.stderr


def test_every_program_tells_its_version():
    version = re.search(r"project\(lynx VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    for program in ("lynx", "lynx-router", "lynx-prefill", "lynx-decode"):
        done = run_to_end(program, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{program} {version}\n", "")


def test_unknown_flags_and_bad_values_are_named():
    for program in ("lynx-router", "lynx-prefill", "lynx-decode"):
        done = run_to_end(program, "--no-such-flag", "1")
        assert done.returncode == 2 and "no-such-flag" in done.stderr
        assert run_to_end(program, "--help").returncode == 0
    done = run_to_end("lynx-decode", "--model", MODEL, "--threads", "-3")
    assert done.returncode == 2 and "threads" in done.stderr


def test_draining_finishes_running_streams():
    with running_cluster() as cluster:
        body = completion(max_tokens=400, ignore_eos=True, stream=True)

        def drain_all(count):
            if count == 3:
                cluster.router.signal(signal.SIGTERM)

        events, ended = events_of(cluster, body, drain_all)
        assert ended and events[-1] == "[DONE]"
        assert cluster.router.process.wait(30) == 0


def test_a_router_that_dies_leaves_nothing_on_the_nodes():
    with running_cluster(node_flags=("--router-timeout", "1s")) as cluster:
        def ask():
            try:
                cluster.post("/v1/completions", completion(max_tokens=1900, ignore_eos=True))
            except OSError:
                pass  # The router dies under it.

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        decode = cluster.nodes["decode-0"]
        wait_for(lambda: decode.metric("lynx_kv_blocks", state="used") > 0, 20, "running sequences")
        cluster.router.kill()
        for thread in threads:
            thread.join()
        cluster.wait_idle(timeout=20)
