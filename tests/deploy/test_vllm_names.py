"""/metrics/vllm, as a real Prometheus reads it beside our own page."""
import json
import pathlib
import re
import tempfile
import time

import pytest

from cluster import MODEL, ROOT, fetch, running_cluster, wait_for
from prometheus import Prometheus

JOB = """
  - job_name: vllm
    metrics_path: /metrics/vllm
    file_sd_configs: [{files: [targets.json]}]
"""


def table():
    """{alias: what it is made of} of the page."""
    rows = re.findall(r"^\| `(vllm:\w+)` \| (.*) \|$", (ROOT / "docs/metrics.md").read_text(), re.M)
    assert len(rows) == len(dict(rows)) > 15
    return dict(rows)


def queries(source):
    """What stands for an alias in a query of ours: its family with the labels that the page names."""
    family, *rest = re.split(r", ", source, maxsplit=1)
    match = re.match(r"`(\w+)` ([\w, ]+)", rest[0]) if rest else None
    values = re.split(r", | or ", match.group(2).split(", which")[0]) if match else []
    selector = f'{{{match.group(1)}=~"{"|".join(values)}"}}' if match else ""
    return family.strip("`"), selector


@pytest.fixture(scope="module")
def watched():
    with running_cluster(node_flags=["--metrics-compat", "vllm"], router_flags=["--metrics-compat", "vllm"]) as cluster, \
            tempfile.TemporaryDirectory(prefix="lynx-prometheus-") as folder:
        for i in range(4):
            body = {"model": MODEL.name, "prompt": "The history of the city began with " * 3, "max_tokens": 8, "seed": i,
                    "stream": True}
            status, text = fetch(cluster.router.url("/v1/completions"), 60, json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
            assert status == 200, text
        cluster.wait_idle()
        prometheus = Prometheus(pathlib.Path(folder), cluster, JOB)
        try:
            prometheus.wait_scraped()
            names = {process.http for process in cluster.processes()}
            since = time.time()
            wait_for(lambda: names <= {labels["instance"] for labels, _ in
                                       prometheus.query(f'timestamp(up{{job="vllm"}} == 1) > {since}')},
                     30, "scrape of every page")
            yield cluster, prometheus
        finally:
            prometheus.stop()


def test_every_alias_of_the_table_counts_what_the_table_says(watched):
    _, prometheus = watched
    served = {labels["__name__"] for labels, _ in prometheus.query('{job="vllm",__name__=~"vllm:.*"}')}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in served}
    assert families == set(table())
    counted = 0
    for alias, source in table().items():
        if source.startswith("1, with"):
            continue
        family, selector = queries(source)
        suffixes = ["_count", "_sum", "_bucket"] if f"{alias}_count" in served else [""]
        for suffix in suffixes:
            # Prometheus knows both at the same moment: nothing runs.
            ours = prometheus.query(f"sum({family}{suffix}{selector})")
            theirs = prometheus.query(f"sum({alias}{suffix})")
            assert [value for _, value in ours] == pytest.approx([value for _, value in theirs]) and len(ours) == 1, alias
            counted += ours[0][1] > 0
    assert counted > 20


def test_labels_are_those_that_vllm_has(watched):
    cluster, prometheus = watched
    scrape = {"__name__", "instance", "job", "namespace", "component", "pod"}
    own = {"vllm:request_success_total": {"finished_reason"}, "vllm:cache_config_info": {"block_size", "num_gpu_blocks"}}
    for labels, _ in prometheus.query('{job="vllm",__name__=~"vllm:.*"}'):
        name = labels["__name__"]
        extra = {"le"} if name.endswith("_bucket") else own.get(name, set())
        assert set(labels) == scrape | {"model_name", "engine"} | extra, labels
        assert labels["engine"] == "0" and labels["model_name"] in (MODEL.name, "other")
    ended = dict((labels["finished_reason"], value) for labels, value in
                 prometheus.query("sum by (finished_reason) (vllm:request_success_total)"))
    assert set(ended) == {"stop", "length", "abort", "error"} and sum(ended.values()) == 4
    blocks = cluster.nodes["decode-0"].metric("lynx_kv_capacity_blocks")
    assert [labels["num_gpu_blocks"] for labels, _ in prometheus.query('vllm:cache_config_info{pod="decode-0"}')] == [
        str(int(blocks))]


def test_what_dashboards_ask_for_has_numbers(watched):
    _, prometheus = watched
    for expression in ("histogram_quantile(0.9, sum by (le) (vllm:time_to_first_token_seconds_bucket))",
                       "histogram_quantile(0.5, sum by (le) (vllm:inter_token_latency_seconds_bucket))",
                       "avg(vllm:kv_cache_usage_perc) + 1"):
        (_, value), = prometheus.query(expression)
        assert value > 0, expression
