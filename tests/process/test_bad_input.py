"""Nothing a client sends may crash a process, hang it or touch another client's answer."""
import json
import select
import socket
import threading

import pytest

from cluster import fetch, wait_for

MODEL = "lynx-tiny-moe"
VOCABULARY = 4096


def error_of(cluster, path, body, **headers):
    status, answer = cluster.post(path, body, **headers)
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"]
    return status, error


def completion(**fields):
    return {"model": MODEL, "prompt": "import os", "max_tokens": 4, **fields}


def chat(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}


@pytest.mark.parametrize("field,values", {
    "max_tokens": [-1, 0, "4", 1.5, 2**63, True],
    "temperature": [-0.1, 2.5, "1", [1]],
    "top_p": [0, 1.1, "x"],
    "top_k": [-2, 1.5],
    "min_p": [-0.1, 1.1],
    "n": [0, -1, 10**6, "2"],
    "seed": [1.5, "7", 2**70],
    "stop": [5, [1], [""] * 2, ["x"] * 100, "x" * 100000, {"a": 1}],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": "yes"}, 7],
    "logprobs": [-1, 1000, "3"],
    "echo": ["yes", 1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "logit_bias": [{str(VOCABULARY): 5}, {"-1": 5}, {"x": 1}, {"5": 101}, [1]],
    "ignore_eos": ["x", 3],
    "min_tokens": [-1, 10**9],
    "stop_token_ids": [[VOCABULARY], [-1], "5", [2**63]],
    "prompt": [None, 5, {}, [[]], [], [-1], [VOCABULARY], [2**32 - 1], [2**63], [2**70], [1.5], ["a", 5], [[1], "a"]],
    "suffix": ["x"],
    "priority": [-1, 1001, "1", 1.5, True],
    "best_of": [2],
    "model": [5, None, ""],
}.items())
def test_a_bad_field_is_a_400_naming_it(cluster, field, values):
    for value in values:
        status, error = error_of(cluster, "/v1/completions", completion(**{field: value}))
        if field == "model" and value == "":
            assert status in (400, 404)
            continue
        assert status == 400, (field, value, error)
        assert error["param"] and error["param"].split(".")[0].split("[")[0] == field, (value, error)


def test_fields_that_would_change_the_answer_are_refused_and_others_ignored(cluster):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for field, value in (("functions", [{"name": "f"}]), ("tool_choice", "required"), ("tools", [{"type": "web_search"}]),
                         ("response_format", {"type": "json_object"}), ("modalities", ["audio"])):
        status, error = error_of(cluster, "/v1/chat/completions", chat(**{field: value}))
        assert (status, error["param"].split("[")[0]) == (400, field)
    assert error_of(cluster, "/v1/completions", completion(tools=[tool]))[1]["param"] == "tools"
    for field, value in (("user", "u"), ("store", True), ("metadata", {"a": "b"}), ("unknown", [1]),
                         ("response_format", {"type": "text"}), ("tool_choice", "none"), ("tools", None), ("tools", [tool])):
        status, answer = cluster.post("/v1/chat/completions", chat(**{field: value}))
        assert status == 200, (field, answer)


def test_ids_outside_the_vocabulary_leave_a_running_stream_alone(cluster):  # API-4
    long = completion(max_tokens=300, temperature=1.0, seed=5, ignore_eos=True)
    want = cluster.post("/v1/completions", long)[1]["choices"][0]["text"]
    got = []
    worker = threading.Thread(target=lambda: got.append(cluster.post("/v1/completions", long)))
    worker.start()
    attacks = 0
    while worker.is_alive() or attacks == 0:
        for bad in ({"prompt": [-1]}, {"prompt": [VOCABULARY]}, {"prompt": [4294967295]},
                    {"prompt": [9223372036854775808]}, {"logit_bias": {str(VOCABULARY): 5}},
                    {"logit_bias": {"-1": 5}}, {"stop_token_ids": [VOCABULARY], "min_tokens": 1}):
            status, error = error_of(cluster, "/v1/completions", completion(**bad))
            assert status == 400 and error["param"] in bad
            attacks += 1
    worker.join()
    assert got[0][1]["choices"][0]["text"] == want
    assert all(p.process.poll() is None for p in cluster.processes())


def test_unknown_models_and_paths(cluster):
    status, error = error_of(cluster, "/v1/completions", completion(model="other"))
    assert (status, error["code"]) == (404, "model_not_found")
    assert error_of(cluster, "/v1/nothing", {})[0] == 404
    status, text = fetch(cluster.router.url("/v1/completions"))
    assert status == 405 and json.loads(text)["error"]["message"]


def test_prompt_and_answer_longer_than_the_context(cluster):
    status, error = error_of(cluster, "/v1/completions", completion(prompt=[5] * 2049))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    status, error = error_of(cluster, "/v1/completions", completion(prompt=[5] * 2000, max_tokens=100))
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_malformed_json_is_a_400(cluster):
    for body in (b"", b"{", b"nul", b'{"model":', b'{"a":1}}', b"\xff\xfe", b"[]", b'"x"', b"1e999",
                 b'{"model":"' + MODEL.encode() + b'","prompt":"a","max_tokens":1e999}'):
        assert error_of(cluster, "/v1/completions", body)[0] == 400, body


def test_invalid_utf8_is_a_400_with_a_clean_message(cluster):  # STR-3
    for body in (b'{"model":"\xff","prompt":"a"}', b'{"model":"m","x\xc0":"a"}',
                 b'{"model":"' + MODEL.encode() + b'","prompt":"\xed\xa0\x80"}'):
        assert error_of(cluster, "/v1/completions", body)[0] == 400


@pytest.mark.parametrize("depth", [100, 3000, 100_000, 1_000_000])
def test_deep_json_is_a_400(cluster, depth):  # SEC-2
    for field in ("tools", "unknown", "response_format", "prompt"):
        body = b'{"model":"m","%s":%s%s}' % (field.encode(), b"[" * depth, b"]" * depth)
        status, error = error_of(cluster, "/v1/chat/completions", body)
        assert status == 400 and "deep" in error["message"], error


def calling(arguments):
    """An assistant's message with a tool call of these arguments."""
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize("depth", [100, 3000, 100_000, 1_000_000])
def test_deep_arguments_of_a_tool_call_are_a_400(cluster, depth):  # SEC-2
    arguments = '{"k":' + "[" * depth + "]" * depth + "}"
    status, error = error_of(cluster, "/v1/chat/completions", chat(messages=[calling(arguments)]))
    assert (status, error["param"]) == (400, "messages[0].tool_calls[0].function.arguments"), error
    assert "deep" in error["message"]


def test_a_million_keys_are_answered(cluster):  # SEC-2
    keys = "{" + ",".join(f'"k{i}":0' for i in range(1_000_000)) + "}"
    assert cluster.post("/v1/completions", keys.encode())[0] in (400, 413)
    assert error_of(cluster, "/v1/chat/completions", chat(messages=[calling(keys)]))[0] in (400, 413)


def raw(cluster, data, read_timeout=10):
    host, port = cluster.router.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=read_timeout) as connection:
        connection.sendall(data)
        received = b""
        try:
            while True:
                piece = connection.recv(65536)
                if not piece:
                    break
                received += piece
                if b"\r\n\r\n" in received and b'"error"' in received and received.endswith(b"}"):
                    break
        except socket.timeout:
            pass
        return received


