"""Nodes on a GPU, emulated: which device they choose and why, and that prompts prefilled there decode there."""
import json
import re
import subprocess

import pytest

import tiny_folder
from cluster import BIN, ROOT, running_cluster

PLUGIN = ROOT / "build/release/tests/lib/liblynx_cuda_emulated_plugin.so"
MODEL = ROOT / "tests/golden/variants/olmoe"
SMALL = ("--compute-dtype", "f32", "--step-rows", "64", "--max-context-tokens", "128")


def node(*flags, role="lynx-decode", model=MODEL):
    return subprocess.run([BIN / role, "--model", model, "--control", "127.0.0.1:0", "--http", "127.0.0.1:0", *SMALL, *flags],
                          capture_output=True, text=True, timeout=120)


def chosen(log):
    return [line["chosen"] for line in map(json.loads, filter(lambda text: text.startswith("{"), log.splitlines()))
            if line.get("message") == "device"]


@pytest.mark.parametrize("role", ["lynx-prefill", "lynx-decode"])
def test_a_gpu_that_is_not_there_is_said_at_start(role):
    for plugin, why in (("/no/such/liblynx_cuda.so", "/no/such/liblynx_cuda.so"),
                        ("/lib/x86_64-linux-gnu/libm.so.6", "is no CUDA plug-in of Lynx")):
        ended = node("--device", "cuda", "--cuda-plugin", plugin, role=role)
        assert ended.returncode == 1 and why in ended.stderr, ended.stderr
    ended = node("--device", "cuda:1", "--cuda-plugin", PLUGIN, role=role)
    assert ended.returncode == 1 and "no GPU 1" in ended.stderr, ended.stderr


def test_options_that_cannot_be_are_refused_before_anything_starts():
    for flags, why in ((("--device", "gpu"), "--device gpu: wanted auto, cpu, cuda or cuda:N"),
                       (("--device", "cuda", "--tp", "2"), "nodes of several ranks compute on CPUs")):
        ended = node("--check-config", *flags)
        assert ended.returncode == 2 and why in ended.stderr, ended.stderr
    assert node("--check-config", "--device", "cuda:3").returncode == 0


def test_memory_that_does_not_suffice_is_reckoned_up():
    ended = node("--device", "cuda", "--cuda-plugin", PLUGIN, "--kv-memory", "8GiB")
    assert ended.returncode == 1
    assert re.search(r"of the GPU's memory 1\.07 GB are free; needed are weights 0\.\d+, buffers of a step 0\.\d+, "
                     r"KV cache 8\.59, reserve 0\.03: lower .*--kv-memory", ended.stderr), ended.stderr


@pytest.mark.parametrize("variant", ["olmoe", "deepseek-v3"])
def test_prompts_prefilled_on_a_gpu_go_on_on_another_as_transformers_say(variant, tmp_path):
    model = tiny_folder.write_folder(tmp_path, variant)
    ids, greedy = max((prompt for prompt in tiny_folder.golden(variant) if len(prompt[0]) <= 40), key=lambda prompt: len(prompt[0]))
    with running_cluster(model=model, node_flags=[*SMALL, "--device", "cuda", "--cuda-plugin", PLUGIN, "--served-model-name", "tiny"],
                         router_flags=["--served-model-name", "tiny"]) as cluster:
        for one in cluster.nodes.values():
            assert chosen(one.log_path.read_text()) == ["GPU 0, emulated, sm_80, 1.07 of 1.07 GB free"]
        status, answer = cluster.post("/v1/completions", {"model": "tiny", "prompt": ids, "max_tokens": 6, "temperature": 0},
                                      timeout=300)
        assert status == 200, answer
        assert answer["choices"][0]["text"] == tiny_folder.text_of(greedy[:6])
        (prefill,), (decode,) = cluster.of_role("prefill"), cluster.of_role("decode")
        assert prefill.metric("lynx_kv_transfer_bytes_total") == decode.metric("lynx_kv_transfer_bytes_total") > 0
        cluster.wait_idle()


def test_auto_serves_on_the_cpus_and_says_why(tmp_path):
    model = tiny_folder.write_folder(tmp_path, "olmoe")
    with running_cluster(model=model, node_flags=[*SMALL, "--device", "auto", "--cuda-plugin", "/no/such/liblynx_cuda.so"]) as cluster:
        for one in cluster.nodes.values():
            (why,) = chosen(one.log_path.read_text())
            assert why.startswith("the CPUs: CUDA plug-in: /no/such/liblynx_cuda.so"), why
