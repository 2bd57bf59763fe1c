"""Several routers over the same nodes, under bursts: nothing fails, nothing leaks, and all counts agree."""
import json
import subprocess

from cluster import BIN, LONG, Process, fetch, running_cluster, wait_for

SECONDS = 300 if LONG else 8
RATE = 5  # Requests a second and router.


def total(processes, name, **labels):
    return sum(process.metric(name, **labels) for process in processes)


def start_loadtest(router, folder, seed):
    report, records = folder / f"{seed}.json", folder / f"{seed}.jsonl"
    process = subprocess.Popen(
        [BIN / "lynx", "loadtest", router.url(""), "--rate", str(RATE), "--arrivals", "gamma", "--burstiness", "0.25",
         "--duration", f"{SECONDS}s", "--input-tokens", "lognormal:100,0.8", "--output-tokens", "exponential:24",
         "--prefix-tokens", "48", "--prefix-groups", "6", "--seed", str(seed), "--json", report, "--records", records],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, report, records


def test_bursts_through_two_routers(tmp_path):
    with running_cluster(prefill=2, decode=3) as cluster:
        other = Process(
            tmp_path, "router-1", "lynx-router", "--model", cluster.model, "--listen", "127.0.0.1:0",
            "--prefill", ",".join(n.control for n in cluster.of_role("prefill")),
            "--decode", ",".join(n.control for n in cluster.of_role("decode")), "--heartbeat-interval", "200ms")
        try:
            other.wait_announced()
            wait_for(lambda: fetch(other.url("/readyz"))[0] == 200, 60, "second router ready")
            routers, nodes = [cluster.router, other], list(cluster.nodes.values())

            asked = got = 0
            for process, report, records in [start_loadtest(r, tmp_path, i + 1) for i, r in enumerate(routers)]:
                text, _ = process.communicate(timeout=SECONDS + 120)
                assert process.returncode == 0, text
                run, = json.loads(report.read_text())["runs"]
                outcomes = run["requests"]["outcomes"]
                assert outcomes["ok"] == sum(outcomes.values()) > SECONDS, (outcomes, run["requests"]["problems"])
                assert run["tokens"]["output_error"]["max"] == run["tokens"]["output_error"]["min"] == 0
                answers = [json.loads(line) for line in records.read_text().splitlines()]
                # Six small requests come before the run, of one token each.
                asked += len(answers) + 6
                got += sum(answer["output_tokens"] for answer in answers) + 6
            cluster.wait_idle()

            assert total(routers, "lynx_router_requests_total", outcome="ok") == asked
            assert total(routers, "lynx_router_requests_total") == asked
            assert total(routers, "lynx_router_output_tokens_total") == got
            for gauge in ("lynx_router_inflight_requests", "lynx_router_inflight_sequences", "lynx_router_queued_requests"):
                assert total(routers, gauge) == 0, gauge
            # Nodes look at their transfers once a second.
            for gauge in ("lynx_node_running_requests", "lynx_node_waiting_requests", "lynx_kv_transfer_pending",
                          "lynx_kv_transfer_pending_bytes", "lynx_kv_transfer_quarantined_bytes"):
                wait_for(lambda: total(nodes, gauge) == 0, 10, f"{gauge} of 0")
            assert total(nodes, "lynx_kv_blocks") == total(nodes, "lynx_kv_blocks", state="free")
            # Both ends of every hand-off tell the same, and each node has had some of the work.
            senders, receivers = cluster.of_role("prefill"), cluster.of_role("decode")
            sent = total(senders, "lynx_kv_transfers_total", result="ok")
            assert sent == total(receivers, "lynx_kv_transfers_total", result="ok") > 0
            assert total(senders, "lynx_kv_transfer_size_bytes_sum") == total(receivers, "lynx_kv_transfer_size_bytes_sum")
            for node in nodes:
                assert node.metric("lynx_node_output_tokens_total") > 0, node.name
            # A prompt that is begun anew, or a sequence that is preempted, has its tokens sampled again.
            anew = total(routers, "lynx_router_retries_total") + total(nodes, "lynx_node_preemptions_total")
            sampled = total(nodes, "lynx_node_output_tokens_total")
            assert sampled == got if anew == 0 else sampled >= got
        finally:
            assert other.stop() == 0
