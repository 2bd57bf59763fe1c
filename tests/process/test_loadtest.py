"""`lynx loadtest` against a real cluster."""
import json
import os
import signal
import subprocess
import time

from cluster import BIN, MODEL, ROOT, running_cluster, wait_for

TRACES = ROOT / "services/cli/loadtest/traces"


def loadtest(cluster, folder, *arguments, env=None):
    """(exit status, JSON report, standard output and error) of a load test."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    done = subprocess.run([BIN / "lynx", "loadtest", cluster.router.url(""), "--json", report, *map(str, arguments)],
                          capture_output=True, text=True, timeout=110, env={**os.environ, **(env or {})})
    return done.returncode, json.loads(report.read_text()) if report.exists() else None, done.stdout + done.stderr


def test_counts_what_the_cluster_counted(cluster, tmp_path):
    before = cluster.router.metric("lynx_router_output_tokens_total")
    records = tmp_path / "records.jsonl"
    status, report, text = loadtest(cluster, tmp_path, "--concurrency", 4, "--requests", 12, "--warmup", 2, "--seed", 1,
                                    "--input-tokens", "uniform:30,120", "--output-tokens", "uniform:4,16", "--slo", "ttft=60s", "--records", records)
    assert status == 0, text
    assert report["model"] == MODEL.name and report["options"]["concurrency"] == "4"
    run, = report["runs"]
    assert run["requests"]["outcomes"]["ok"] == 12 and run["requests"]["warmup"] == 2, run
    # The lengths are those asked for: answers exactly, prompts as near as words come to tokens.
    assert run["tokens"]["output_error"]["max"] == run["tokens"]["output_error"]["min"] == 0
    assert abs(run["tokens"]["prompt_error"]["mean"]) < 0.1
    assert run["slo"]["attainment"] == 1
    latency = run["latency_s"]
    assert 0 < latency["ttft"]["min"] <= latency["ttft"]["p50"] <= latency["ttft"]["p99"] <= latency["e2e"]["max"]
    # All that the router sent is accounted for: the answers, warm-up included, and six of one token each before.
    answered = [json.loads(line)["output_tokens"] for line in records.read_text().splitlines()]
    assert len(answered) == 14
    assert cluster.router.metric("lynx_router_output_tokens_total") - before == sum(answered) + 6


def test_both_endpoints_and_the_traces(cluster, tmp_path):
    for arguments in (["--endpoint", "completions", "--rate", 20, "--requests", 8, "--arrivals", "gamma", "--burstiness", 0.3],
                      ["--trace", TRACES / "mooncake.jsonl", "--speed", 10, "--requests", 8, "--length-scale", 0.2],
                      ["--trace", TRACES / "azure.csv", "--speed", 10, "--requests", 8, "--length-scale", 0.2],
                      ["--trace", TRACES / "burstgpt.csv", "--speed", 10, "--requests", 8, "--length-scale", 0.2]):
        status, report, text = loadtest(cluster, tmp_path, *arguments)
        assert status == 0 and report["runs"][0]["requests"]["outcomes"]["ok"] == 8, text


def test_errors_have_their_kinds(cluster, tmp_path):
    # Longer than the model's context: the small requests of the calibration pass, these do not.
    status, report, text = loadtest(cluster, tmp_path, "--rate", 50, "--requests", 3, "--input-tokens", 5000)
    assert status == 1, text
    requests = report["runs"][0]["requests"]
    assert requests["outcomes"]["http_status"] == 3 and requests["http_statuses"] == {"400": 3}
    assert "context" in requests["problems"][0]["message"]
    status, report, text = loadtest(cluster, tmp_path, "--rate", 1, "--model", "nobody")
    assert status == 1 and report is None and "nobody" in text


def test_a_run_in_which_nothing_was_due_says_so_and_proves_nothing(cluster, tmp_path):
    status, report, text = loadtest(cluster, tmp_path, "--ramp", "0.01:8", "--slo", "ttft=2s", "--duration", "1s", "--seed", 3)
    assert status == 1 and "no request was measured: none was due" in text, text
    assert report["ramp"]["lowest_failed_requests_s"] is None, report["ramp"]
    status, _, text = loadtest(cluster, tmp_path, "--rate", 20, "--duration", "1s", "--warmup", 10000)
    assert status == 1 and "--warmup" in text, text


def test_the_nodes_model_folder_is_not_the_models_name(cluster, tmp_path):
    status, report, text = loadtest(cluster, tmp_path, "--rate", 50, "--requests", 1, env={"LYNX_MODEL": str(MODEL)})
    assert status == 0 and report["model"] == MODEL.name, text


def test_refusals_and_a_bound_on_open_requests(tmp_path):
    with running_cluster(router_flags=("--max-inflight", "1", "--max-queued", "1")) as cluster:
        status, report, text = loadtest(cluster, tmp_path, "--rate", 1000, "--requests", 40, "--output-tokens", 64)
        assert status == 0, text
        requests = report["runs"][0]["requests"]
        assert requests["outcomes"]["refused_429"] > 10 and requests["outcomes"]["ok"] >= 2, requests
        assert report["runs"][0]["retry_after_s"]["count"] == requests["outcomes"]["refused_429"]
        # One at a time: nothing is refused, and the waiting shows in the times from due.
        status, report, text = loadtest(cluster, tmp_path, "--rate", 1000, "--requests", 10, "--max-open", 1)
        run, = report["runs"]
        assert run["requests"]["outcomes"]["ok"] == 10 and run["requests"]["held_back"] >= 8, text
        assert run["latency_s"]["ttft_from_due"]["max"] > run["latency_s"]["ttft"]["max"]


def test_an_interrupt_ends_with_a_report(cluster, tmp_path):
    report = tmp_path / "report.json"
    process = subprocess.Popen([BIN / "lynx", "loadtest", cluster.router.url(""), "--concurrency", "2", "--duration", "1h",
                                "--output-tokens", "8", "--json", report], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: cluster.router.metric("lynx_router_inflight_requests") > 0, 30, "request in flight")
    time.sleep(1)  # Lets some requests end; how many does not matter.
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "broken off" in out
    document = json.loads(report.read_text())
    assert document["broken_off"] and document["runs"][0]["requests"]["outcomes"]["ok"] > 0
