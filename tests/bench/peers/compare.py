#!/usr/bin/env python3
"""Lynx and other engines on the same weights, cores and threads, in one run.

usage: compare.py --lynx BINARY --work FOLDER [--shape NAME] [--layers N] [--peer NAME=PYTHON ...]

A peer is transformers, llama or vllm with the Python of an environment that has it (README.md says
how to make one). In a round Lynx comes first and then every peer in turn, each with read bandwidth
measured between what is timed; what is compared is of the same round. One engine is in memory at a
time.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import checkpoint

HERE = pathlib.Path(__file__).parent
QUIET_SECONDS = 0.5  # Until a peer's threads, which spin for a while, are asleep.


@dataclasses.dataclass
class Sample:
    """One line of one round. Seconds of a prompt or of a step, and GB/s measured beside them."""
    exact: float
    remapped: float | None  # Decode alone.
    exact_gb_s: float
    bytes: float  # That Lynx reads for exact plans.
    peer: float = 0
    peer_gb_s: float = 0

    def ratio(self):
        return self.peer / self.exact

    def remapped_ratio(self):
        return self.peer / self.remapped

    def share(self):
        return self.bytes / self.exact / self.exact_gb_s / 1e9

    def peer_share(self):
        return self.bytes / self.peer / self.peer_gb_s / 1e9


def listed(numbers):
    return ",".join(map(str, numbers))


class PeerError(Exception):
    """A peer ended instead of answering."""


class Peer:
    def __init__(self, name, python, options, folder):
        self.name = name
        context = max(options.context, max(options.prompts)) + 96
        batch = str(max(options.batch))
        arguments = {
            "transformers": [folder, str(options.threads), options.experts],
            "llama": [f"{folder}/model.gguf", str(options.threads), batch, str(context)],
            "vllm": [folder, str(options.threads), batch, str(context)],
        }[name]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads),
                       "VLLM_CPU_OMP_THREADS_BIND": listed(options.cores),
                       "HF_HUB_OFFLINE": "1"}
        self.log = open(pathlib.Path(folder) / f"{name}.log", "w")
        self.process = subprocess.Popen(
            [python, HERE / f"peer_{name}.py", *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        self.about = self.read()["ready"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"ended; see {self.log.name}")
        return json.loads(line)

    def ask(self, **task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        seconds = self.read()["seconds"]
        time.sleep(QUIET_SECONDS)
        return statistics.median(seconds)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


@contextlib.contextmanager
def timed(options):
    """Around what is timed: the commands of --before and --after."""
    if options.before:
        subprocess.run(options.before, shell=True, check=True)
    try:
        yield
    finally:
        if options.after:
            subprocess.run(options.after, shell=True, check=True)


def lynx(options, mode, *more):
    command = [options.lynx, "bench", mode, "--json", f"--threads={options.threads}", *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                     cwd=HERE.parents[2]).stdout)


def bandwidth(options):
    return lynx(options, "memory", "--passes=5")["bandwidth_gb_s"]


def measure_lynx(options, folder):
    """{(mode, size): Sample} without the peer's part."""
    samples = {}
    with timed(options):
        report = lynx(options, "prefill", f"--model={folder}", "--rounds=1", "--chunk=512",
                      f"--batch={options.times}", f"--context={listed(options.prompts)}")
        for result in report["results"]:
            samples["prefill", result["context"]] = Sample(
                result["step_ms_p50"] / 1e3, None, result["bandwidth_gb_s"],
                result["bytes_per_step"])
        report = lynx(options, "decode", f"--model={folder}", "--rounds=1",
                      f"--batch={listed(options.batch)}", f"--context={options.context}",
                      f"--steps={options.steps}", f"--policy=exact,{options.policy}")
        for exact, remapped in zip(report["results"][::2], report["results"][1::2]):
            samples["decode", exact["batch"]] = Sample(
                exact["step_ms_p50"] / 1e3, remapped["step_ms_p50"] / 1e3, exact["bandwidth_gb_s"],
                exact["bytes_per_step"])
    return samples


def measure_peer(options, peer, samples):
    """The same samples with the peer's part."""
    measured = {}
    with timed(options):
        for (mode, size), sample in samples.items():
            gb_s = bandwidth(options)
            if mode == "prefill":
                seconds = peer.ask(do=mode, tokens=size, times=options.times)
            else:
                seconds = peer.ask(do=mode, batch=size, context=options.context,
                                   steps=options.steps)
            measured[mode, size] = dataclasses.replace(sample, peer=seconds, peer_gb_s=gb_s)
            print(f"{mode} {size}: Lynx {sample.exact * 1e3:.1f} ms at {sample.exact_gb_s:.1f} "
                  f"GB/s, {peer.name} {seconds * 1e3:.1f} ms at {gb_s:.1f} GB/s", file=sys.stderr)
    return measured


