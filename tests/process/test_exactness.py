"""The cluster's tokens are those of one process alone, whatever shares its batches (PAR-6)."""
import concurrent.futures
import json
import random
import subprocess

from cluster import BIN, LONG, MODEL, running_cluster, wait_for

NAME = "lynx-tiny-moe"
FIRST_SPECIAL = 4093
SETTINGS = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.2},
)


def requests(count, seed):
    print("seed", seed)
    rng = random.Random(seed)
    return [{"prompt": [rng.randrange(FIRST_SPECIAL) for _ in range(rng.randrange(1, 300))],
             "max_tokens": rng.randrange(1, 80), "seed": rng.randrange(1 << 62), **SETTINGS[i % len(SETTINGS)]}
            for i in range(count)]


def alone(cluster, asked):
    """The texts that one process generates for the requests, one after the other."""
    lines = "".join(json.dumps(request) + "\n" for request in asked)
    probe = subprocess.run([str(BIN / "generate_probe"), str(MODEL)], input=lines, capture_output=True, text=True, check=True)
    # Special tokens are no part of an answer's text.
    answers = [[t for t in json.loads(line)["tokens"] if t < FIRST_SPECIAL] for line in probe.stdout.splitlines()]
    return [cluster.post("/detokenize", {"model": NAME, "tokens": tokens})[1]["prompt"] if tokens else ""
            for tokens in answers]


def ask_all(cluster, asked):
    """The texts that the cluster answers with when all are asked at once."""
    def ask(request):
        status, answer = cluster.post("/v1/completions", {"model": NAME, "ignore_eos": True, **request})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(ask, asked))


def test_32_concurrent_requests_get_the_tokens_of_one_process_alone(cluster):
    asked = requests(400 if LONG else 32, seed=20240229)
    assert ask_all(cluster, asked) == alone(cluster, asked)


def test_companions_do_not_change_a_greedy_answer(cluster):
    body = {"model": NAME, "prompt": "static int __init ", "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    alone = cluster.post("/v1/completions", body)[1]["choices"][0]["text"]
    for companions in (1, 7, 15, 31):
        with concurrent.futures.ThreadPoolExecutor(companions + 1) as pool:
            others = [pool.submit(cluster.post, "/v1/completions",
                                  {"model": NAME, "ignore_eos": True, **request})
                      for request in requests(companions, seed=companions)]
            assert pool.submit(cluster.post, "/v1/completions", body).result()[1]["choices"][0]["text"] == alone
            assert all(other.result()[0] == 200 for other in others)


def test_exact_requests_stay_with_nodes_of_one_numeric_class():
    asked = requests(32, seed=7)
    isas = {"prefill-0": "portable", "prefill-1": "avx2", "decode-0": "avx2", "decode-1": "portable"}
    with running_cluster(prefill=2, decode=2,
                         own_flags={name: ("--isa", isa) for name, isa in isas.items()}) as cluster:
        answers = [ask_all(cluster, asked) for _ in range(2)]
        assert answers[0] == answers[1]
        # Names decide between pairs that are equal otherwise: "avx2" comes before "portable".
        assert cluster.nodes["prefill-0"].metric("lynx_node_prompt_tokens_total") == 0
        assert cluster.nodes["decode-1"].metric("lynx_node_output_tokens_total") == 0
        cluster.nodes["prefill-1"].stop()
        wait_for(lambda: cluster.router.metric("lynx_router_nodes", role="prefill", state="gone") == 1, 30, "node to be gone")
        other = ask_all(cluster, asked)
        assert cluster.nodes["prefill-0"].metric("lynx_node_prompt_tokens_total") > 0
        assert cluster.nodes["decode-1"].metric("lynx_node_output_tokens_total") > 0
        assert other != answers[0]  # Else the test could not tell the classes apart.
