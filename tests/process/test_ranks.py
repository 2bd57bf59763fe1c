"""Nodes of several ranks: their tokens, their ends, and who may be one."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

from cluster import BIN, LONG, MODEL, Process, fetch, running_cluster, wait_for
from test_up import Up

NAME = "lynx-tiny-moe"
# Ten times what docs/parallelism.md promises: this machine may be busy.
GONE_WITHIN = 20
PROMPTS = ["import os", "static int __init ", "The quick brown", "def f(x):\n    return", [7] * 40 + [9, 1, 300, 5] * 20]


def others_of(node):
    """Process ids of the ranks that the node has started."""
    return [int(pid) for pid in pathlib.Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text().split()]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def answers(cluster):
    texts = []
    for prompt in PROMPTS:
        status, answer = cluster.post("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": 24,
                                                          "temperature": 0, "ignore_eos": True})
        assert status == 200, answer
        texts.append(answer["choices"][0]["text"])
    return texts


@pytest.fixture(scope="module")
def single_rank_answers():
    with running_cluster(node_flags=("--compute-dtype", "f32")) as cluster:
        return answers(cluster)


# Every pair of widths, with experts split in every way somewhere; the short form has the pairs with the most ranks
# between which heads are split, joined and copied.
WIDTHS = [((1, 1), (2, 2)), ((2, 2), (1, 1)), ((2, 1), (4, 4)), ((4, 1), (2, 2))]
if LONG:
    WIDTHS += [((1, 1), (1, 1)), ((1, 1), (2, 1)), ((1, 1), (4, 2)), ((2, 2), (2, 1)), ((4, 4), (1, 1)), ((4, 2), (4, 1))]


@pytest.mark.parametrize("prefill,decode", WIDTHS)
def test_greedy_tokens_are_those_of_single_ranks_whatever_the_widths(single_rank_answers, prefill, decode):
    flags = {name: ("--tp", tp, "--ep", ep) for name, (tp, ep) in (("prefill-0", prefill), ("decode-0", decode))}
    with running_cluster(node_flags=("--compute-dtype", "f32"), own_flags=flags) as cluster:
        assert answers(cluster) == single_rank_answers
        for name, (tp, _) in (("prefill-0", prefill), ("decode-0", decode)):
            assert cluster.nodes[name].metric("lynx_node_ranks") == tp
            assert len(others_of(cluster.nodes[name])) == tp - 1
        others = [pid for node in cluster.nodes.values() for pid in others_of(node)]
        cluster.wait_idle()
    assert not any(alive(pid) for pid in others)  # All ended by themselves: close() saw status 0.


@contextlib.contextmanager
def asking(cluster, prompt_tokens, askers):
    """Threads that ask again and again until this ends; the caller joins them."""
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            cluster.post("/v1/completions", {"model": NAME, "prompt": [5] * prompt_tokens, "max_tokens": 200,
                                             "temperature": 0, "ignore_eos": True})

    threads = [threading.Thread(target=ask) for _ in range(askers)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_rank_that_dies_or_freezes_in_a_step_takes_its_node_down(role, number):
    two = {"prefill": 1, "decode": 1, role: 2}
    # Both of one numeric class: exact requests stay with one.
    flags = {f"{role}-{i}": ("--tp", 2, "--ep", 2) for i in range(2)}
    with running_cluster(**two, own_flags=flags) as cluster:
        node = cluster.nodes[f"{role}-0"]
        (other,) = others_of(node)
        with asking(cluster, prompt_tokens=1500, askers=3) as askers:
            metric = "lynx_node_prompt_tokens_total" if role == "prefill" else "lynx_node_output_tokens_total"
            begun = node.metric(metric)
            wait_for(lambda: node.metric(metric) > begun, 30, "steps of the node")
            os.kill(other, number)
            assert node.process.wait(GONE_WITHIN) == 1
        # Whoever noticed first: the group of ranks, or the step.
        assert "rank 1 is lost" in node.log() or "not heard from: 1" in node.log()
        wait_for(lambda: not alive(other), GONE_WITHIN, "end of rank 1")
        for asker in askers:
            asker.join(60)
        # The router has noticed, and goes on with the other node.
        wait_for(lambda: cluster.router.metric("lynx_router_nodes", role=role, state="gone") == 1, 30, "node to be gone")
        answers(cluster)
        del cluster.nodes[f"{role}-0"]  # Has ended, with 1.


def stands_still(node):
    def steps():
        return node.metric("lynx_node_step_duration_seconds_count")

    before = steps()
    time.sleep(0.2)
    return steps() == before


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_rank_that_is_killed_while_the_others_wait_for_it_in_a_sum_is_named_at_once(role):
    # So long that only the kill can be what ends the node.
    flags = {f"{role}-0": ("--tp", 4, "--ep", 2, "--rank-timeout", "10m", "--rank-call-timeout", "10m")}
    with running_cluster(own_flags=flags, node_flags=("--router-timeout", "1s")) as cluster:
        node = cluster.nodes[f"{role}-0"]
        others = others_of(node)

        def ask():
            with contextlib.suppress(OSError):  # Nobody is left to answer.
                cluster.post("/v1/completions", {"model": NAME, "prompt": [5] * 500, "max_tokens": 1500,
                                                 "temperature": 0, "ignore_eos": True})

        asker = threading.Thread(target=ask)
        if role == "prefill":
            os.kill(others[1], signal.SIGSTOP)
        asker.start()
        # A prompt that has begun, or an answer that goes on.
        wait_for(lambda: node.metric("lynx_node_running_requests") > 0, 30, "a sequence")
        os.kill(others[1], signal.SIGSTOP)
        wait_for(lambda: stands_still(node), 30, "step that waits for rank 2")
        assert all(alive(pid) for pid in [node.process.pid, *others])
        os.kill(others[1], signal.SIGKILL)
        assert node.process.wait(GONE_WITHIN) == 1
        assert "rank 2 is lost" in node.log()
        assert not re.search("rank [013] (is lost|has ended)", node.log())
        wait_for(lambda: not any(alive(pid) for pid in others), GONE_WITHIN, "end of all ranks")
        del cluster.nodes[f"{role}-0"]  # Has ended, with 1.
        cluster.router.kill()  # It would wait for another node.
        asker.join(60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_idle_node_notices_too(number):
    with tempfile.TemporaryDirectory() as folder:
        node = Process(pathlib.Path(folder), "decode", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--tp", 4, "--ep", 2).wait_announced()
        others = others_of(node)
        os.kill(others[1], number)
        assert node.process.wait(GONE_WITHIN) == 1
        assert " is lost" in node.log()
        wait_for(lambda: not any(alive(pid) for pid in others), GONE_WITHIN, "end of all ranks")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_with_their_leader(number):
    with tempfile.TemporaryDirectory() as folder:
        node = Process(pathlib.Path(folder), "decode", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--tp", 2).wait_announced()
        others = others_of(node)
        node.signal(number)
        wait_for(lambda: not any(alive(pid) for pid in others), GONE_WITHIN, "end of the other ranks")
        node.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_in_start_up_ends_it(number):
    with tempfile.TemporaryDirectory() as folder:
        node = Process(pathlib.Path(folder), "decode", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--tp", 2, "--rank-start-timeout", "5s")
        (other,) = wait_for(lambda: node.process.poll() is None and others_of(node), 30, "second rank")
        os.kill(other, number)
        assert node.process.wait(5 + GONE_WITHIN) == 1
        assert "rank 1" in node.log() or "within 5s: 1" in node.log()
        wait_for(lambda: not alive(other), GONE_WITHIN, "end of rank 1")
        assert not node.announce.exists()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(folder, number, port, *flags, model=MODEL):
    return Process(pathlib.Path(folder), f"rank-{number}", "lynx-decode", "--model", model, "--control", "127.0.0.1:0",
                   "--http", "127.0.0.1:0", "--threads", 1, "--tp", 2, "--rank", number, "--leader", f"127.0.0.1:{port}",
                   *flags)


def test_start_up_names_the_ranks_that_do_not_come():
    with tempfile.TemporaryDirectory() as folder:
        leader = rank(folder, 0, free_port(), "--rank-start-timeout", "1s")
        assert leader.process.wait(60) == 1
        assert "ranks that did not come within 1s: 1" in leader.log()
        other = rank(folder, 1, free_port(), "--rank-start-timeout", "1s")
        assert other.process.wait(60) == 1
        assert "rank 0 was not reached within 1s" in other.log()


def test_a_rank_of_a_group_of_another_size_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        leader = rank(folder, 0, port, "--rank-start-timeout", "4s")
        other = Process(pathlib.Path(folder), "rank-1", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0", "--http",
                        "127.0.0.1:0", "--threads", 1, "--tp", 4, "--rank", 1, "--leader", f"127.0.0.1:{port}")
        assert other.process.wait(60) == 1
        assert "rank 1 is of a group of 4, rank 0 of one of 2" in other.log()
        assert leader.process.wait(60) == 1
        assert "within 4s: 1; not let in: rank 1 is of a group of 4" in leader.log()


def test_ranks_that_a_node_has_started_say_where_their_pages_are():
    with tempfile.TemporaryDirectory() as folder:
        node = Process(pathlib.Path(folder), "decode", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--tp", 2).wait_announced()

        def ready():
            lines = [json.loads(line) for line in node.log_path.read_text().splitlines() if line.startswith("{")]
            return [line["http"] for line in lines if line["component"] == "decode-rank-1" and "http" in line]

        (http,) = wait_for(ready, 30, "address of rank 1")
        assert "lynx_build_info" in fetch(f"http://{http}/metrics")[1]
        assert node.stop() == 0


def test_a_rank_that_is_stopped_before_it_is_ready_ends_and_says_so():
    with tempfile.TemporaryDirectory() as folder:
        other = rank(folder, 1, free_port())
        wait_for(lambda: '"starting"' in other.log_path.read_text(), 30, "start of rank 1")
        assert other.stop() == 0
        assert "stopped while starting" in other.log()


def test_limits_that_libraries_run_into_end_a_node_in_words():
    words = []
    for megabytes in range(100, 220, 10):  # Of some a library gets no memory, of some no thread, some are enough.
        ended = subprocess.run(["bash", "-c", f'ulimit -c 0 -v {megabytes * 1024}; exec timeout 5 "$0" "$@"',
                                str(BIN / "lynx-decode"), "--model", str(MODEL), "--control", "127.0.0.1:0", "--http",
                                "127.0.0.1:0", "--threads", "1", "--kv-blocks", "256"], capture_output=True, text=True, timeout=60)
        assert "terminate called" not in ended.stderr, (megabytes, ended.stderr[-500:])
        words += [line for line in ended.stderr.splitlines() if line.startswith("cannot go on: ")]
    assert words


def test_check_config_looks_at_the_model_where_it_is_there():
    def check(*flags):
        return subprocess.run([str(BIN / "lynx-decode"), "--check-config", *map(str, flags)], capture_output=True,
                              text=True, timeout=60)

    refused = check("--model", MODEL, "--tp", 3)
    assert refused.returncode == 2 and "4 query heads cannot be split over tp 3" in refused.stderr, refused
    assert "is fine" not in refused.stdout
    assert check("--model", MODEL, "--tp", 2).returncode == 0
    assert check("--model", "/nowhere", "--tp", 3).returncode == 0


def test_a_node_starts_again_and_again():
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(50 if LONG else 4):
            node = Process(pathlib.Path(folder), "decode", "lynx-decode", "--model", MODEL, "--control", "127.0.0.1:0",
                           "--http", "127.0.0.1:0", "--threads", 1, "--tp", 2).wait_announced()
            assert node.stop() == 0


def test_ranks_may_be_started_one_by_one_and_who_does_not_fit_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        leader = rank(folder, 0, port, "--world", 2)
        stranger = rank(pathlib.Path(tempfile.mkdtemp(dir=folder)), 1, port, "--compute-dtype", "f32")
        assert stranger.process.wait(60) == 1
        assert "compute f32" in stranger.log() and "compute bf16" in stranger.log()
        assert "refused" in leader.log() and "compute f32" in leader.log()
        hasty = rank(pathlib.Path(tempfile.mkdtemp(dir=folder)), 1, port, "--rank-timeout", "700ms")
        assert hasty.process.wait(60) == 1
        assert "it has --rank-timeout 700ms, rank 0 has --rank-timeout 1.5s" in hasty.log()
        small = pathlib.Path(tempfile.mkdtemp(dir=folder))
        config = json.loads((MODEL / "config.json").read_text())
        (small / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] - 1}))
        other_model = rank(small, 1, port, model=small)
        assert other_model.process.wait(60) == 1
        layers = config["num_hidden_layers"]
        assert f"of {layers - 1} layers" in other_model.log() and f"of {layers} layers" in other_model.log()
        other = rank(folder, 1, port, "--world", 2)
        leader.wait_announced()
        assert fetch(leader.url("/readyz"))[0] == 200
        other.wait_announced()
        assert fetch(other.url("/readyz"))[0] == 200
        other.process.terminate()  # As an orchestrator does that ends all at once.
        assert leader.stop() == 0
        assert other.process.wait(30) == 0


# Status 2 where the options contradict each other, 1 where the model or the host does not go with them.
@pytest.mark.parametrize("flags,message,status", [
    (("--tp", 3), "4 query heads cannot be split over tp 3", 1),
    (("--tp", 2, "--ep", 3), "ep 3 does not divide the 2 ranks", 1),
    (("--tp", 2, "--world", 4), "--world 4, but --tp 2 is 2 ranks", 2),
    (("--tp", 2, "--rank", 2, "--leader", "127.0.0.1:1"), "--rank 2 of the 2 ranks", 2),
    (("--tp", 2, "--rank", 1), "--rank and --leader are given together", 2),
    (("--tp", 2, "--leader", "127.0.0.1:1"), "--rank and --leader are given together", 2),
    (("--tp", 2, "--rank", 0, "--leader", "nowhere"), "'nowhere' is not host:port", 1),
    (("--tp", 2, "--cpus", "0"), "--cpus has 1 CPUs for 2 ranks", 1),
    (("--tp", 2, "--ep-spare", 1), "ep-spare 1 needs an ep of 2 or more", 1),
    (("--dp", 2, "--ep-spare", 1), "ep-spare 1 with dp 2", 1),
])
def test_options_that_make_no_node_are_refused_at_once(flags, message, status):
    ended = subprocess.run([str(BIN / "lynx-decode"), "--model", str(MODEL), "--control", "127.0.0.1:0", "--http",
                            "127.0.0.1:0", *map(str, flags)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == status and message in ended.stderr, ended.stderr
    assert "decode-rank-" not in ended.stderr  # No other rank was started.


def test_lynx_up_takes_the_widths_of_its_nodes(tmp_path):
    up = Up(tmp_path, LYNX_PREFILL_TP="2", LYNX_PREFILL_EP="2", LYNX_DECODE_TP="2", LYNX_DECODE_EP="2")
    up.ask()
    loaded = [line for line in map(json.loads, filter(lambda line: line.startswith("{"), up.log().splitlines()))
              if "numeric_class" in line]
    assert sorted((line["component"], line["numeric_class"][-11:]) for line in loaded) == [
        ("decode", "tp2/dp1/ep2"), ("prefill", "tp2/dp1/ep2")], loaded
    assert up.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in up.log().splitlines() if line.startswith("{")]
    assert [line for line in lines if line["level"] not in ("info", "debug")] == []


def test_lynx_up_refuses_variables_that_are_for_one_node():
    for variable in ("LYNX_TP", "LYNX_WORLD"):
        ended = subprocess.run([str(BIN / "lynx"), "up", "--model", str(MODEL), "--port", "0"], capture_output=True, text=True,
                               timeout=60, env={**os.environ, variable: "2"})
        assert ended.returncode == 2 and f"{variable} is set" in ended.stderr, ended.stderr
