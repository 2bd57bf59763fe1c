"""Prompts computed on decode nodes: a cluster of one node, and one whose prefill node is gone."""
import concurrent.futures
import contextlib

import openai
import pytest

from cluster import fetch, running_cluster, wait_for
from test_exactness import ask_all, requests
from test_ranks import others_of

NAME = "lynx-tiny-moe"
BOTH = {"prefill": 0, "decode_flags": ("--role", "both")}


def client_of(cluster):
    return openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def asked():
    return requests(24, seed=11)


@pytest.fixture(scope="module")
def disaggregated(asked):
    """What a prefill node and a decode node that takes no prompts answer."""
    with running_cluster(decode_flags=("--prompt-rows", 0)) as cluster:
        answers = ask_all(cluster, asked)
        assert cluster.router.metric("lynx_router_routing_decisions_total", decision="local") == 0
        return answers


def test_one_node_of_both_roles_is_a_cluster():
    with running_cluster(**BOTH) as cluster:
        client = client_of(cluster)
        question = [{"role": "user", "content": "What is 58+27?"}]
        answer = client.chat.completions.create(model=NAME, messages=question, max_tokens=32)
        assert answer.choices[0].message.content == "85"
        stream = client.chat.completions.create(model=NAME, messages=question, max_tokens=32, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "85"
        scored = client.completions.create(model=NAME, prompt="import os", max_tokens=4, echo=True, logprobs=1)
        assert scored.choices[0].logprobs.token_logprobs[0] is None
        assert all(value < 0 for value in scored.choices[0].logprobs.token_logprobs[1:])
        cluster.wait_idle()
        assert cluster.router.metric("lynx_router_routing_decisions_total", decision="local") == 3
        assert cluster.nodes["decode-0"].metric("lynx_node_local_prefills_total") == 3


@pytest.mark.parametrize("flags", [(), ("--prompt-rows", 3), ("--kv-memory", "12MiB", "--max-context-tokens", 512)])
def test_answers_are_those_of_a_prefill_and_a_decode_node(asked, disaggregated, flags):
    with running_cluster(prefill=0, decode_flags=("--role", "both", *flags)) as cluster:
        assert ask_all(cluster, asked) == disaggregated
        cluster.wait_idle()


def test_answers_of_two_ranks_are_those_of_two_ranks(asked):
    two = ("--tp", 2)
    with running_cluster(node_flags=two, decode_flags=("--prompt-rows", 0)) as cluster:
        answers = ask_all(cluster, asked)
    with running_cluster(**BOTH, node_flags=two) as cluster:
        assert ask_all(cluster, asked) == answers
        assert len(others_of(cluster.nodes["decode-0"])) == 1
        cluster.wait_idle()


def test_clients_that_leave_free_the_node():
    with running_cluster(prefill=0, decode_flags=("--role", "both", "--prompt-rows", 2)) as cluster:
        client = client_of(cluster)

        def leave(i):
            stream = client.completions.create(model=NAME, prompt=[7 + i] * 900, max_tokens=400, stream=True,
                                               timeout=0.05 if i % 2 else 60, extra_body={"ignore_eos": True})
            for _ in zip(range(3), stream):
                pass
            stream.close()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(leave, i) for i in range(16)]:
                with contextlib.suppress(openai.APITimeoutError):
                    done.result()
        cluster.wait_idle()


def test_the_cluster_serves_on_without_its_prefill_node(asked, disaggregated):
    with running_cluster() as cluster:
        cluster.nodes["prefill-0"].kill()
        assert ask_all(cluster, asked) == disaggregated
        assert fetch(cluster.router.url("/readyz"))[0] == 200
        cluster.restart_node("prefill-0")
        wait_for(lambda: cluster.router.metric("lynx_router_nodes", role="prefill", state="ready") == 1, 20,
                 "ready prefill node")
        assert ask_all(cluster, asked) == disaggregated
        cluster.wait_idle()
