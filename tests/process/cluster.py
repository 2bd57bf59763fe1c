"""Starts, watches and stops real Lynx processes for the process tests."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
MODEL = ROOT / "models" / "lynx-tiny-moe"
LONG = os.environ.get("LYNX_LONG") == "1"


def wait_for(condition, timeout, what):
    """Polls until `condition()` is truthy and returns it; the timeout matters only when the test fails."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {timeout} s")
        time.sleep(0.02)


def fetch(url, timeout=10, data=None, headers=None, context=None):
    """(status, body text) of a GET, or a POST when there is data."""
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def parse_metrics(text):
    """{(name, frozenset of labels): value} of a Prometheus text page."""
    series = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
        series[(match.group(1), labels)] = float(match.group(3))
    return series


class Process:
    """One binary, its log and its addresses."""

    def __init__(self, folder, name, program, *arguments, env=None, within=()):
        """`within`: a command that becomes the program, as in ip netns exec NAME."""
        self.name = name
        self.announce = folder / f"{name}.announce"
        self.log_path = folder / f"{name}.log"
        self.announce.unlink(missing_ok=True)
        self.arguments = [*within, str(BIN / program), *map(str, arguments), "--announce", str(self.announce)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(env or {})})

    def wait_announced(self, timeout=60):
        def announced():
            assert self.process.poll() is None, f"{self.name} ended: {self.log()}"
            return self.announce.exists()

        wait_for(announced, timeout, f"announcement of {self.name}")
        lines = dict(line.split("=", 1) for line in self.announce.read_text().split())
        self.http = lines["http"]
        self.control = lines["control"]
        return self

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def url(self, path):
        return f"http://{self.http}{path}"

    def metrics(self):
        status, text = fetch(self.url("/metrics"))
        assert status == 200
        return parse_metrics(text)

    def metric(self, name, **labels):
        """Sum of the series of that name with at least these labels."""
        wanted = set(labels.items())
        found = [v for (n, have), v in self.metrics().items() if n == name and wanted <= have]
        assert found, f"{self.name} has no {name} {labels}"
        return sum(found)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, timeout=30):
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{self.name} did not stop: {self.log()}")
        return self.process.returncode


class Cluster:
    """One router with its nodes."""

    def __init__(self, folder, prefill=1, decode=1, model=MODEL, node_flags=(), decode_flags=(), router_flags=(),
                 own_flags=None, places=None):
        """Of single nodes, by name: `own_flags`, and `places`, which are (address, command that becomes the program
        there, environment)."""
        self.folder = pathlib.Path(folder)
        self.model = model
        self.node_flags = list(node_flags)
        self.decode_flags = list(decode_flags)
        self.own_flags = own_flags or {}
        self.places = places or {}
        self.nodes = {}
        for role, count in (("decode", decode), ("prefill", prefill)):
            for i in range(count):
                self.start_node(f"{role}-{i}")
        for node in self.nodes.values():
            node.wait_announced()
        self.router = Process(
            self.folder, "router", "lynx-router", "--model", model, "--listen", "127.0.0.1:0",
            *(("--prefill", ",".join(n.control for n in self.of_role("prefill"))) if prefill else ()),
            "--decode", ",".join(n.control for n in self.of_role("decode")),
            "--heartbeat-interval", "200ms", *router_flags)
        self.router.wait_announced()
        self.wait_ready()

    def of_role(self, role):
        return [node for name, node in sorted(self.nodes.items()) if name.startswith(role)]

    def start_node(self, name, control=None):
        role = name.split("-")[0]
        address, within, env = self.places.get(name, ("127.0.0.1", (), None))
        self.nodes[name] = Process(
            self.folder, name, "lynx-" + role, "--model", self.model,
            "--control", control or f"{address}:0", "--http", f"{address}:0", "--threads", 1, *self.node_flags,
            *(self.decode_flags if role == "decode" else ()), *self.own_flags.get(name, ()), within=within, env=env)
        return self.nodes[name]

    def restart_node(self, name):
        """Starts a dead node again at its old control address."""
        control = self.nodes[name].control
        return self.start_node(name, control).wait_announced()

    def wait_ready(self, timeout=60):
        wait_for(lambda: fetch(self.router.url("/readyz"))[0] == 200, timeout, "ready router")

    def processes(self):
        return [self.router, *self.nodes.values()]

    def post(self, path, body, timeout=60, **headers):
        """(status, decoded JSON) of a request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = fetch(self.router.url(path), timeout, data,
                             {"Content-Type": "application/json", **headers})
        return status, json.loads(text)

    def wait_idle(self, timeout=30):
        """Every block of every node is free and nothing runs."""
        def idle():
            for node in self.nodes.values():
                metrics = node.metrics()
                free = metrics[("lynx_kv_blocks", frozenset({("state", "free")}))]
                if free != metrics[("lynx_kv_capacity_blocks", frozenset())]:
                    return False
            return True

        wait_for(idle, timeout, "idle cluster")

    def close(self):
        """Stops everything; every process still running must end with status 0."""
        problems = []
        for process in self.processes():
            ended = process.process.poll()
            if ended is None:
                try:
                    if process.stop() != 0:
                        problems.append(f"{process.name} exit {process.process.returncode}: {process.log()}")
                except AssertionError as error:
                    problems.append(str(error))
            elif ended not in (0, -signal.SIGKILL):
                problems.append(f"{process.name} had ended with {ended}: {process.log()}")
        assert not problems, "\n".join(problems)


@contextlib.contextmanager
def running_cluster(**arguments):
    with tempfile.TemporaryDirectory(prefix="lynx-test-") as folder:
        cluster = Cluster(folder, **arguments)
        try:
            yield cluster
        finally:
            cluster.close()
