"""TOK-4: decoders strip the space before a whole text, never those between its tokens."""
import openai
import pytest
import tokenizers

import tiny_folder
from cluster import running_cluster

NAME = "tiny"
VARIANT = "qwen3"
TOKENS = 24
MARK = "\u2581"
DECODERS = {
    "sentence pieces": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "metaspace": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True},
    "bytes": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
}


def spelling(i, decoder):
    """Most tokens begin a word, some go on, some are a space alone or begin with two."""
    space = "\u0120" if decoder["type"] == "ByteLevel" else MARK
    if i == 0:
        return space
    return ["", space, space, space + space][i % 4] + f"w{i}"


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_stream_has_every_space_of_the_whole_text(decoder, tmp_path):
    model = tiny_folder.write_folder(tmp_path, VARIANT)
    config = tiny_folder.read_json(model / "tokenizer.json")
    config["decoder"], config["pre_tokenizer"] = decoder, None
    config["model"]["vocab"] = {spelling(i, decoder): i for i in range(96)}
    tiny_folder.write_json(model / "tokenizer.json", config)
    judge = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    with running_cluster(
            model=model, node_flags=["--compute-dtype", "f32", "--kv-memory", "16MiB",
                                     "--served-model-name", NAME],
            router_flags=["--served-model-name", NAME]) as cluster:
        client = openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)
        for prompt, greedy in tiny_folder.golden(VARIANT):
            # Prefill makes the first token, decode the others; each cut is another hand-over.
            for cut in (1, 2, TOKENS):
                asked = dict(model=NAME, prompt=prompt, max_tokens=cut, temperature=0)
                whole = judge.decode(prompt + greedy[:cut])
                before = judge.decode(prompt)
                assert whole.startswith(before)
                text = client.completions.create(**asked).choices[0].text
                assert text == whole[len(before):]
                deltas = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
                assert "".join(deltas) == text
