"""The shipped dashboard and rules against a real Prometheus that scrapes a real cluster."""
import json
import math
import pathlib
import re
import signal
import tempfile
import threading
import time
import urllib.request

import pytest

import queries
from cluster import MODEL, Process, running_cluster, wait_for
from prometheus import Prometheus

# Panels without data on a healthy cluster under load.
EXPECTED_EMPTY = {"GPU utilisation (DCGM)"}


class Load:
    """Answers of several kinds, several at a time, until left; ends with the test's deadline at the latest."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.until = time.monotonic() + 90
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(4)]
        self.failures = []

    def ask(self, i):
        url = "/v1/completions"
        while not self.stop.is_set() and time.monotonic() < self.until:
            body = {"model": MODEL.name, "prompt": f"The {i}th history of the city began with", "max_tokens": 24,
                    "ignore_eos": True, "stream": i % 2 == 0, "seed": i}
            try:
                if i == 3:
                    self.leave(url, body)
                elif body["stream"]:
                    self.stream(url, body)
                else:
                    status, answer = self.cluster.post(url, body)
                    assert status == 200, answer
            except Exception as error:  # Told by the test's own thread.
                self.failures.append(error)
                return

    def open(self, url, body):
        request = urllib.request.Request(self.cluster.router.url(url), data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def stream(self, url, body):
        with self.open(url, body) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")

    def leave(self, url, body):
        with self.open(url, {**body, "stream": True, "max_tokens": 1000}) as response:
            response.readline()

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures


@pytest.fixture(scope="module")
def watched():
    """(cluster, Prometheus)"""
    with running_cluster(router_flags=["--slo-ttft", "5s", "--slo-tpot", "1s"],
                         decode_flags=["--lynx-policy", "lynx", "--lynx-guard-share", "0.5"]) as cluster:
        with tempfile.TemporaryDirectory(prefix="lynx-prometheus-") as folder:
            prometheus = Prometheus(pathlib.Path(folder), cluster)
            try:
                yield cluster, prometheus
            finally:
                prometheus.stop()


def check_panels(prometheus, wanted):
    """The titles of panels with an empty query, if `wanted(query)`; fails on NaN and on unknown labels in legends."""
    empty = set()
    for title, legend, query in queries.panel_queries():
        result = prometheus.query(query)
        assert not any(math.isnan(value) or math.isinf(value) for _, value in result), (title, query, result)
        for label in re.findall(r"{{(\w+)}}", legend):
            assert not result or any(label in labels for labels, _ in result) or label == "model_name", (title, label, result)
        if not result and wanted(query):
            empty.add(title)
    return empty


def may_be_empty_when_idle(query):
    """A share or a quantile of nothing, and what busy nodes do."""
    return re.search(r"\) / |histogram_quantile| and on ", query) is not None


def test_every_series_that_rules_and_panels_ask_for_is_there_from_the_start(watched):
    _, prometheus = watched
    prometheus.wait_scraped()
    asked = {query for _, _, query in queries.panel_queries()} | {rule["expr"] for rule in queries.all_rules()}
    missing = [selector for selector in sorted({s for query in asked for s in queries.selectors(query)})
               if not prometheus.ask("series", **{"match[]": selector})]
    assert not missing
    recorded = {rule["record"] for rule in queries.all_rules() if "record" in rule}
    used = set(re.findall(r"lynx:[\w:]+", " ".join(asked)))
    assert used <= recorded, used - recorded


def test_targets_labels_hide_none_of_ours(watched):
    _, prometheus = watched
    labels = set(prometheus.ask("labels"))
    assert not {label for label in labels if label.startswith("exported_")}


def test_an_idle_cluster_shows_zeros_and_no_nan(watched):
    _, prometheus = watched
    prometheus.wait_scraped()
    assert check_panels(prometheus, lambda query: not may_be_empty_when_idle(query)) <= EXPECTED_EMPTY | {
        "Error budget left at the rate of 3 days", "Burn rate, 1 h"}
    assert prometheus.query('ALERTS{alertname=~"Lynx.*",alertstate="firing"}') == []


def test_an_alert_fires_for_a_role_that_is_gone_and_ends_when_it_is_back(watched):
    cluster, prometheus = watched

    def firing():
        return [labels["role"] for labels, _ in
                prometheus.query('ALERTS{alertname="LynxNoReadyNodes",alertstate="firing"}')]

    cluster.nodes["decode-0"].kill()
    wait_for(lambda: firing() == ["decode"], 40, "alert for decode nodes")
    cluster.restart_node("decode-0")
    prometheus.write_targets()
    cluster.wait_ready()
    wait_for(lambda: not firing(), 40, "end of the alert")


def test_alerts_fire_for_a_decode_node_that_stands_still_and_end_when_it_goes_on(watched):
    cluster, prometheus = watched

    def firing():
        return {(labels["alertname"], labels.get("pod")) for labels, _ in
                prometheus.query('ALERTS{alertname=~"LynxNoReadyNodes|LynxTargetDown",alertstate="firing"}')}

    cluster.nodes["decode-0"].signal(signal.SIGSTOP)
    try:
        wait_for(lambda: firing() == {("LynxNoReadyNodes", None), ("LynxTargetDown", "decode-0")}, 40,
                 "alerts for a node that stands still")
    finally:
        cluster.nodes["decode-0"].signal(signal.SIGCONT)
    cluster.wait_ready()
    wait_for(lambda: not firing(), 40, "end of the alerts")


def wait_all_panels(prometheus):
    seen = set()

    def all_have_data():
        nonlocal seen
        seen = check_panels(prometheus, lambda query: True)
        return seen <= EXPECTED_EMPTY

    try:
        wait_for(all_have_data, 60, "data in all panels")
    except AssertionError:
        raise AssertionError(f"panels without data: {sorted(seen - EXPECTED_EMPTY)}")


def test_every_panel_has_data_under_load_and_after_each_role_restarts(watched):
    cluster, prometheus = watched
    with Load(cluster):
        wait_all_panels(prometheus)
    for name in ("prefill-0", "decode-0"):
        cluster.nodes[name].kill()
        cluster.restart_node(name)
    flags = cluster.router.arguments[1:-2]
    assert cluster.router.stop() == 0
    cluster.router = Process(cluster.folder, "router", "lynx-router", *flags).wait_announced()
    cluster.wait_ready()
    prometheus.write_targets()
    prometheus.wait_scraped()
    check_panels(prometheus, lambda query: False)
    with Load(cluster):
        wait_all_panels(prometheus)
    healthy = prometheus.query('lynx:slo_error:ratio_rate5m{slo="availability",model_name!="other"}')
    assert [value for _, value in healthy] == [0]
    unhealthy = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
    assert not unhealthy
