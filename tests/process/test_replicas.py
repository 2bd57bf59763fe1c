"""Nodes with attention replicas: `--dp`."""
import concurrent.futures
import os
import signal
import subprocess

import pytest

from cluster import BIN, LONG, MODEL, running_cluster, wait_for
from test_ranks import GONE_WITHIN, NAME, PROMPTS, alive, answers, asking, others_of
from test_up import Up

F32 = ("--compute-dtype", "f32")


def answers_at_once(cluster):
    """The same as answers(), asked for together, so that all replicas have some."""

    def ask(prompt):
        status, answer = cluster.post("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": 24,
                                                          "temperature": 0, "ignore_eos": True})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def rows(node, replica):
    return node.metric("lynx_node_replica_rows_total", replica=str(replica))


@pytest.fixture(scope="module")
def single_rank_answers():
    with running_cluster(node_flags=F32) as cluster:
        return answers(cluster)


WIDTHS = [((1, 1), (1, 2)), ((2, 1), (2, 2)), ((1, 2), (1, 2)), ((2, 2), (1, 1))]
if LONG:
    WIDTHS += [((1, 2), (2, 1)), ((1, 1), (1, 4)), ((4, 1), (2, 2)), ((2, 2), (4, 1))]


@pytest.mark.parametrize("prefill,decode", WIDTHS)
def test_greedy_tokens_are_those_of_single_ranks(single_rank_answers, prefill, decode):
    flags = {name: ("--tp", tp, "--dp", dp) for name, (tp, dp) in (("prefill-0", prefill), ("decode-0", decode))}
    with running_cluster(node_flags=F32, own_flags=flags) as cluster:
        assert answers_at_once(cluster) == single_rank_answers
        for name, (tp, dp) in (("prefill-0", prefill), ("decode-0", decode)):
            node = cluster.nodes[name]
            assert node.metric("lynx_node_ranks") == tp * dp
            for replica in range(dp):
                assert rows(node, replica) > 0, (name, replica)
        others = [pid for node in cluster.nodes.values() for pid in others_of(node)]
        # With one at a time all replicas but one have no rows, and again when prefixes are held.
        assert answers(cluster) == single_rank_answers
        cluster.wait_idle()
    assert not any(alive(pid) for pid in others)  # All ended by themselves: close() saw status 0.


def test_a_node_that_does_both_keeps_prompts_on_their_replica(single_rank_answers):
    with running_cluster(prefill=0, node_flags=(*F32, "--dp", 2), decode_flags=("--role", "both")) as cluster:
        assert answers_at_once(cluster) == single_rank_answers
        assert all(rows(cluster.nodes["decode-0"], replica) > 24 for replica in range(2))
        cluster.wait_idle()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_of_another_replica_that_dies_or_freezes_takes_the_node_down(number):
    flags = {f"decode-{i}": ("--dp", 2) for i in range(2)}
    with running_cluster(decode=2, own_flags=flags) as cluster:
        node = cluster.nodes["decode-0"]
        (other,) = others_of(node)
        with asking(cluster, prompt_tokens=300, askers=6) as askers:
            wait_for(lambda: rows(node, 0) > 0 and rows(node, 1) > 0, 60, "steps of both replicas")
            os.kill(other, number)
            assert node.process.wait(GONE_WITHIN) == 1
        assert "rank 1 is lost" in node.log() or "not heard from: 1" in node.log()
        wait_for(lambda: not alive(other), GONE_WITHIN, "end of rank 1")
        for asker in askers:
            asker.join(120)
        wait_for(lambda: cluster.router.metric("lynx_router_nodes", role="decode", state="gone") == 1, 30, "node to be gone")
        answers(cluster)
        del cluster.nodes["decode-0"]  # Has ended, with 1.
        cluster.wait_idle()


def test_a_drained_node_ends_its_sequences_on_all_replicas():
    with running_cluster(own_flags={"decode-0": ("--dp", 2)}) as cluster:
        node = cluster.nodes["decode-0"]
        body = {"model": NAME, "prompt": [5] * 40, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(cluster.post, "/v1/completions", {**body, "prompt": [i] * 40}) for i in range(4)]
            wait_for(lambda: rows(node, 0) > 0 and rows(node, 1) > 0, 60, "steps of both replicas")
            others = others_of(node)
            node.signal(signal.SIGTERM)
            for one in asked:
                status, answer = one.result()
                assert status == 200 and answer["usage"]["completion_tokens"] == 400, answer
        assert node.process.wait(60) == 0
        assert not any(alive(pid) for pid in others)
        del cluster.nodes["decode-0"]


@pytest.mark.parametrize("flags,status,message", [
    (("--dp", 2, "--ep", 3), 1, "ep 3 does not divide the 2 ranks"),
    (("--dp", 2, "--world", 3), 2, "--world 3, but --tp 1 times --dp 2 is 2 ranks"),
    (("--dp", 2, "--rank", 2, "--leader", "127.0.0.1:1"), 2, "--rank 2 of the 2 ranks of --tp 1 times --dp 2"),
    (("--tp", 64, "--dp", 64), 2, "--tp 64 times --dp 64 is 4096 ranks, the most are 1024"),
])
def test_options_that_make_no_node_are_refused_at_once(flags, status, message):
    ended = subprocess.run([str(BIN / "lynx-decode"), "--model", str(MODEL), "--control", "127.0.0.1:0", "--http",
                            "127.0.0.1:0", *map(str, flags)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == status and message in ended.stderr, ended.stderr


def test_lynx_up_takes_the_replicas_of_its_nodes(tmp_path):
    up = Up(tmp_path, "--decode-dp", "2")
    up.ask()
    assert "ranks\":\"2\"" in up.log()
    assert up.end(signal.SIGTERM) == 0
