"""Gateways with their shipped files: long silence, routers that die and drain, clients that leave."""
import hashlib
import json
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

from cluster import MODEL, ROOT, fetch, running_cluster, wait_for
from gateways import ENVOY, FILES, FOLDER, SHIPPED_SILENCE, SILENCE, Gateway, Stream, TwoRouters, body_of


@pytest.fixture(scope="module")
def routers():
    # Nodes may be silent for long here: tests freeze them.
    with running_cluster(router_flags=["--stream-heartbeat", "500ms", "--suspect-after", "50s", "--gone-after", "60s"]) as cluster:
        two = TwoRouters(cluster)
        try:
            yield two
        finally:
            two.stop()


@pytest.fixture(scope="module", params=sorted(FILES))
def gateway(request, routers, tmp_path_factory):
    running = Gateway(request.param, tmp_path_factory.mktemp(request.param), routers.routers)
    try:
        yield running
    finally:
        running.stop()


def ask(gateway, **headers):
    return fetch(gateway.url("/v1/completions"), data=json.dumps(body_of()).encode(), timeout=60,
                 headers={"Content-Type": "application/json", **headers})


@pytest.mark.parametrize("kind", sorted(FILES))
def test_shipped_files_are_valid(kind):
    path = str(FOLDER / FILES[kind])
    check = {"envoy": [ENVOY, "--mode", "validate", "-c", path], "haproxy": ["haproxy", "-c", "-f", path],
             "nginx": ["nginx", "-t", "-e", "stderr", "-c", path]}[kind]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0 and "eprecated" not in done.stderr, done.stderr


def test_gateways_close_idle_connections_before_routers_do():
    header = (ROOT / "common/http/server.h").read_text()
    routers = int(re.search(r"idle_timeout = absl::Seconds\((\d+)\)", header).group(1))
    for kind, pattern in (("envoy", r"HttpProtocolOptions\n.*\n +common_http_protocol_options: {idle_timeout: (\d+)s}"),
                          ("haproxy", r"pool-purge-delay (\d+)s"), ("nginx", r"keepalive 256;\n +keepalive_timeout (\d+)s")):
        assert int(re.search(pattern, (FOLDER / FILES[kind]).read_text()).group(1)) < routers, kind


def test_only_the_api_is_open(gateway):
    assert ask(gateway)[0] == 200
    assert fetch(gateway.url("/v1/models"))[0] == 200
    for path in ("/metrics", "/readyz", "/nodes", "/", "/v2/x"):
        assert fetch(gateway.url(path))[0] == 404, path
    assert fetch(gateway.url("/v1/completions"), data=b"{", headers={"Content-Type": "application/json"})[0] == 400


def test_a_long_silence_before_and_within_a_stream_does_not_end_it(gateway, routers):  # K8S-6
    """Longer than the gateway waits: comments keep the stream alive."""
    for node in (routers.cluster.nodes["prefill-0"], routers.cluster.nodes["decode-0"]):
        node.signal(signal.SIGSTOP)
        try:
            stream = Stream(gateway, max_tokens=200)
            time.sleep(float(SILENCE[:-1]) + 1)  # The silence itself.
        finally:
            node.signal(signal.SIGCONT)
        assert stream.read(), (node.name, stream.events[-3:])
        assert stream.response.headers["X-Request-Id"] == "told-by-the-client"
        stream.leave()


def test_a_router_that_dies_takes_only_its_own_streams(gateway, routers):
    streams = [Stream(gateway, max_tokens=1800) for _ in range(6)]
    for stream in streams:
        assert not stream.read(until=2), "it is over already"
    at = routers.in_flight()
    assert sum(at) == 6 and min(at) > 0, at
    routers.routers[1].kill()
    after = [ask(gateway)[0] for _ in range(20)]
    whole = [stream.read() for stream in streams]
    routers.restart(1)
    assert after == [200] * 20
    assert sum(whole) == at[0], (at, whole)


def test_a_router_that_drains_costs_nobody_an_error(gateway, routers):  # K8S-1
    """Connections that gateways keep are closed under them meanwhile; requests on them must not be lost."""
    wait_for(lambda: all(spread(gateway, routers)), 30, "requests at both routers")
    stop = threading.Event()
    answers = []

    def talk():
        while not stop.is_set():
            answers.append(ask(gateway))

    talkers = [threading.Thread(target=talk) for _ in range(3)]
    streams = [Stream(gateway, max_tokens=600) for _ in range(4)]
    for stream in streams:
        stream.read(until=2)
    for talker in talkers:
        talker.start()
    try:
        routers.routers[0].signal(signal.SIGTERM)
        whole = [stream.read() for stream in streams]
        assert routers.routers[0].process.wait(60) == 0
        routers.restart(0)
        answered = len(answers)
        wait_for(lambda: len(answers) > answered + 10, 30, "answers with the router back")
    finally:
        stop.set()
        for talker in talkers:
            talker.join()
    assert all(whole), [stream.events[-2:] for stream in streams]
    assert {status for status, _ in answers} == {200}, [answer for answer in answers if answer[0] != 200][:3]


def spread(gateway, routers):
    """Requests that each router answered of a few."""
    before = [router.metric("lynx_router_requests_total", outcome="ok") for router in routers.routers]
    for _ in range(6):
        ask(gateway)
    return [router.metric("lynx_router_requests_total", outcome="ok") - b for router, b in zip(routers.routers, before)]


def test_a_client_that_leaves_is_gone_at_the_router(gateway, routers):
    left = sum(router.metric("lynx_router_client_disconnects_total") for router in routers.routers)
    stream = Stream(gateway, max_tokens=1800)
    stream.read(until=2)
    stream.leave()
    wait_for(lambda: sum(router.metric("lynx_router_client_disconnects_total") for router in routers.routers) > left,
             20, "end of the work")
    wait_for(lambda: sum(routers.in_flight()) == 0, 20, "idle routers")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A router that checks keys."""
    keys = tmp_path_factory.mktemp("keys") / "api-keys"
    keys.write_text(f"ann {hashlib.sha256(b'sk-ann').hexdigest()} requests-per-minute=1000\n")
    keys.chmod(0o600)
    with running_cluster(router_flags=["--api-keys", str(keys)]) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", sorted(FILES))
def test_keys_limits_and_traces_pass_through(kind, keyed, tmp_path):
    running = Gateway(kind, tmp_path, [keyed.router, keyed.router])
    try:
        status, answer = ask(running)
        assert status == 401 and json.loads(answer)["error"]["code"] == "invalid_api_key"
        assert ask(running, Authorization="Bearer sk-eve")[0] == 401
        assert ask(running, Authorization="Bearer sk-ann", traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01",
                   **{"X-Request-Id": f"through-{kind}"})[0] == 200
        request = urllib.request.Request(running.url("/v1/models"), headers={"Authorization": "Bearer sk-ann"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.headers["X-RateLimit-Limit-Requests"] == "1000"
    finally:
        running.stop()

    def logged():
        found = [json.loads(line) for line in keyed.router.log_path.read_text().splitlines() if f"through-{kind}" in line]
        return [line["trace_id"] for line in found]

    assert wait_for(logged, 30, "line of the request") == ["ab" * 16]
