"""One request's names in the logs of every process that worked for it."""
import json
import re

from cluster import fetch, running_cluster, wait_for

MODEL = "lynx-tiny-moe"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
BODY = {"model": MODEL, "prompt": "import os", "max_tokens": 3}


def lines(process, request_id):
    found = [json.loads(line) for line in process.log_path.read_text().splitlines() if request_id in line]
    return [line for line in found if line.get("request_id") == request_id]


def ask(cluster, request_id, **headers):
    """The lines of the request by process name."""
    status, _ = cluster.post("/v1/completions", BODY, **{"X-Request-Id": request_id, **headers})
    assert status == 200
    wait_for(lambda: lines(cluster.router, request_id), 30, "line of the router")
    return {process.name: lines(process, request_id) for process in cluster.processes()}


def test_a_trace_goes_through_router_decode_and_prefill():
    # The decode node would compute the prompt itself if that were quicker.
    with running_cluster(decode_flags=("--prompt-rows", 0)) as cluster:
        logs = ask(cluster, "trace-me-1", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        (end,) = logs.pop("router")
        assert end["message"] == "request finished" and end["trace_id"] == TRACE
        assert re.fullmatch("[0-9a-f]{16}", end["span_id"]) and end["span_id"] != "00f067aa0ba902b7"
        taken = [line for found in logs.values() for line in found]
        assert sorted(line["message"] for line in taken) == ["prompt taken", "room granted"], logs
        assert {line["component"] for line in taken} == {"decode", "prefill"}
        assert len({line["sequence"] for line in taken}) == 1
        for line in taken:
            assert (line["trace_id"], line["parent_span_id"]) == (TRACE, end["span_id"])


def test_without_one_or_with_a_bad_one_a_trace_is_begun(cluster):
    seen = set()
    for i, headers in enumerate(({}, {"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"}, {"traceparent": "x"})):
        logs = ask(cluster, f"trace-me-2-{i}", **headers)
        traces = {line["trace_id"] for found in logs.values() for line in found}
        assert len(traces) == 1 and re.fullmatch("[0-9a-f]{32}", *traces), logs
        seen |= traces
    assert len(seen) == 3 and TRACE not in seen


def test_a_refused_request_is_in_the_log_under_its_trace(cluster):
    status, _ = fetch(cluster.router.url("/v1/completions"), data=b"{}", headers={
        "X-Request-Id": "trace-me-3", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-00"})
    assert status == 400
    (line,) = lines(cluster.router, "trace-me-3")
    assert line["message"] == "request refused" and line["trace_id"] == TRACE
