"""Nodes fail at random under a steady load; the verdict is in numbers."""
import collections
import http.client
import itertools
import json
import random
import signal
import threading
import time
import urllib.request

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


def fail_and_return(cluster, name, how, chance):
    node = cluster.nodes[name]
    if how == "kill":
        node.kill()
    elif how == "terminate":
        assert node.stop() == 0
    else:
        node.signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0, 4))  # Shorter and longer than the router's patience.
    if how == "freeze":
        node.signal(signal.SIGCONT)
    else:
        cluster.restart_node(name)


def test_nodes_that_fail_at_random_cost_no_client_anything():
    chance = random.Random(1)
    with running_cluster(prefill=2, decode=2, router_flags=("--max-retries", 100),
                         decode_flags=("--drain-timeout", "1s")) as cluster:
        want = [ask(cluster, i) for i in range(REQUESTS)]
        load = Load(cluster, want)
        for thread in load.threads:
            thread.start()
        failures = collections.Counter()
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                time.sleep(chance.expovariate(1 / MEAN_GAP))
                # One of each role has to remain.
                wait_for(lambda: ready_nodes(cluster) == 4, 30, "all nodes")
                # The first in any case under answers that have begun.
                names = sorted(cluster.nodes) if failures else ["decode-0"]
                how = chance.choice(["kill", "freeze", "terminate"]) if failures else "kill"
                fail_and_return(cluster, chance.choice(names), how, chance)
                failures[how] += 1
        finally:
            load.over.set()
            for thread in load.threads:
                thread.join(700)
        resumed = cluster.router.metric("lynx_router_failovers_total", result="resumed")
        print(f"{sum(failures.values())} failures ({dict(failures)}), {dict(load.counts)}, {resumed:.0f} answers resumed")
        assert set(load.counts) == {"right"}, (load.counts, load.first_fault)
        assert resumed > 0 and sum(failures.values()) > 1
        cluster.wait_idle()
