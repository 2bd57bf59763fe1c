"""How soon a node of two ranks is gone when one of them fails, and what each rank of a hand-off moves.

usage: rank_bench.py [--rounds N] [--only WORD] {gone,bytes}

Ranks are on hosts of their own: network namespaces of this machine, for which it takes root. Build build/release first.
"""
import argparse
import contextlib
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "process"))

from cluster import fetch, parse_metrics, wait_for  # noqa: E402
from test_rank_hosts import Asker, RankHosts, end  # noqa: E402
from test_ranks import NAME, stands_still  # noqa: E402


def ask(router, prompt, tokens):
    return Asker(router).post("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": tokens,
                                                  "temperature": 0, "ignore_eos": True})


def fail(hosts, kind, node):
    """Makes rank 1 fail; the moment at which it did."""
    if "a sum" in kind:
        node[1].signal(signal.SIGSTOP)
        wait_for(lambda: stands_still(node[0]), 10, "step that waits for rank 1")
    began = time.monotonic()
    if "cut off" in kind:
        hosts.cut(1)
        node[1].signal(signal.SIGCONT)
    else:
        node[1].signal(signal.SIGSTOP if kind.startswith("SIGSTOP") else signal.SIGKILL)
    return began


def gone(hosts, kind):
    """Seconds until the leader has ended, and until the router knows."""
    with tempfile.TemporaryDirectory() as folder:
        decode = hosts.ranks(folder, "decode", (0, 1))
        prefill = hosts.ranks(folder, "prefill", (2,))
        try:
            decode[0].wait_announced()
            prefill[0].wait_announced()
            with hosts.router(folder, prefill[0], decode[0]) as router:
                def busy():
                    with contextlib.suppress(OSError):
                        ask(router, [5] * 500, 1500)

                asker = threading.Thread(target=busy)
                if "idle" not in kind:
                    asker.start()
                    wait_for(lambda: decode[0].metric("lynx_node_running_requests") > 0, 30, "an answer that goes on")
                began = fail(hosts, kind, decode)
                assert decode[0].process.wait(60) == 1
                ended = time.monotonic() - began
                wait_for(lambda: router.metric("lynx_router_nodes", role="decode", state="gone") == 1, 30, "end of the node")
                known = time.monotonic() - began
            if asker.is_alive():
                asker.join(60)
            return ended, known
        finally:
            hosts.mend(1)
            end(*decode, *prefill)


def bench_gone(rounds, only):
    hosts = RankHosts(3)
    try:
        hosts.start()
        for kind in ("kill -9, idle", "kill -9, in a step", "kill -9, awaited in a sum", "SIGSTOP, idle", "SIGSTOP, in a step",
                     "cut off, idle", "cut off, in a step", "cut off, awaited in a sum"):
            if only not in kind:
                continue
            ended, known = zip(*(gone(hosts, kind) for _ in range(rounds)))
            print(f"| {kind} | {statistics.median(ended):.3f} | {max(ended):.3f} | {statistics.median(known):.1f} |", flush=True)
    finally:
        hosts.stop()


def bench_bytes():
    for widths in ((1, 1), (4, 2), (2, 4)):
        hosts = RankHosts(sum(widths))
        try:
            hosts.start()
            with tempfile.TemporaryDirectory() as folder:
                prefill = hosts.ranks(folder, "prefill", range(widths[0]))
                decode = hosts.ranks(folder, "decode", range(widths[0], sum(widths)))
                try:
                    prefill[0].wait_announced()
                    decode[0].wait_announced()
                    with hosts.router(folder, prefill[0], decode[0]) as router:
                        assert ask(router, list(range(1, 1025)), 2)[0] == 200
                    moved = [sum(value for (name, _), value in parse_metrics(fetch(hosts.pages(host))[1]).items()
                                 if name == "lynx_kv_transfer_bytes_total") for host in range(sum(widths))]
                    print(f"tp {widths[0]} to tp {widths[1]}: sent {[int(b) for b in moved[:widths[0]]]}, "
                          f"taken {[int(b) for b in moved[widths[0]:]]}", flush=True)
                finally:
                    end(*prefill, *decode)
        finally:
            hosts.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gone", "bytes"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="kinds of failure with this word")
    options = parser.parse_args()
    bench_gone(options.rounds, options.only) if options.what == "gone" else bench_bytes()