def median(rounds, value):
    return statistics.median(value(samples) for samples in rounds)


def label(mode, size):
    return f"prefill, {size} tokens" if mode == "prefill" else f"decode, B = {size}"


def print_table(about, rounds, options):
    print(f"\n{about}\n\n| | Lynx, exact: tokens/s | share | {options.policy}: tokens/s | peer: "
          "tokens/s | share | exact / peer | at equal bandwidth | remapped / peer |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for mode, size in rounds[0]:
        def middle(value):
            return median(rounds, lambda samples: value(samples[mode, size]))

        remapped = remapped_ratio = ""
        if mode == "decode":
            remapped = f"{middle(lambda s: size / s.remapped):.1f}"
            remapped_ratio = f"{middle(Sample.remapped_ratio):.2f}"
        print(f"| {label(mode, size)} | {middle(lambda s: size / s.exact):.1f} "
              f"| {middle(Sample.share):.0%} | {remapped} | {middle(lambda s: size / s.peer):.1f} "
              f"| {middle(Sample.peer_share):.0%} | {middle(Sample.ratio):.2f} "
              f"| {middle(lambda s: s.share() / s.peer_share()):.2f} | {remapped_ratio} |")


def print_best(measured):
    """measured: {name: rounds}."""
    print("\n| | best peer | exact / best | at equal bandwidth | remapped / best |\n"
          "|---|---|---|---|---|")
    for line in next(iter(measured.values()))[0]:
        def middle(name, value):
            return median(measured[name], lambda samples: value(samples[line]))

        best = min(measured, key=lambda name: middle(name, Sample.ratio))
        remapped = f"{middle(best, Sample.remapped_ratio):.2f}" if line[0] == "decode" else ""
        print(f"| {label(*line)} | {best} | {middle(best, Sample.ratio):.2f} "
              f"| {middle(best, lambda s: s.share() / s.peer_share()):.2f} | {remapped} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lynx", required=True, type=os.path.abspath, help="the lynx binary")
    parser.add_argument("--work", required=True, help="where the weights go; kept for the next run")
    parser.add_argument("--shape", default="olmoe-1b-7b", choices=sorted(checkpoint.SHAPES))
    parser.add_argument("--layers", type=int, default=8, help="of the shape; 0: all")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--cores", type=lambda t: [int(c) for c in t.split(",")],
                        default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=lambda t: [int(b) for b in t.split(",")],
                        default=[1, 4, 8, 16, 32])
    parser.add_argument("--prompts", type=lambda t: [int(b) for b in t.split(",")],
                        default=[64, 512])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--policy", default="lynx")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--times", type=int, default=2, help="prompts in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, help="begin no round after so many")
    parser.add_argument("--experts", default="grouped_mm",
                        help="experts_implementation of transformers")
    parser.add_argument("--before", metavar="COMMAND",
                        help="run by the shell before each timed part: to make a machine quiet")
    parser.add_argument("--after", metavar="COMMAND", help="run after each timed part")
    options = parser.parse_args()
    os.sched_setaffinity(0, options.cores)
    options.threads = len(options.cores)

    folder = str(pathlib.Path(options.work, f"{options.shape}-{options.layers or 'all'}").resolve())
    if not pathlib.Path(folder, "config.json").exists():
        print(f"writing {folder}", file=sys.stderr)
        checkpoint.write_checkpoint(options.shape, options.layers, folder)
    print(f"{options.shape}, {options.layers or 'all'} layers, bf16, cores {options.cores}, "
          f"context {options.context} in decode", flush=True)
    peers = dict(peer.split("=", 1) for peer in options.peer)
    if "llama" in peers and not pathlib.Path(folder, "model.gguf").exists():
        code = f"import checkpoint; checkpoint.write_gguf({folder!r}, {folder + '/model.gguf'!r})"
        subprocess.run([peers["llama"], "-c", code], check=True, cwd=HERE)
    measured, about = {}, {}
    start = time.monotonic()
    for _ in range(options.rounds):
        if options.minutes and time.monotonic() - start > 60 * options.minutes:
            break
        samples = measure_lynx(options, folder)
        for name, python in list(peers.items()):
            try:
                peer = Peer(name, python, options, folder)
                about[name] = peer.about
                measured.setdefault(name, []).append(measure_peer(options, peer, samples))
                peer.close()
            except (PeerError, BrokenPipeError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                del peers[name]
    for name, rounds in measured.items():
        print_table(f"{name}: {about[name]}", rounds, options)
    if measured:
        print_best(measured)
    print("\nshare: bytes that Lynx reads for exact plans on this checkpoint, over time and the "
          "read bandwidth measured beside; ratios are medians of the rounds.\n"
          "at equal bandwidth: the ratio of the shares.")


if __name__ == "__main__":
    main()
