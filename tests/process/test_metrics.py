"""What Prometheus sees of every process."""
import re
import subprocess

from cluster import fetch

MODEL = "lynx-tiny-moe"


def pages(cluster):
    for process in cluster.processes():
        status, text = fetch(process.url("/metrics"))
        assert status == 200
        yield process, text


def test_every_page_passes_promtool(cluster, client):
    client.completions.create(model=MODEL, prompt="a", max_tokens=2)
    for process, text in pages(cluster):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, (process.name, checked.stdout, checked.stderr)


def test_health_pages_answer(cluster):
    for process in cluster.processes():
        for page in ("/livez", "/readyz", "/startupz"):
            assert fetch(process.url(page))[0] == 200, (process.name, page)


def test_vllms_names_are_there_only_when_asked_for(cluster):
    for process in cluster.processes():
        assert fetch(process.url("/metrics/vllm"))[0] == 404, process.name


def test_client_text_never_becomes_a_label(cluster):  # MET-6, SEC-9
    for name in ('a"b', "a\\b", "a\nb", "x" * 10_000, "", "secret-tenant"):
        cluster.post("/v1/completions", {"model": name, "prompt": "secret-prompt", "user": "secret-user"})
    series = set()
    for _ in range(2):
        for i in range(50):
            cluster.post("/v1/completions", {"model": f"typo-{i}", "prompt": "a"})
            fetch(cluster.router.url(f"/path-{i}"))
        text = fetch(cluster.router.url("/metrics"))[1]
        assert "secret" not in text and "typo" not in text and "path-" not in text
        series.add(len(text.splitlines()))
    assert len(series) == 1, "unknown names must not make new series"


def test_the_four_name_spaces_are_there(cluster):
    router = fetch(cluster.router.url("/metrics"))[1]
    assert re.search(r"^lynx_router_requests_total\{", router, re.M)
    for node in cluster.nodes.values():
        text = fetch(node.url("/metrics"))[1]
        for family in ("lynx_node_state", "lynx_kv_blocks", "lynx_kv_transfer_bytes_total", "lynx_control_messages_total"):
            assert f"\n{family}{{" in text, (node.name, family)
