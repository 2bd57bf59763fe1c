"""The official client against a running cluster of two prefill and two decode nodes."""
import concurrent.futures
import itertools

import openai
import pytest

from cluster import wait_for

MODEL = "lynx-tiny-moe"
QUESTION = [{"role": "user", "content": "What is 58+27?"}]


def test_models_lists_the_served_model(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_answers_like_the_model_does(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=32)
    assert answer.choices[0].message.content == "85"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_streamed_chat_is_the_same_answer(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Sort: 42 7 19 88"}], max_tokens=32,
        stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Sort: 42 7 19 88"}], max_tokens=32)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content == "7 19 42 88"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finishes[-1] == "stop" and not any(finishes[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])


def test_completions_take_every_form_of_prompt(client, cluster):
    texts = ["import os", "static int __init "]
    ids = [cluster.post("/tokenize", {"model": MODEL, "prompt": text})[1]["tokens"] for text in texts]
    for one, many in ((texts[0], texts), (ids[0], ids)):
        single = client.completions.create(model=MODEL, prompt=one, max_tokens=12, temperature=0)
        both = client.completions.create(model=MODEL, prompt=many, max_tokens=12, temperature=0)
        assert [c.index for c in both.choices] == [0, 1]
        assert both.choices[0].text == single.choices[0].text != ""
        assert both.usage.completion_tokens == 24
    assert cluster.post("/detokenize", {"model": MODEL, "tokens": ids[0]})[1]["prompt"] == texts[0]


def test_n_gives_distinct_seeded_choices_and_the_same_ones_again(client):
    def ask(**more):
        return client.completions.create(model=MODEL, prompt="And the LORD said", max_tokens=16,
                                         temperature=1.0, n=3, seed=11, **more)

    first, again = ask(), ask()
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert len({c.text for c in first.choices}) == 3
    assert [c.text for c in first.choices] == [c.text for c in again.choices]
    streamed = ["", "", ""]
    for chunk in ask(stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [c.text for c in first.choices]


def test_without_a_seed_two_samples_differ(client):
    def ask():
        return client.completions.create(model=MODEL, prompt="And the", max_tokens=24,
                                         temperature=1.5).choices[0].text

    assert len({ask() for _ in range(4)}) > 1


def test_a_stop_string_ends_the_text_before_it_wherever_token_borders_lie(client):
    whole = client.completions.create(model=MODEL, prompt="import os", max_tokens=40, temperature=0)
    text = whole.choices[0].text
    assert len(text) > 12
    for start in range(2, min(len(text) - 3, 24)):
        stop = text[start:start + 3]
        cut = client.completions.create(model=MODEL, prompt="import os", max_tokens=40,
                                        temperature=0, stop=[stop, "\x00never"])
        assert cut.choices[0].text == text[:text.index(stop)], repr(stop)
        assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(
        c.choices[0].text for c in client.completions.create(
            model=MODEL, prompt="import os", max_tokens=40, temperature=0, stop=text[5:9], stream=True))
    assert streamed == text[:text.index(text[5:9])]


def test_length_ends_with_length(client):
    answer = client.completions.create(model=MODEL, prompt="import os", max_tokens=3, temperature=0,
                                       extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    one = client.completions.create(model=MODEL, prompt="import os", max_tokens=1, temperature=0)
    assert answer.choices[0].text.startswith(one.choices[0].text)


def test_chat_logprobs_align_with_the_text(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=16,
                                            temperature=0, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    joined = b"".join(bytes(entry.bytes) for entry in content)
    assert joined.decode() == answer.choices[0].message.content
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        ordered = [top.logprob for top in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
        assert entry.logprob == ordered[0], "greedy takes the likeliest"


def test_completion_logprobs_and_echo(client):
    answer = client.completions.create(model=MODEL, prompt="import os", max_tokens=4, temperature=0,
                                       logprobs=2, echo=True)
    choice = answer.choices[0]
    assert choice.text.startswith("import os")
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == [
        sum(len(t) for t in choice.logprobs.tokens[:i]) for i in range(len(choice.logprobs.tokens))]
    silent = client.completions.create(model=MODEL, prompt="import os", max_tokens=4, temperature=0)
    assert choice.text == "import os" + silent.choices[0].text


def test_penalties_and_bias_change_the_answer(client):
    def ask(**more):
        return client.completions.create(model=MODEL, prompt="import os", max_tokens=24,
                                         temperature=0, **more).choices[0].text

    plain = ask()
    assert ask(frequency_penalty=2.0, presence_penalty=2.0) != plain
    banned = client.completions.create(model=MODEL, prompt="import os", max_tokens=1, temperature=0)
    token = banned.choices[0].text
    assert ask(logit_bias={str(i): -100 for i in range(3)}) is not None
    assert token


def test_leaving_mid_stream_returns_every_block(client, cluster):
    cluster.wait_idle()
    released = sum(n.metric("lynx_node_release_duration_seconds_count") for n in cluster.of_role("decode"))
    stream = client.completions.create(model=MODEL, prompt="And the", max_tokens=1500, temperature=0,
                                       stream=True, extra_body={"ignore_eos": True})
    assert len(list(itertools.islice(stream, 5))) == 5
    stream.close()
    cluster.wait_idle(timeout=10)
    wait_for(lambda: sum(n.metric("lynx_node_release_duration_seconds_count")
                         for n in cluster.of_role("decode")) == released + 1, 5, "release")


def test_many_at_once_are_answered_as_alone(client):
    questions = [f"{a}+{b}=" for a in range(11, 27, 4) for b in range(12, 28, 4)]

    def ask(question):
        return client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=16,
            temperature=0).choices[0].message.content

    alone = [ask(question) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        assert list(pool.map(ask, questions)) == alone


def test_work_is_shared_by_the_nodes(cluster):
    for role in ("prefill", "decode"):
        for node in cluster.of_role(role):
            assert node.metric("lynx_node_output_tokens_total") > 0, node.name


def test_tools_may_be_offered_and_their_calls_sent_back(client):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=32, tools=tools)
    assert answer.choices[0].message.content == "85"  # This model's template has no place for them.
    assert answer.choices[0].message.tool_calls is None
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 58, \"b\": 27}"}}
    answer = client.chat.completions.create(
        model=MODEL, max_tokens=32, tools=tools, tool_choice="auto",
        messages=[*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": "c1", "content": "85"}])
    assert answer.choices[0].finish_reason == "stop"
    call["function"]["arguments"] = "58, 27"
    with pytest.raises(openai.BadRequestError, match="arguments"):
        client.chat.completions.create(
            model=MODEL, messages=[*QUESTION, {"role": "assistant", "tool_calls": [call]}])
