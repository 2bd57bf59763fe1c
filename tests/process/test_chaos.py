"""Nodes fail at random under a steady load; the verdict is in numbers."""
import collections
import functools
import http.client
import itertools
import json
import pathlib
import random
import signal
import threading
import time
import urllib.request

import pytest

import namespaces
from cluster import LONG, running_cluster, wait_for
from test_failover import body_of, essence

SECONDS = 1800 if LONG else 30
CLIENTS = 200 if LONG else 20
MEAN_GAP = 10 if LONG else 4
REQUESTS = 12


def ask(cluster, number):
    """What the answer says, as test_failover.essence() has it. Every fourth is streamed: to read those costs the test
    more than the nodes need to write them."""
    body = {**body_of(number), "max_tokens": 1200, "stream": number % 4 == 0}
    request = urllib.request.Request(cluster.router.url("/v1/completions"), json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        answer = response.read().decode()
    if body["stream"]:
        return essence([line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: ")])
    choice, = json.loads(answer)["choices"]
    return choice["text"], (choice["logprobs"] or {}).get("token_logprobs", []), [choice["finish_reason"]]


class Load:
    """Clients that ask one thing after the other and compare every answer with the undisturbed one."""

    def __init__(self, cluster, want):
        self.cluster, self.want = cluster, want
        self.counts = collections.Counter()
        self.first_fault = None
        self.over = threading.Event()
        self.numbers = itertools.count()
        self.threads = [threading.Thread(target=self.ask_on) for _ in range(CLIENTS)]

    def ask_on(self):
        while not self.over.is_set():
            i = next(self.numbers) % REQUESTS
            try:
                outcome = "right" if ask(self.cluster, i) == self.want[i] else "wrong"
                fault = (i, outcome)
            except (OSError, AssertionError, http.client.HTTPException) as error:  # Of essence(): no [DONE].
                outcome, fault = "errors", (i, str(error))
            self.counts[outcome] += 1
            if outcome != "right" and self.first_fault is None:
                self.first_fault = fault


def ready_nodes(cluster):
    return cluster.router.metric("lynx_router_nodes", state="ready")


def of_process(cluster, name, how):
    """Makes a node fail; what makes it well again."""
    node = cluster.nodes[name]
    if how == "freeze":
        node.signal(signal.SIGSTOP)
        return lambda: node.signal(signal.SIGCONT)
    if how == "kill":
        node.kill()
    else:
        assert node.stop() == 0
    return lambda: cluster.restart_node(name)


def disturb(cluster, faults, chance):
    """Inflicts `faults`, {name: function of node and name}, until the time is over; how many there were of each.
    The first is a kill: under answers that have begun, whatever chance says."""
    inflicted = collections.Counter()
    names = sorted(cluster.nodes)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.expovariate(1 / MEAN_GAP))
        # One of each role has to remain.
        wait_for(lambda: ready_nodes(cluster) == len(names), 30, "all nodes")
        how = chance.choice(sorted(faults)) if inflicted else "kill"
        mend = faults[how](chance.choice(names) if inflicted else "decode-0", how)
        time.sleep(chance.uniform(0, 4))  # Shorter and longer than the router's patience.
        mend()
        inflicted[how] += 1
    return inflicted


def cost_no_client_anything(cluster, faults):
    want = [ask(cluster, i) for i in range(REQUESTS)]
    load = Load(cluster, want)
    for thread in load.threads:
        thread.start()
    try:
        inflicted = disturb(cluster, faults, random.Random(1))
    finally:
        load.over.set()
        for thread in load.threads:
            thread.join(700)
    resumed = cluster.router.metric("lynx_router_failovers_total", result="resumed")
    print(f"{sum(inflicted.values())} faults ({dict(inflicted)}), {dict(load.counts)}, {resumed:.0f} answers resumed")
    assert set(load.counts) == {"right"}, (load.counts, load.first_fault)
    assert resumed > 0 and sum(inflicted.values()) > 1
    cluster.wait_idle()


FLAGS = {"router_flags": ("--max-retries", 100), "decode_flags": ("--drain-timeout", "1s")}


def test_nodes_that_fail_at_random_cost_no_client_anything():
    with running_cluster(prefill=2, decode=2, **FLAGS) as cluster:
        cost_no_client_anything(cluster, {how: functools.partial(of_process, cluster)
                                          for how in ("kill", "freeze", "terminate")})


@pytest.fixture
def hosts():
    with namespaces.made(namespaces.Hosts(4)) as four:
        yield four


# Jumps of the wall clock, whatever else goes by it.
FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def test_networks_and_clocks_that_fail_at_random_cost_no_client_anything(hosts, tmp_path):
    chance = random.Random(2)
    host_of = {"decode-0": 0, "decode-1": 1, "prefill-0": 2, "prefill-1": 3}

    def clock(name):
        return tmp_path / f"{name}.clock"

    def set_clock(name, offset_s):
        # Replaced whole: it is read at any time.
        new = tmp_path / "new.clock"
        new.write_text(f"{offset_s:+d}")
        new.rename(clock(name))

    def place(name):
        set_clock(name, 0)
        host = host_of[name]
        return hosts.address(host), hosts.within(host), {
            "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock(name)), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def of_network(name, how):
        host = host_of[name]
        if how == "cut":
            hosts.cut(host)
            return lambda: hosts.mend(host)
        if how == "loss":
            hosts.lose(host, chance.choice([1, 5, 20]))
            return lambda: hosts.keep(host)
        hosts.delay(host, chance.choice([5, 50]))
        return lambda: hosts.hurry(host)

    def of_clock(name, how):
        set_clock(name, chance.choice([-86400, -5, 5, 3600]))
        return lambda: None  # Whatever it shows, it is the time.

    with running_cluster(prefill=2, decode=2, places={name: place(name) for name in host_of}, **FLAGS) as cluster:
        faults = {"kill": functools.partial(of_process, cluster), "cut": of_network, "loss": of_network,
                  "clock": of_clock}
        try:
            of_network("decode-0", "delay")()
            faults["delay"] = of_network
        except OSError as error:
            print(f"no delays: {error}")  # Of a kernel without netem.
        cost_no_client_anything(cluster, faults)