def test_oversize_requests_are_refused_early(cluster):  # SEC-4
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    assert b" 413 " in raw(cluster, post + b"Content-Length: 1000000000000\r\n\r\n").split(b"\r\n")[0]
    assert b" 431 " in raw(cluster, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 65536 + b"\r\n\r\n").split(b"\r\n")[0]
    both = post + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert b" 400 " in raw(cluster, both).split(b"\r\n")[0]
    assert b" 415 " in raw(cluster, post + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}").split(b"\r\n")[0]


def test_an_endless_chunked_body_is_cut_off(cluster):  # SEC-4
    host, port = cluster.router.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        sent = 0
        while not select.select([connection], [], [], 0)[0]:
            connection.sendall(chunk)
            sent += len(chunk)
            assert sent < 256 << 20, "the body must be refused long before"
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]


def test_nothing_a_client_names_is_connected_to(cluster):  # SEC-8
    with socket.create_server(("127.0.0.1", 0)) as trap:
        address = "127.0.0.1:%d" % trap.getsockname()[1]
        host, port = address.split(":")
        headers = {name: address for name in ("X-Prefiller-Host-Port", "X-Prefill-Url", "X-Decode-Host-Port", "X-Forwarded-Host",
                                              "X-Gateway-Destination-Endpoint", "X-Transfer-Address", "Forwarded")}
        transfer = {"do_remote_prefill": True, "remote_host": host, "remote_port": int(port), "remote_engine_id": address,
                    "remote_block_ids": [0, 1, 2], "grant_id": 1, "transfer_address": address}
        named = {"kv_transfer_params": transfer, "bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": 1,
                 "prefill_node": address, "decode_node": address, "nodes": [address], "grant": transfer}
        status, answer = cluster.post("/v1/completions", completion(**named), **headers)
        assert status == 200 and answer["usage"]["completion_tokens"] == 4, answer
        image = {"type": "image_url", "image_url": {"url": f"http://{address}/x"}}
        status, error = error_of(cluster, "/v1/chat/completions", chat(messages=[{"role": "user", "content": [image]}]))
        assert status == 400
        trap.settimeout(1)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_clients_that_never_read_cost_bounded_memory_and_their_blocks_return(cluster):  # SEC-4
    host, port = cluster.router.http.rsplit(":", 1)
    body = json.dumps(completion(max_tokens=2000, ignore_eos=True, stream=True, n=2,
                                 temperature=1.0, logprobs=5)).encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n" % len(body)) + body
    before = cluster.router.metric("process_resident_memory_bytes")
    connections = []
    for _ in range(20):
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request)
        connections.append(connection)
    assert cluster.post("/v1/completions", completion())[0] == 200, "neighbours go on"
    assert cluster.router.metric("process_resident_memory_bytes") - before < 200 << 20
    for connection in connections:
        connection.close()
    cluster.wait_idle(timeout=30)


