"""Gateways as they are shipped, in front of two real routers of one cluster."""
import http.client
import json
import pathlib
import re
import socket
import subprocess
import sys

from cluster import MODEL, ROOT, Process, fetch, wait_for
from prometheus import free_port

FOLDER = ROOT / "deploy" / "gateway"
FILES = {"envoy": "envoy.yaml", "haproxy": "haproxy.cfg", "nginx": "nginx.conf"}
ENVOY = pathlib.Path(sys.executable).parent / "envoy"
# Limits of silence in the shipped files, and what they are here.
SHIPPED_SILENCE, SILENCE = "300s", "2s"


def command(kind, folder, config):
    return {
        "envoy": [ENVOY, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"],
        "haproxy": ["haproxy", "-db", "-f", config],
        "nginx": ["nginx", "-p", folder, "-e", "stderr", "-c", config, "-g",
                  f"daemon off; error_log stderr; pid {folder}/nginx.pid;"],
    }[kind]


class Gateway:
    """The shipped file with this machine's addresses, shorter silence, and nothing else changed."""

    def __init__(self, kind, folder, routers):
        self.kind = kind
        self.port = free_port()
        text = (FOLDER / FILES[kind]).read_text()
        address = {"envoy": ("address: 10.0.0.1{}, port_value: 8080", "address: 127.0.0.1, port_value: {}"),
                   "haproxy": ("10.0.0.1{}:8080", "127.0.0.1:{}"), "nginx": ("10.0.0.1{}:8080", "127.0.0.1:{}")}[kind]
        changes = [(address[0].format(i + 1), address[1].format(router.http.rsplit(":", 1)[1]))
                   for i, router in enumerate(routers)]
        listen = {"envoy": "address: 0.0.0.0, port_value: {}", "haproxy": "bind :{}", "nginx": "listen {};"}[kind]
        changes += [(listen.format(8000), listen.format(self.port)), (SHIPPED_SILENCE, SILENCE)]
        if kind == "nginx":  # Its own folders; the rest of the file has no paths.
            own = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            changes += [("http {\n", f"http {{\naccess_log off;\n{own}"), ("worker_processes auto;", "worker_processes 1; user root;")]
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        config = pathlib.Path(folder) / FILES[kind]
        config.write_text(text)
        self.log_path = pathlib.Path(folder) / f"{kind}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command(kind, str(folder), str(config)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(self.serves, 30, f"answer of {kind}")
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}: {self.log_path.read_text()[-4000:]}")

    def serves(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            return fetch(self.url("/v1/models"))[0] in (200, 401)
        except OSError:
            return False

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def body_of(**fields):
    return {"model": MODEL.name, "prompt": "import os", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


class Stream:
    """A streamed request, read by hand."""

    def __init__(self, gateway, **fields):
        self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        self.connection.request("POST", "/v1/completions", json.dumps(body_of(stream=True, **fields)),
                                {"Content-Type": "application/json", "X-Request-Id": "told-by-the-client"})
        self.response = None
        self.events = []

    def read(self, until=None):
        """Reads events until there are so many, or the end; returns whether the stream is whole."""
        try:
            if self.response is None:
                self.response = self.connection.getresponse()
            while until is None or len(self.events) < until:
                line = self.response.readline()
                if not line:
                    break
                if line.startswith(b"data: "):
                    self.events.append(line[6:].decode().strip())
        except (http.client.HTTPException, OSError):  # Cut off.
            return False
        return bool(self.events) and self.events[-1] == "[DONE]"

    def leave(self):
        # The response holds the socket as well.
        for end in (self.response, self.connection):
            if end is not None:
                end.close()


class TwoRouters:
    """Routers of one cluster's nodes, on fixed ports, so that a gateway finds them again."""

    def __init__(self, cluster):
        self.cluster = cluster
        flags = list(cluster.router.arguments[1:-2])
        flags[flags.index("--listen") + 1] = None
        self.flags = flags
        self.routers = [self.start(i, free_port()) for i in range(2)]
        for router in self.routers:
            self.wait_ready(router)

    def start(self, i, port):
        flags = [f"127.0.0.1:{port}" if flag is None else flag for flag in self.flags]
        return Process(self.cluster.folder, f"router-{i}", "lynx-router", *flags).wait_announced()

    def restart(self, i):
        port = self.routers[i].http.rsplit(":", 1)[1]
        self.routers[i] = self.start(i, port)
        self.wait_ready(self.routers[i])

    @staticmethod
    def wait_ready(router):
        wait_for(lambda: fetch(router.url("/readyz"))[0] == 200, 60, "ready router")

    def in_flight(self):
        return [router.metric("lynx_router_inflight_requests") for router in self.routers]

    def stop(self):
        for router in self.routers:
            router.stop()
