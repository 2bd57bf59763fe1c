"""CURVE on the control plane: who gets in, what others see, and keys that change under load."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import openai
import pytest
import zmq
import zmq.auth

from cluster import BIN, MODEL as FOLDER, Cluster, Process, fetch, parse_metrics, wait_for

MODEL = "lynx-tiny-moe"


def keygen(stem):
    done = subprocess.run([BIN / "lynx", "keygen", "--name", stem], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(f"{stem}.key_secret")


class Keys:
    """Key pairs of a cluster, made by `lynx keygen`, and where its processes look for them."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.made = self.folder / "made"
        for name in ("made", "router", "nodes", "routers-known", "nodes-known"):
            (self.folder / name).mkdir()
        for end in ("router", "nodes"):
            self.allow(end, f"{end}-0")
            self.use(end, f"{end}-0")

    def own_folders(self, names):
        """Flags by which nodes have their key in places of their own."""
        flags = {}
        for name in names:
            (self.folder / name).mkdir()
            self.use(name, "nodes-0")
            flags[name] = [*self.flags("nodes")[2:], "--control-key", self.folder / name / "own.key_secret"]
        return flags

    def pair(self, name):
        secret = self.made / f"{name}.key_secret"
        return secret if secret.exists() else keygen(self.made / name)

    def known(self, end):
        return self.folder / ("routers-known" if end == "router" else "nodes-known")

    def allow(self, end, name):
        self.pair(name)
        shutil.copy(self.made / f"{name}.key", self.known(end))

    def forbid(self, end, name):
        (self.known(end) / f"{name}.key").unlink()

    def use(self, end, name):
        """In the place of the key before, as the documented procedure says."""
        fresh = self.folder / end / "new"
        shutil.copy(self.pair(name), fresh)
        fresh.chmod(0o600)
        os.replace(fresh, self.folder / end / "own.key_secret")

    def flags(self, end):
        return ["--control-key", self.folder / end / "own.key_secret",
                "--control-peers", self.known("nodes" if end == "router" else "router")]


@contextlib.contextmanager
def keyed_cluster(prefill=1, decode=1):
    with tempfile.TemporaryDirectory(prefix="lynx-test-") as folder:
        keys = Keys(folder)
        names = [f"{role}-{i}" for role, count in (("prefill", prefill), ("decode", decode)) for i in range(count)]
        running = Cluster(folder, prefill, decode, own_flags=keys.own_folders(names),
                          router_flags=[*keys.flags("router"), "--log-level", "debug"])
        running.keys = keys
        try:
            yield running
        finally:
            running.close()


def complete(cluster, **fields):
    client = openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=120)
    return client.completions.create(model=MODEL, prompt="import os", **{"max_tokens": 8, **fields})


def handshakes(process, results):
    return sum(process.metric("lynx_control_handshakes_total", result=result)
               for result in ((results,) if isinstance(results, str) else results))


def test_a_cluster_with_keys_serves_and_says_so():
    with keyed_cluster() as cluster:
        assert complete(cluster).usage.completion_tokens > 0
        for process in cluster.processes():
            assert process.metric("lynx_control_curve") == 1
            assert handshakes(process, "ok") >= 1
            assert process.metric("lynx_control_key_loads_total", result="failed") == 0
        logs = "".join(process.log_path.read_text() for process in cluster.processes())
        for end in ("router", "nodes"):
            secret = zmq.auth.load_certificate(cluster.keys.pair(f"{end}-0"))[1].decode()
            assert secret not in logs


def test_keys_are_those_of_zeromqs_tools(tmp_path):
    public, secret = zmq.auth.load_certificate(keygen(tmp_path / "lynx"))
    assert zmq.curve_public(secret) == public
    assert zmq.auth.load_certificate(tmp_path / "lynx.key") == (public, None)
    assert (tmp_path / "lynx.key_secret").stat().st_mode & 0o777 == 0o600
    again = subprocess.run([BIN / "lynx", "keygen", "--name", tmp_path / "lynx"], capture_output=True, text=True,
                           timeout=30)
    assert again.returncode == 1 and "lynx.key_secret: is there already" in again.stderr
    assert zmq.auth.load_certificate(tmp_path / "lynx.key")[0] == public


