"""docs/openapi.json says what the router takes and answers, and the router does what it says."""
import copy
import json
import pathlib
import re
import subprocess
import sys

import openapi_spec_validator
import pytest
from openapi_schema_validator import OAS31Validator

from cluster import BIN, LONG, ROOT, fetch

MODEL = "lynx-tiny-moe"
DOCUMENT = json.loads((ROOT / "docs/openapi.json").read_text())
FRONT = ROOT / "services/router/front"
REQUESTS = {"/v1/completions": ("CompletionRequest", {"prompt": "import os"}),
            "/v1/chat/completions": ("ChatRequest", {"messages": [{"role": "user", "content": "hi"}]}),
            "/tokenize": ("ChatToTokenize", {"messages": [{"role": "user", "content": "hi"}]}),
            "/detokenize": ("DetokenizeRequest", {"tokens": [5]})}
# Ignored when they are no strings: they only say whose the request is.
HARMLESS = {"user", "safety_identifier"}


def schema_of(name):
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


def check(name, value):
    problems = [f"{error.json_path}: {error.message}" for error in OAS31Validator(schema_of(name)).iter_errors(value)]
    assert not problems, (name, problems, value)


def fields_of(name):
    return set(DOCUMENT["components"]["schemas"][name]["properties"])


def test_the_document_is_valid_and_served_as_it_is(cluster):
    openapi_spec_validator.validate(DOCUMENT)
    status, text = fetch(cluster.router.url("/openapi.json"))
    assert status == 200 and text == (ROOT / "docs/openapi.json").read_text()
    version = subprocess.run([BIN / "lynx-router", "--version"], capture_output=True, text=True, check=True).stdout
    assert version.split()[-1] == DOCUMENT["info"]["version"]


def sources(*names):
    return "".join((FRONT / name).read_text() for name in names)


def test_every_field_that_is_read_is_in_the_document_and_the_other_way_round():
    text = sources("api_request.cc", "chat_request.cc")
    read = set(re.findall(r'(?:Find\((?:body|json)|Read\w+\((?:body|json)), "(\w+)"', text))
    refused = re.findall(r'^    \{"(\w+)", If|^    \{"(\w+)", Never', text, re.M)
    read |= {a or b for a, b in refused} | HARMLESS
    documented = set().union(*(fields_of(schema) for schema, _ in REQUESTS.values()))
    assert len(read) > 60 and read == documented, (sorted(read - documented), sorted(documented - read))
    parameters = set(re.findall(r'\{"(\w+)", ParameterType::', text))
    assert len(parameters) > 5 and parameters | {"policy"} == fields_of("Lynx")


def test_every_error_code_and_type_is_in_the_document_and_the_other_way_round():
    text = sources(*(path.name for path in FRONT.glob("*.cc")))
    found = set(re.findall(r'\.?code = "(\w+)"', text)) | set(re.findall(r'"((?:unsupported|context)_\w+)"', text))
    found |= set(re.findall(r'kCodePayload, "(\w+)"', text))
    error = DOCUMENT["components"]["schemas"]["Error"]["properties"]["error"]["properties"]
    assert found == set(error["code"]["enum"]) - {None}
    outcomes = {"client_error", "server_error", "stream_error"}  # Of metrics.
    types = set(re.findall(r'"(\w+_error)"', text)) - {"internal_error"} - outcomes | {"server_error"}
    assert types | {"requests", "tokens"} == set(error["type"]["enum"])


def test_every_route_is_in_the_document_and_the_other_way_round(cluster):
    for path, item in DOCUMENT["paths"].items():
        methods = {method.upper() for method in item if method in ("get", "post")}
        for method in {"GET", "POST", "PUT"}:
            status, text = fetch(cluster.router.url(path.replace("{model}", MODEL)), data=None if method == "GET" else b"")
            if method != "PUT":
                assert (status in (404, 405)) == (method not in methods), (method, path, status, text)
    text = sources("completion_handler.cc") + (ROOT / "common/http/health.cc").read_text() + \
        (ROOT / "services/router/main.cc").read_text()
    routes = set(re.findall(r'path (?:==|\.starts_with\() ?"(/[\w/]+)"', text)) | set(re.findall(r'add\("(/\w+)"', text))
    routes |= set(re.findall(r'k\w+Path = "(/[\w./]+)"', text)) | set(re.findall(r'Add\("GET", "(/\w+)"', text))
    routes.discard("/v1/models/")
    assert routes == {path for path in DOCUMENT["paths"] if "{" not in path}


