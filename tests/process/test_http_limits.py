"""Clients that are many, slow or endless, on raw sockets: nobody else notices (SEC-4, SEC-5)."""
import contextlib
import socket
import time

import pytest

from cluster import fetch, running_cluster

MODEL = "lynx-tiny-moe"
MOST = 20  # Connections of the router below.


@pytest.fixture(scope="module")
def limited():
    with running_cluster(router_flags=["--max-connections", str(MOST), "--max-connections-per-client", str(MOST - 4),
                                       "--max-body", "64KiB"]) as running:
        yield running


@contextlib.contextmanager
def connections(cluster, count, source="127.0.0.1"):
    host, port = cluster.router.http.split(":")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)), 20, (source, 0))) for _ in range(count)]


def head(path="/v1/completions", **fields):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode()


def answer(connection):
    """All that comes until the router closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def serves(cluster):
    status, body = cluster.post("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 2})
    assert status == 200, body
    return True


def test_one_client_cannot_have_all_connections(limited):
    with connections(limited, MOST, source="127.0.0.2") as held:
        closed = 0
        for connection in held:
            connection.settimeout(20)
        # Those over the limit are closed at once, the others wait for a request.
        for connection in held[MOST - 4:]:
            assert answer(connection) == b""
            closed += 1
        assert closed == 4
        held[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            held[0].recv(1)
        assert serves(limited)
        assert limited.router.metric("lynx_http_rejected_total", reason="address_full", server="api") == 4


def test_headers_and_bodies_that_trickle_do_not_keep_health_or_others_out(limited):
    with connections(limited, 8, "127.0.0.3") as slow_heads, connections(limited, 8, "127.0.0.4") as slow_bodies:
        for connection in slow_heads:
            connection.sendall(b"POST /v1/completions HT")
        for connection in slow_bodies:
            connection.sendall(head(Content_Length=1000) + b"{")
        for page in ("/livez", "/readyz", "/health", "/metrics"):
            assert fetch(limited.router.url(page), timeout=10)[0] == 200
        assert serves(limited)
        # Trickling does not move the deadline: 10 s from the first byte.
        started = time.monotonic()
        for connection in slow_heads:
            connection.settimeout(1)
        open_ones = list(slow_heads)
        while open_ones and time.monotonic() - started < 40:
            for connection in list(open_ones):
                try:
                    connection.sendall(b"x")
                    received = connection.recv(4096)
                except TimeoutError:
                    continue
                except OSError:
                    received = b""
                assert received == b"" or received.startswith(b"HTTP/1.1 408"), received
                open_ones.remove(connection)
        assert not open_ones
        assert serves(limited)


@pytest.mark.parametrize("request_bytes,status", [
    (head(Content_Length=10**12), 413),
    (head(Content_Length=65537), 413),
    (head(Transfer_Encoding="chunked") + b"FFFFFFF\r\n", 413),
    (head(X_Long="y" * 40_000, Content_Length=2) + b"{}", 431),
    (head(**{f"X_{i}": i for i in range(200)}, Content_Length=2) + b"{}", 431),
    (head("/" + "a" * 9000, Content_Length=2) + b"{}", 414),
    (head(Content_Length=2, Transfer_Encoding="chunked") + b"{}", 400),
    (b"GET / HTTP/1.1\nHost: h\n\n", 400),
    (b"\x00\x01\x02\x03\r\n\r\n", 400),
])
def test_what_is_too_large_or_unclear_is_refused_before_it_is_read(limited, request_bytes, status):
    with connections(limited, 1, "127.0.0.5") as (connection,):
        connection.settimeout(20)
        connection.sendall(request_bytes)
        received = answer(connection)
        assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
        assert b'"error"' in received and b"Connection: close" in received
    assert serves(limited)


@pytest.mark.parametrize("deep", ["[" * 30_000, '{"a":' * 10_000, '{"model":"m","x":' + "[" * 100 + "]" * 100 + "}"])
def test_deep_json_is_a_400(limited, deep):
    status, body = limited.post("/v1/completions", deep.encode())
    assert status == 400 and "deep" in body["error"]["message"], body
    assert serves(limited)