class Peer:
    """A stranger's ZeroMQ socket, which tells what becomes of its handshake."""

    def __init__(self, endpoint, own=None, node=None):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if own is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = own
            self.socket.curve_serverkey = node
        self.monitor = self.socket.get_monitor_socket()
        self.socket.connect(f"tcp://{endpoint}")

    def handshake(self, timeout=30):
        """The event that ends it."""
        from zmq.utils.monitor import recv_monitor_message
        ends = {zmq.EVENT_HANDSHAKE_SUCCEEDED: "ok", zmq.EVENT_HANDSHAKE_FAILED_AUTH: "unauthorized",
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "protocol", zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "closed"}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.monitor.poll(100):
                event = recv_monitor_message(self.monitor)["event"]
                if event in ends:
                    return ends[event]
        raise AssertionError("no end of the handshake")

    def close(self):
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        self.context.term()


def test_strangers_with_pyzmq_are_refused_and_named(tmp_path):
    """Another implementation's sockets: only who has an allowed key and knows the node's gets through."""
    with keyed_cluster() as cluster:
        node = cluster.nodes["decode-0"]
        of_node = zmq.auth.load_certificate(cluster.keys.pair("nodes-0"))[0]
        of_router = zmq.auth.load_certificate(cluster.keys.pair("router-0"))
        stranger = zmq.curve_keypair()
        other = zmq.curve_keypair()[0]
        for own, server, end, result, word in (
                (of_router, of_node, "ok", "ok", None),
                (stranger, of_node, "unauthorized", "unauthorized", stranger[0].decode()),
                (of_router, other, "closed", "wrong_key", "another public key"),
                # Each end finds out by itself, or hears first that the other one has.
                (None, None, ("protocol", "closed"), ("mechanism", "closed"), "without CURVE")):
            before = handshakes(node, result)
            peer = Peer(node.control, own, server)
            try:
                assert peer.handshake() in end
            finally:
                peer.close()
            wait_for(lambda: handshakes(node, result) > before, 30, f"count of {result}")
            if word is not None:
                # The log is JSON: quotes and backslashes of a key are escaped there.
                line = word.replace("\\", "\\\\").replace('"', '\\"')
                wait_for(lambda: line in node.log_path.read_text(), 30, f"log line with {word}")
        assert complete(cluster).usage.completion_tokens > 0


