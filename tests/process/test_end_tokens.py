"""Every end token that a model folder names, wherever it does, ends an answer."""
import openai
import pytest

import tiny_folder
from cluster import running_cluster

NAME = "tiny"
VARIANT = "qwen3"
PROMPT, GREEDY = tiny_folder.golden(VARIANT)[0]
ENDS_THIRD = GREEDY[2]
assert ENDS_THIRD not in GREEDY[:2] + GREEDY[3:8]
# Of tokens that this answer does not have.
OTHER, ANOTHER = [i for i in range(96) if i not in GREEDY + PROMPT][:2]

# What config.json, generation_config.json and tokenizer_config.json name; None: the file is not there.
SOURCES = {
    "tokenizer": (OTHER, {"eos_token_id": [OTHER, ANOTHER]}, ENDS_THIRD),
    "generation list": (OTHER, {"eos_token_id": [OTHER, ENDS_THIRD]}, OTHER),
    "generation number": (OTHER, {"eos_token_id": ENDS_THIRD}, ANOTHER),
    "tokenizer, no generation config": (OTHER, None, ENDS_THIRD),
    "model, generation of something else": ([OTHER, ENDS_THIRD], {"temperature": 0.5}, ANOTHER),
}


@pytest.mark.parametrize("source", SOURCES)
def test_an_answer_ends_at_any_of_them(source, tmp_path):
    config_ids, generation, tokenizer_id = SOURCES[source]
    folder = tiny_folder.write_folder(tmp_path, VARIANT, special=[OTHER, ANOTHER, ENDS_THIRD])
    config = tiny_folder.read_json(folder / "config.json")
    tiny_folder.write_json(folder / "config.json", {**config, "eos_token_id": config_ids})
    (folder / "generation_config.json").unlink()
    if generation is not None:
        tiny_folder.write_json(folder / "generation_config.json", generation)
    tiny_folder.write_json(folder / "tokenizer_config.json",
                           {"eos_token": tiny_folder.CHARACTERS[tokenizer_id]})
    with running_cluster(
            model=folder, node_flags=["--compute-dtype", "f32", "--kv-memory", "16MiB",
                                      "--served-model-name", NAME],
            router_flags=["--served-model-name", NAME]) as cluster:
        client = openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)

        def ask(**more):
            answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, **more)
            return answer.choices[0].text, answer.choices[0].finish_reason, answer.usage.completion_tokens

        until_end = tiny_folder.text_of(GREEDY[:2])
        past_end = until_end + tiny_folder.text_of(GREEDY[3:8])  # Without the mark: it is special.
        # A request's own setting of something else does not drop the list.
        assert ask(temperature=0)[:2] == (until_end, "stop")
        assert ask(temperature=0, extra_body={"top_k": 1})[:2] == (until_end, "stop")
        assert ask(temperature=0, extra_body={"ignore_eos": True}) == (past_end, "length", 8)
        streamed = list(client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0,
                                                  stream=True))
        assert "".join(chunk.choices[0].text for chunk in streamed) == until_end
        assert streamed[-1].choices[0].finish_reason == "stop"
