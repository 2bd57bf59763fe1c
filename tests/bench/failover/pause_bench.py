"""How long streams pause whose decode node fails under them, and whether any of them notices more than that.

usage: pause_bench.py [--rounds N] [--streams N] [--tokens N] [--only WORD] [-- ROUTER-FLAGS]

Two prefill and two decode nodes on this machine. Each round, one decode node fails in the middle of all streams.
Build build/release first.
"""
import argparse
import pathlib
import re
import json
import signal
import socket
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "process"))

from cluster import running_cluster, wait_for  # noqa: E402
from test_failover import body_of, essence  # noqa: E402

KINDS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "cut": signal.SIGTERM, "moved": signal.SIGTERM}


class Stream(threading.Thread):
    def __init__(self, cluster, number, tokens):
        super().__init__()
        self.address, self.body = cluster.router.http.rsplit(":", 1), {**body_of(number), "max_tokens": tokens}
        self.events, self.times, self.broken = [], [], None

    def run(self):
        body = json.dumps(self.body).encode()
        received = b""
        try:
            with socket.create_connection((self.address[0], int(self.address[1])), timeout=120) as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                   b"Content-Length: %d\r\n\r\n" % len(body) + body)
                while b"0\r\n\r\n" not in received[-7:]:
                    piece = connection.recv(65536)
                    if not piece:
                        raise OSError("closed")
                    received += piece
                    found = re.findall(rb"data: (.*)\n", received)
                    if len(found) > len(self.events):
                        self.times.append(time.monotonic())
                        self.events += [event.decode() for event in found[len(self.events):]]
        except OSError as error:
            self.broken = error

    def pause(self):
        return max(b - a for a, b in zip(self.times, self.times[1:]))


def serve(cluster, options, strike=lambda threads: None):
    threads = [Stream(cluster, i, options.tokens) for i in range(options.streams)]
    for thread in threads:
        thread.start()
    strike(threads)
    for thread in threads:
        thread.join()
    return threads


def rank_of(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def show(label, pauses):
    print(f"{label:12} {len(pauses):6} {statistics.median(pauses):8.3f} {rank_of(pauses, .99):8.3f} {max(pauses):8.3f}",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--only", default="")
    parser.add_argument("router_flags", nargs="*")
    options = parser.parse_args()
    print("longest pause of a stream, seconds\n              streams   median      p99      max", flush=True)
    measure(options, {kind: KINDS[kind] for kind in ("kill", "freeze", "cut")}, ("--drain-timeout", "0s"),
            "lynx_router_failovers_total", "resumed")
    measure(options, {"moved": KINDS["moved"]}, (), "lynx_router_moves_total", "moved")


def measure(options, kinds, decode_flags, counter, result):
    kinds = {kind: number for kind, number in kinds.items() if options.only in kind}
    if not kinds:
        return
    with running_cluster(prefill=2, decode=2, decode_flags=decode_flags, router_flags=options.router_flags) as cluster:
        undisturbed = serve(cluster, options)
        want = [essence(stream.events) for stream in undisturbed]
        show("undisturbed", [stream.pause() for stream in undisturbed])
        for kind, number in kinds.items():
            pauses, wrong = [], 0
            before = cluster.router.metric(counter, result=result)
            for round_ in range(options.rounds):
                name = f"decode-{round_ % 2}"
                victim = cluster.nodes[name]

                def strike(threads):
                    wait_for(lambda: all(len(t.events) > 10 for t in threads), 60, "streams under way")
                    victim.signal(number)

                streams = serve(cluster, options, strike)
                wrong += sum(s.broken is not None or essence(s.events) != w for s, w in zip(streams, want))
                pauses += [stream.pause() for stream in streams]
                if kind == "freeze":
                    victim.signal(signal.SIGCONT)
                else:
                    victim.process.wait()
                    cluster.restart_node(name)
                wait_for(lambda: cluster.router.metric("lynx_router_nodes", state="ready") == 4, 30, "all nodes")
            went_on = int(cluster.router.metric(counter, result=result) - before)
            # Those of the other decode node paused little.
            show(kind, sorted(pauses)[-went_on:] if went_on else pauses)
            print(f"{'':12} {went_on} of {len(pauses)} {result}, {wrong} wrong or broken", flush=True)


if __name__ == "__main__":
    main()