@pytest.mark.parametrize("case", ["plain router", "plain node", "stranger", "wrong node key"])
def test_without_matching_keys_nothing_is_served_and_both_logs_say_why(case):
    with tempfile.TemporaryDirectory(prefix="lynx-test-") as folder:
        keys = Keys(folder)
        router_flags, node_flags = keys.flags("router"), keys.flags("nodes")
        # Of peers of which one speaks without CURVE, each finds out by itself or hears first that the other has.
        mismatch = ("mechanism", "closed")
        at_router, at_node, result = {
            "plain router": ("this router has no keys|it may ask for CURVE", "speaks? without CURVE", [mismatch] * 2),
            "plain node": ("speaks without CURVE", "this node has no keys|it may ask for CURVE", [mismatch] * 2),
            "stranger": ("does not know the public key", "not among those allowed", ["unauthorized"] * 2),
            "wrong node key": ("probably none of those allowed", "another public key", ["closed", "wrong_key"]),
        }[case]
        if case == "plain router":
            router_flags = []
        elif case == "plain node":
            node_flags = []
        else:
            end = "router" if case == "stranger" else "nodes"
            keys.use(end, "unheard-of")
        node = Process(pathlib.Path(folder), "decode-0", "lynx-decode", "--model", FOLDER, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--role", "both", *node_flags)
        router = None
        try:
            node.wait_announced()
            router = Process(pathlib.Path(folder), "router", "lynx-router", "--model", FOLDER, "--listen",
                             "127.0.0.1:0", "--decode", node.control, *router_flags).wait_announced()
            wait_for(lambda: handshakes(router, result[0]) > 1, 60, "failed handshakes at the router")
            wait_for(lambda: handshakes(node, result[1]) > 1, 60, "failed handshakes at the node")
            wait_for(lambda: re.search(at_router, router.log_path.read_text()), 30, "the router's reason")
            wait_for(lambda: re.search(at_node, node.log_path.read_text()), 30, "the node's reason")
            assert fetch(router.url("/readyz"))[0] == 503
            assert node.metric("lynx_control_messages_total", direction="recv") == 0
            assert router.metric("lynx_control_messages_total", direction="recv") == 0
            if case in ("stranger", "wrong node key"):
                # Mended by files alone.
                keys.allow(end, "unheard-of")
                wait_for(lambda: fetch(router.url("/readyz"))[0] == 200, 60, "ready router")
        finally:
            assert node.stop() == 0
            assert router is None or router.stop() == 0


@pytest.mark.parametrize("program", ["lynx-router", "lynx-decode"])
@pytest.mark.parametrize("fault,words", [
    ("mode", "own.key_secret: has mode 0644"), ("junk", "no certificate"), ("nobody", "has no *.key"),
    ("gone", "no such file"), ("half", "given together")])
def test_a_process_does_not_start_with_keys_it_cannot_trust(tmp_path, program, fault, words):
    keys = Keys(tmp_path)
    end = "router" if program == "lynx-router" else "nodes"
    secret = tmp_path / end / "own.key_secret"
    flags = keys.flags(end)
    if fault == "mode":
        secret.chmod(0o644)
    elif fault == "junk":
        secret.write_text("hunter2\n")
    elif fault == "nobody":
        for key in keys.known("nodes" if end == "router" else "router").iterdir():
            key.unlink()
    elif fault == "gone":
        secret.unlink()
    else:
        flags = flags[:2]
    own = ["--listen", "127.0.0.1:0", "--decode", "127.0.0.1:1"] if end == "router" else [
        "--control", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    done = subprocess.run([BIN / program, "--model", FOLDER, *own, *map(str, flags)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == (2 if fault == "half" else 1) and words in done.stderr, done.stderr
    assert "hunter2" not in done.stderr


class Tap(threading.Thread):
    """A TCP relay that keeps what passes."""

    def __init__(self, host, port):
        super().__init__(daemon=True)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.seen = bytearray()
        self.start()

    def run(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


@pytest.mark.parametrize("curve", [False, True])
def test_what_is_on_the_wire_can_be_read_without_keys_only(curve):
    with tempfile.TemporaryDirectory(prefix="lynx-test-") as folder:
        keys = Keys(folder)
        node = Process(pathlib.Path(folder), "decode-0", "lynx-decode", "--model", FOLDER, "--control", "127.0.0.1:0",
                       "--http", "127.0.0.1:0", "--threads", 1, "--role", "both",
                       *(keys.flags("nodes") if curve else ())).wait_announced()
        tap = Tap(*node.control.split(":"))
        router = Process(pathlib.Path(folder), "router", "lynx-router", "--model", FOLDER, "--listen", "127.0.0.1:0",
                         "--decode", tap.address, *(keys.flags("router") if curve else ())).wait_announced()
        try:
            wait_for(lambda: fetch(router.url("/readyz"))[0] == 200, 60, "ready router")
            client = openai.OpenAI(base_url=router.url("/v1"), api_key="none", max_retries=0, timeout=60)
            client.completions.create(model=MODEL, prompt="import os", max_tokens=4,
                                      extra_headers={"X-Request-Id": "needle-in-the-haystack"})
            assert len(tap.seen) > 1000
            assert (b"needle-in-the-haystack" in tap.seen) == (not curve)
            assert (b"lynx-tiny-moe" in tap.seen) == (not curve)
        finally:
            tap.close()
            assert router.stop() == 0
            assert node.stop() == 0


class Load:
    """Streams that follow one another until told to end; counts what came of them."""

    def __init__(self, cluster, streams=4):
        self.cluster = cluster
        self.stopping = False
        self.answers = []
        self.errors = []
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(streams)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stopping:
            try:
                parts = complete(self.cluster, max_tokens=60, stream=True, seed=1, temperature=0,
                                 extra_body={"ignore_eos": True})
                self.answers.append("".join(part.choices[0].text for part in parts if part.choices))
            except Exception as error:  # Whatever a client meets counts.
                self.errors.append(repr(error))

    def more(self, count):
        """Waits until so many further answers have come."""
        goal = len(self.answers) + count
        wait_for(lambda: len(self.answers) >= goal or self.errors, 120, f"{count} further answers")
        assert not self.errors

    def end(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(120)
        assert not self.errors, self.errors[:3]
        assert len(set(self.answers)) == 1, "the same request, seed and bits"


def test_keys_of_routers_and_nodes_change_under_load_and_no_client_notices():
    with keyed_cluster(prefill=2, decode=2) as cluster:
        keys = cluster.keys
        loads = {process.name: process.metric("lynx_control_key_loads_total", result="ok")
                 for process in cluster.processes()}

        def loaded(*processes):
            for process in processes:
                wait_for(lambda: process.metric("lynx_control_key_loads_total", result="ok") > loads[process.name], 30,
                         f"keys loaded anew by {process.name}")
                loads[process.name] = process.metric("lynx_control_key_loads_total", result="ok")

        load = Load(cluster)
        try:
            load.more(4)
            # The router's key, step by step as docs/operations/security.md has it.
            keys.allow("router", "router-1")
            loaded(*cluster.nodes.values())
            made = handshakes(cluster.router, "ok")
            keys.use("router", "router-1")
            loaded(cluster.router)
            wait_for(lambda: handshakes(cluster.router, "ok") >= made + 4, 30, "connections with the new key")
            load.more(4)
            keys.forbid("router", "router-0")
            loaded(*cluster.nodes.values())
            load.more(4)
            # The nodes'.
            keys.allow("nodes", "nodes-1")
            loaded(cluster.router)
            for name, node in cluster.nodes.items():
                made = handshakes(node, "ok")
                keys.use(name, "nodes-1")
                loaded(node)
                wait_for(lambda: handshakes(node, "ok") > made, 30, f"connection to {name} with its new key")
                wait_for(lambda: cluster.router.metric("lynx_router_nodes", state="ready") == 4, 60, "all nodes back")
                load.more(4)
            keys.forbid("nodes", "nodes-0")
            loaded(cluster.router)
            load.more(4)
        finally:
            load.end()
        for process in cluster.processes():
            assert process.metric("lynx_control_key_loads_total", result="failed") == 0
            assert process.metric("lynx_control_messages_dropped_total", reason="unauthorized") == 0
        # What was taken off the lists opens nothing any more.
        old = Peer(cluster.nodes["decode-0"].control, zmq.auth.load_certificate(keys.pair("router-0")),
                   zmq.auth.load_certificate(keys.pair("nodes-1"))[0])
        try:
            assert old.handshake() == "unauthorized"
        finally:
            old.close()


def test_a_bad_file_leaves_the_keys_before_in_force():
    with keyed_cluster() as cluster:
        node = cluster.nodes["decode-0"]
        broken = cluster.keys.known("router") / "broken.key"
        broken.write_text("curve\n")
        wait_for(lambda: node.metric("lynx_control_key_loads_total", result="failed") == 1, 30, "failed load")
        wait_for(lambda: "broken.key" in node.log_path.read_text(), 30, "the file in the log")
        assert complete(cluster).usage.completion_tokens > 0
        # Written in place, as cp does.
        loads = node.metric("lynx_control_key_loads_total", result="ok")
        cluster.keys.pair("another")
        broken.write_text((cluster.keys.made / "another.key").read_text())
        wait_for(lambda: node.metric("lynx_control_key_loads_total", result="ok") > loads, 30, "mended load")
        loads = cluster.router.metric("lynx_control_key_loads_total", result="ok")
        cluster.router.signal(signal.SIGHUP)
        wait_for(lambda: cluster.router.metric("lynx_control_key_loads_total", result="ok") > loads, 30, "SIGHUP")
        assert complete(cluster).usage.completion_tokens > 0


@pytest.mark.parametrize("curve,control,warns", [(False, "0.0.0.0:0", True), (False, "127.0.0.1:0", False),
                                                 (True, "0.0.0.0:0", False)])
def test_an_open_control_plane_is_warned_of(tmp_path, curve, control, warns):
    keys = Keys(tmp_path)
    node = Process(tmp_path, "decode-0", "lynx-decode", "--model", FOLDER, "--control", control, "--http",
                   "127.0.0.1:0", "--threads", 1, *(keys.flags("nodes") if curve else ()))
    try:
        node.wait_announced()
        assert ("the control plane is open" in node.log_path.read_text()) == warns
        assert node.metric("lynx_control_curve") == int(curve)
    finally:
        assert node.stop() == 0


def test_lynx_up_with_curve(tmp_path):
    announce = tmp_path / "announce"
    with open(tmp_path / "log", "wb") as log:
        up = subprocess.Popen([BIN / "lynx", "up", "--model", FOLDER, "--curve", "--port", "0", "--threads", "1",
                               "--announce", announce], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        def announced():
            assert up.poll() is None, (tmp_path / "log").read_text()
            return announce.exists()

        wait_for(announced, 60, "cluster")
        urls = dict(line.split("=", 1) for line in announce.read_text().split())
        for url in urls.values():
            metrics = parse_metrics(fetch(url + "/metrics")[1])
            assert metrics[("lynx_control_curve", frozenset())] == 1
        client = openai.OpenAI(base_url=urls["router"] + "/v1", api_key="none", max_retries=0, timeout=60)
        assert client.completions.create(model=MODEL, prompt="import os", max_tokens=4).usage.completion_tokens > 0
    finally:
        up.terminate()
        assert up.wait(60) == 0
    assert not re.search(r"secret-key", (tmp_path / "log").read_text())
