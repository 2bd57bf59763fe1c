"""Real processes serving a folder of each kind of attention answer what transformers computed."""
import openai
import pytest

import tiny_folder
from cluster import running_cluster

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
