"""Real processes serving a folder of each kind of attention answer what transformers computed."""
import itertools
import subprocess

import openai
import pytest

import tiny_folder
from cluster import BIN, LONG, running_cluster

NAME = "tiny"
TOKENS = 32
KINDS = {
    "heads that share KV": "mixtral",
    "latents": "deepseek-v3",
    "windows and sinks": "gpt-oss",
    "chunks": "llama4",
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def family(request, tmp_path_factory):
    """(client, [(prompt ids, greedy ids)]) of a cluster; prompts take several chunks of prefill."""
    folder = tiny_folder.write_folder(tmp_path_factory.mktemp("model"), request.param)
    with running_cluster(
            model=folder, node_flags=["--compute-dtype", "f32", "--kv-memory", "16MiB", "--step-rows", "16",
                                      "--served-model-name", NAME],
            decode_flags=["--max-batch", "16"], router_flags=["--served-model-name", NAME]) as cluster:
        client = openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)
        yield client, tiny_folder.golden(request.param)


def test_chat_answers_the_greedy_tokens_of_transformers(family):
    client, prompts = family
    for ids, greedy in prompts:
        text = tiny_folder.text_of(ids)
        parts = [text[:7], text[7:8], text[8:]] if len(text) > 8 else [text]
        messages = [{"role": role, "content": part} for role, part in zip(["user", "assistant", "user"], parts)]
        want = tiny_folder.text_of(greedy[:TOKENS])
        asked = dict(model=NAME, messages=messages, max_tokens=TOKENS, temperature=0)
        answer = client.chat.completions.create(**asked, logprobs=True)
        assert answer.choices[0].message.content == want
        assert [entry.token for entry in answer.choices[0].logprobs.content] == list(want)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.prompt_tokens == len(ids)
        assert answer.usage.completion_tokens == TOKENS
        streamed = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == want


def test_completions_of_text_and_of_ids_are_the_same(family):
    client, prompts = family
    for ids, greedy in prompts:
        for prompt in (ids, tiny_folder.text_of(ids)):
            answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=TOKENS, temperature=0)
            assert answer.choices[0].text == tiny_folder.text_of(greedy[:TOKENS])


LAYOUTS = {
    "tp 2": ("--tp", "2"),
    "ep 2": ("--tp", "2", "--ep", "2"),
    "tp 2, ep 4": ("--tp", "2", "--dp", "2", "--ep", "4"),
    "dp 2, ep 2": ("--dp", "2", "--ep", "2"),
    "ep 4": ("--tp", "4", "--ep", "4"),
}
SHARED = sorted(path.name for path in tiny_folder.VARIANTS.iterdir() if path.is_dir()) if LONG else [
    "deepseek-v3", "gpt-oss"]


@pytest.mark.parametrize("variant", SHARED)
def test_ranks_of_any_family_answer_as_one(variant, tmp_path):
    """Ranks that are processes, by Gloo."""
    folder = tiny_folder.write_folder(tmp_path, variant)
    fits = [layout for layout in LAYOUTS.values()
            if subprocess.run([BIN / "lynx", "inspect", folder, *layout], capture_output=True).returncode == 0]
    assert fits
    for layout in fits if LONG else fits[-1:]:
        with running_cluster(model=folder, node_flags=["--compute-dtype", "f32", "--kv-memory", "16MiB", *layout,
                                                       "--served-model-name", NAME],
                             router_flags=["--served-model-name", NAME]) as cluster:
            client = openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)
            for ids, greedy in tiny_folder.golden(variant):
                answer = client.completions.create(model=NAME, prompt=ids, max_tokens=TOKENS, temperature=0)
                want = itertools.takewhile(lambda token: token != tiny_folder.END_ID, greedy[:TOKENS])
                assert answer.choices[0].text == tiny_folder.text_of(want), layout