def test_equal_client_ids_do_not_mix_answers(cluster):  # API-6
    seeds = range(20)

    def body(seed):
        return completion(max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True)

    want = [cluster.post("/v1/completions", body(s))[1]["choices"][0]["text"] for s in seeds]
    got = [None] * len(seeds)

    def ask(i):
        got[i] = cluster.post("/v1/completions", body(i), **{"X-Request-Id": "same"})[1]["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want
    for process in cluster.processes():
        for (name, labels), value in process.metrics().items():
            assert value >= 0 or name.endswith("timestamp_seconds"), (process.name, name, labels)


def test_usage_chunks_come_only_when_asked_for(cluster):  # API-1
    whole = cluster.post("/v1/chat/completions", chat())[1]["usage"]
    for options, wanted in ((..., False), (None, False), ({"include_usage": False}, False),
                            ({"include_usage": True}, True)):
        body = chat(stream=True)
        if options is not ...:
            body["stream_options"] = options
        status, text = fetch(cluster.router.url("/v1/chat/completions"), 30, json.dumps(body).encode(),
                             {"Content-Type": "application/json"})
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert status == 200 and events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert all("choices" in chunk for chunk in chunks)
        usage_only = [chunk for chunk in chunks if chunk["choices"] == []]
        assert len(usage_only) == (1 if wanted else 0)
        if wanted:
            assert chunks[-1] is usage_only[0] and usage_only[0]["usage"] == whole


def test_text_parts_are_the_plain_string_for_every_role(cluster):  # API-5
    def tokens(messages):
        status, answer = cluster.post("/tokenize", {"model": MODEL, "messages": messages})
        assert status == 200, answer
        return answer["tokens"]

    for role in ("system", "user", "assistant"):
        parts = [{"type": "text", "text": "Reply in French."}, {"type": "text", "text": "At most ten words."}]
        joined = "".join(part["text"] for part in parts)
        as_parts = tokens([{"role": role, "content": parts}])
        assert as_parts in (tokens([{"role": role, "content": joined}]),
                            tokens([{"role": role, "content": joined.replace(".A", ".\nA")}]))
    for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}, {"type": "odd"}):
        status, error = error_of(cluster, "/v1/chat/completions",
                                 chat(messages=[{"role": "user", "content": [part]}]))
        assert status == 400 and part["type"] in error["message"]
    for messages in ([], [{"role": "user"}], [{"role": "nobody", "content": "x"}], "x", [5]):
        assert error_of(cluster, "/v1/chat/completions", chat(messages=messages))[0] == 400


def test_log_probabilities_are_always_finite_json(cluster):  # STR-8
    for fields in ({"logprobs": 5, "top_k": 1}, {"echo": True, "logprobs": 1, "top_k": 1},
                   {"logprobs": 5, "logit_bias": {str(i): -100 for i in range(1, 300)}, "temperature": 1.0}):
        status, text = fetch(cluster.router.url("/v1/completions"), 30, json.dumps(completion(**fields)).encode(),
                             {"Content-Type": "application/json"})
        assert status == 200

        def refuse(constant):
            raise AssertionError(f"{constant} in {text}")

        json.loads(text, parse_constant=refuse)


def test_a_prompt_that_ends_in_half_a_character_is_not_repeated(cluster):  # STR-4
    euro = cluster.post("/tokenize", {"model": MODEL, "prompt": "€"})[1]["tokens"]
    prompt = cluster.post("/tokenize", {"model": MODEL, "prompt": "Invoice total: "})[1]["tokens"]
    body = completion(prompt=prompt + euro[:1], max_tokens=4, stream=True, temperature=0)
    _, text = fetch(cluster.router.url("/v1/completions"), 30, json.dumps(body).encode(),
                    {"Content-Type": "application/json"})
    deltas = [json.loads(line[6:])["choices"][0]["text"] for line in text.split("\n")
              if line.startswith("data: {")]
    assert "Invoice" not in "".join(deltas)


def test_the_cluster_is_as_before(cluster):
    cluster.wait_idle()
    assert all(process.process.poll() is None for process in cluster.processes())
    wait_for(lambda: cluster.post("/v1/chat/completions", chat())[0] == 200, 5, "answer")
