"""Nodes whose ranks are on several hosts, which are network namespaces of this machine."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading

import pytest

import namespaces
from cluster import MODEL, Process, fetch, parse_metrics, running_cluster, wait_for
from test_ranks import GONE_WITHIN, NAME, answers, stands_still


class RankHosts(namespaces.Hosts):
    def pages(self, host):
        """Where the rank on that host serves its metrics."""
        return f"http://{self.address(host)}:9400/metrics"

    def ranks(self, folder, role, on, *flags):
        """The ranks of one node, on these hosts in turn, each of which has one rank at a time."""
        return [Process(pathlib.Path(folder), f"{role}-rank-{rank}", f"lynx-{role}", "--model", MODEL, "--threads", 1,
                        "--control", f"{self.address(host)}:0", "--http", f"{self.address(host)}:9400",
                        "--tp", len(on), "--world", len(on), "--rank", rank, "--leader",
                        f"{self.address(on[0])}:9201", *flags, within=self.within(host))
                for rank, host in enumerate(on)]

    @contextlib.contextmanager
    def router(self, folder, *nodes):
        """A router of the nodes with these rank 0s, ready."""
        control = {role: ",".join(node.control for node in nodes if node.name.startswith(role))
                   for role in ("prefill", "decode")}
        router = Process(pathlib.Path(folder), "router", "lynx-router", "--model", MODEL, "--listen", "127.0.0.1:0",
                         "--prefill", control["prefill"], "--decode", control["decode"], "--heartbeat-interval", "200ms")
        try:
            router.wait_announced()
            wait_for(lambda: fetch(router.url("/readyz"))[0] == 200, 60, "ready router")
            yield router
        finally:
            assert router.stop() == 0


@pytest.fixture(scope="module")
def hosts():
    with namespaces.made(RankHosts(5)) as all_hosts:
        yield all_hosts


def end(*processes):
    for process in processes:
        if process.process.poll() is None:
            process.kill()


class Asker:
    """What test_ranks.answers() asks, of a router."""

    def __init__(self, router):
        self.router = router

    def post(self, path, body, timeout=60):
        status, text = fetch(self.router.url(path), timeout, json.dumps(body).encode(),
                             {"Content-Type": "application/json"})
        return status, json.loads(text)


def test_ranks_on_two_hosts_hand_over_to_ranks_on_two_others(hosts):
    f32 = ("--compute-dtype", "f32")
    with running_cluster(node_flags=f32) as cluster:
        wanted = answers(cluster)
    with tempfile.TemporaryDirectory() as folder:
        prefill = hosts.ranks(folder, "prefill", (0, 1), *f32)
        decode = hosts.ranks(folder, "decode", (2, 3), *f32)
        try:
            prefill[0].wait_announced()
            decode[0].wait_announced()
            with hosts.router(folder, prefill[0], decode[0]) as router:
                assert answers(Asker(router)) == wanted
                moved = [sum(value for (name, _), value in parse_metrics(fetch(hosts.pages(host))[1]).items()
                             if name == "lynx_kv_transfer_bytes_total") for host in range(4)]
            # Two ranks with half the heads each, to two with half each: each of the four moves as much.
            assert len(set(moved)) == 1 and moved[0] > 0, moved
            assert [prefill[0].stop(), decode[0].stop()] == [0, 0]
            assert [prefill[1].process.wait(30), decode[1].process.wait(30)] == [0, 0]
        finally:
            end(*prefill, *decode)


@contextlib.contextmanager
def asked(router):
    """Long prompts and answers, all the while; their ends are the router's affair."""
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            Asker(router).post("/v1/completions", {"model": NAME, "prompt": [5] * 1500, "max_tokens": 200,
                                                   "temperature": 0, "ignore_eos": True})

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        yield
    finally:
        stop.set()
        for asker in askers:
            asker.join(60)


def steps(node):
    return node.metric("lynx_node_step_duration_seconds_count")


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("where", ["a step", "a collective"])
def test_a_rank_that_is_cut_off_in_a_step_takes_its_node_down(hosts, role, where):
    other = {"prefill": "decode", "decode": "prefill"}[role]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        node = hosts.ranks(first, role, (0, 1))
        spare = hosts.ranks(second, role, (2, 3))
        peer = hosts.ranks(second, other, (4,))
        try:
            for leader in (node[0], spare[0], peer[0]):
                leader.wait_announced()
            with hosts.router(first, node[0], spare[0], peer[0]) as router:
                with asked(router):
                    begun = steps(node[0])
                    wait_for(lambda: steps(node[0]) > begun, 30, "steps of the node")
                    if where == "a collective":
                        # The leader waits for rank 1, which lives and does not come.
                        node[1].signal(signal.SIGSTOP)
                        wait_for(lambda: stands_still(node[0]), 30, "step that waits for rank 1")
                    hosts.cut(1)
                    node[1].signal(signal.SIGCONT)
                    assert node[0].process.wait(GONE_WITHIN) == 1
                    assert node[1].process.wait(GONE_WITHIN) == 1
                assert "rank 1 is lost" in node[0].log() or "not heard from: 1" in node[0].log()
                assert "rank 0 is lost" in node[1].log() or "not heard from: 0" in node[1].log()
                wait_for(lambda: router.metric("lynx_router_nodes", role=role, state="gone") == 1, 30, "node to be gone")
                answers(Asker(router))
        finally:
            hosts.mend(1)
            end(*node, *spare, *peer)


def test_an_idle_node_notices_that_a_rank_is_cut_off(hosts):
    with tempfile.TemporaryDirectory() as folder:
        node = hosts.ranks(folder, "decode", (0, 1, 2, 3))
        try:
            node[0].wait_announced()
            hosts.cut(2)
            assert [rank.process.wait(GONE_WITHIN) for rank in node] == [1, 1, 1, 1]
            for rank in (0, 1, 3):
                assert "rank 2 is lost" in node[rank].log()
            assert "rank 0 is lost" in node[2].log()
        finally:
            hosts.mend(2)
            end(*node)


def test_start_up_ends_where_a_rank_is_cut_off(hosts):
    with tempfile.TemporaryDirectory() as folder:
        node = hosts.ranks(folder, "decode", (0, 1, 2, 3), "--rank-start-timeout", "6s")
        node.pop().kill()  # So that nobody begins.
        try:
            wait_for(lambda: joined(hosts) >= 2, 30, "ranks 1 and 2")
            hosts.cut(1)
            assert node[1].process.wait(GONE_WITHIN) == 1
            assert "rank 0 is lost" in node[1].log()
            assert node[0].process.wait(6 + GONE_WITHIN) == 1
            # Rank 2 may have given up a moment before.
            assert re.search("ranks that did not come within 6s: 1, (2, )?3", node[0].log())
            assert node[2].process.wait(GONE_WITHIN) == 1
            assert "1, 3" in node[2].log() or "was not joined by all within 6s" in node[2].log()
        finally:
            hosts.mend(1)
            end(*node)
        # Nothing is left that would be in the way of another try.
        again = hosts.ranks(folder, "decode", (0, 1))
        try:
            again[0].wait_announced()
            assert again[0].stop() == 0
        finally:
            end(*again)


def joined(hosts):
    """Connections of other ranks to the leader."""
    listed = subprocess.run(["ip", "netns", "exec", hosts.name(0), "cat", "/proc/net/tcp"], capture_output=True,
                            text=True, check=True).stdout.splitlines()[1:]
    return sum(1 for line in listed if line.split()[1].endswith(f":{9201:04X}") and line.split()[3] == "01")
