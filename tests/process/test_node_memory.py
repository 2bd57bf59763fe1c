"""What a node may take: --kv-memory is kept, and what does not fit ends the start."""
import pytest

from cluster import MODEL, Process, running_cluster, wait_for

SECONDS = 30


def ended(folder, *flags, role="decode"):
    """The log of a node that has to end by itself with status 1."""
    node = Process(folder, role, f"lynx-{role}", "--model", MODEL, "--control", "127.0.0.1:0",
                   "--http", "127.0.0.1:0", *flags)
    wait_for(lambda: node.process.poll() is not None, SECONDS, f"end of {role}")
    assert node.process.returncode == 1, node.log()
    assert not node.announce.exists(), "never ready"
    return node.log()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_less_kv_memory_than_a_context_needs_is_refused(tmp_path, role):
    log = ended(tmp_path, "--kv-memory", "1MiB", role=role)
    for word in ("--kv-memory 1MiB", "one context of 2048 tokens", "--max-context-tokens"):
        assert word in log, log


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_more_memory_than_there_is_is_refused_before_the_load(tmp_path, role):
    log = ended(tmp_path, "--kv-memory", "100TiB", role=role)
    for word in ("GB of memory are needed", "KV cache", "this process may take", "--kv-memory"):
        assert word in log, log


def test_a_shorter_context_fits_into_less():
    flags = ["--kv-memory", "1MiB", "--max-context-tokens", "64", "--step-rows", "64"]
    with running_cluster(node_flags=flags, decode_flags=["--max-batch", "4"],
                         router_flags=["--max-context-tokens", "64"]) as cluster:
        ask = {"model": "lynx-tiny-moe", "prompt": "1, 2, 3,", "max_tokens": 8}
        status, answer = cluster.post("/v1/completions", ask)
        assert status == 200, answer
        status, answer = cluster.post("/v1/completions", {**ask, "max_tokens": 100})
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer


def test_more_threads_than_cpus_names_both_options(tmp_path):
    log = ended(tmp_path, "--cpus", "0", "--threads", "8")
    assert "--threads 8: more than the CPUs of --cpus 0, 1" in log, log