@pytest.mark.parametrize("path", REQUESTS)
def test_every_documented_field_is_known_to_the_router(cluster, path):
    name, base = REQUESTS[path]
    schema = DOCUMENT["components"]["schemas"][name]
    for field in schema["properties"]:
        if field in HARMLESS:
            continue
        body = {"model": MODEL, **base, field: [["odd"]]}
        status, answer = cluster.post(path, body)
        assert status == 400 and re.split(r"[.\[]", answer["error"]["param"])[0] == field, (field, status, answer)
        check("Error", answer)
        with pytest.raises(AssertionError):
            check(name, body)  # So the document says, too, that it is wrong.


@pytest.mark.parametrize("path,fields", [
    ("/v1/completions", {"logprobs": 2, "echo": True, "stop": ["zzz"], "n": 2, "seed": 1}),
    ("/v1/completions", {"max_tokens": 3, "lynx": {"policy": "exact"}, "logit_bias": {"7": -1.5}, "suffix": ""}),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2, "temperature": 0, "user": "u", "tools": []}),
    ("/v1/chat/completions", {"stop": None, "max_completion_tokens": 3, "response_format": {"type": "text"}}),
])
def test_answers_and_chunks_are_as_documented(cluster, path, fields):
    name, base = REQUESTS[path]
    body = {"model": MODEL, **base, "max_completion_tokens": fields.get("max_tokens", 3), **fields}
    check(name, body)
    status, answer = cluster.post(path, body)
    assert status == 200
    check("Completion" if path == "/v1/completions" else "ChatCompletion", answer)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    check(name, body)
    status, text = fetch(cluster.router.url(path), data=json.dumps(body).encode())
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]" and len(events) > 2
    for event in events[:-1]:
        check("CompletionChunk" if path == "/v1/completions" else "ChatCompletionChunk", json.loads(event))


def test_generated_requests_meet_answers_as_documented(cluster, tmp_path):
    """Hundreds of requests (thousands in the long form), right and wrong, made from the document: nothing but what it says comes back."""
    # Of the requests that are right most should be served, and soon.
    document = copy.deepcopy(DOCUMENT)
    for name in ("CompletionRequest", "ChatRequest", "TextToTokenize", "ChatToTokenize", "DetokenizeRequest"):
        properties = document["components"]["schemas"][name]["properties"]
        properties["model"] = {"enum": [MODEL] if "n" in properties else [MODEL, None]}
        for field, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("n", 2)):
            if field in properties:
                properties[field]["maximum"] = most
    document["components"]["schemas"]["TokenId"]["maximum"] = 4095
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    before = {process.name: process.process.pid for process in cluster.processes()}
    run = subprocess.run(
        [pathlib.Path(sys.executable).parent / "schemathesis", "run", tmp_path / "openapi.json", "--url",
         cluster.router.url(""), "--phases", "coverage,fuzzing" if LONG else "fuzzing", "--max-examples",
         "1000" if LONG else "30", "--workers", "2", "--seed", "7", "--generation-database", "none", "--checks",
         "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
         "response_headers_conformance,negative_data_rejection,unsupported_method", "--no-color"],
        capture_output=True, text=True, timeout=7200 if LONG else 300, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    generated = re.search(r"(\d+) generated", run.stdout)
    assert generated and int(generated[1]) > 200, run.stdout[-2000:]
    assert {process.name: process.process.pid for process in cluster.processes() if process.process.poll() is None} == before
    cluster.wait_idle(60)
