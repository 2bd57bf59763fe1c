#!/usr/bin/env python3
"""Lynx and other engines on the same weights, cores and threads, in one run.

usage: compare.py --lynx BINARY --work FOLDER [--shape NAME] [--layers N] [--peer NAME=PYTHON ...]

A peer is transformers, llama or vllm with the Python of an environment that has it (README.md says
how to make one). Of each round, Lynx comes first and then the peer, both with read bandwidth
measured in between; what is compared is of the same round. The weights stay in memory twice.
"""
import argparse
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
                       "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, options.cores)),
                       "HF_HUB_OFFLINE": "1"}
        self.log = open(pathlib.Path(folder) / f"{name}.log", "w")
        self.process = subprocess.Popen(
            [python, HERE / f"peer_{name}.py", *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        self.about = self.read()["ready"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; see {self.log.name}")
        return json.loads(line)

    def ask(self, **task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        seconds = self.read()["seconds"]
        time.sleep(QUIET_SECONDS)
        return seconds

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def lynx(options, folder, mode, *more):
    command = [options.lynx, "bench", mode, "--json", f"--threads={options.threads}", *more]
    if mode != "memory":
        command += [f"--model={folder}", "--rounds=1"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True,
                                     cwd=HERE.parents[2]).stdout)


def bandwidth(options, folder):
    return lynx(options, folder, "memory", "--passes=5")["bandwidth_gb_s"]


def measure_round(options, folder, peer, rows):
    """Appends to rows[what]: (seconds of Lynx, of the peer, GB/s beside each, bytes of Lynx)."""
    decode = lynx(options, folder, "decode", f"--batch={','.join(map(str, options.batch))}",
                  f"--context={options.context}", f"--steps={options.steps}",
                  f"--policy=exact,{options.policy}")["results"]
    prefill = lynx(options, folder, "prefill", f"--batch={options.times}",
                   f"--context={','.join(map(str, options.prompts))}", "--chunk=512")["results"]
    for tokens in options.prompts:
        beside = bandwidth(options, folder)
        seconds = peer.ask(do="prefill", tokens=tokens, times=options.times)
        ours = next(r for r in prefill if r["context"] == tokens)
        rows.setdefault(("prefill", tokens), []).append(
            (ours["step_ms_p50"] / 1e3, None, statistics.median(seconds), ours["bandwidth_gb_s"],
             beside, ours["bytes_per_step"]))
        show("prefill", tokens, ours["step_ms_p50"] / 1e3, statistics.median(seconds),
             ours["bandwidth_gb_s"], beside)
    for batch in options.batch:
        beside = bandwidth(options, folder)
        seconds = peer.ask(do="decode", batch=batch, context=options.context, steps=options.steps)
        exact, remapped = (r for r in decode if r["batch"] == batch)
        rows.setdefault(("decode", batch), []).append(
            (exact["step_ms_p50"] / 1e3, remapped["step_ms_p50"] / 1e3, statistics.median(seconds),
             exact["bandwidth_gb_s"], beside, exact["bytes_per_step"]))
        show("decode", batch, exact["step_ms_p50"] / 1e3, statistics.median(seconds),
             exact["bandwidth_gb_s"], beside)


def show(what, size, ours, theirs, *gb):
    print(f"{what} {size}: Lynx {ours * 1e3:.1f} ms at {gb[0]:.1f} GB/s, peer {theirs * 1e3:.1f} ms at "
          f"{gb[1]:.1f} GB/s", file=sys.stderr)


def print_table(name, rows, options):
    print(f"\n{name}\n| | Lynx, exact: tokens/s | share | {options.policy}: tokens/s | peer: "
          "tokens/s | share | exact / peer | at equal bandwidth | remapped / peer |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for (what, size), rounds in rows.items():
        def median(value):
            return statistics.median(value(*round) for round in rounds)

        tokens = size  # Of a prompt; in decode, one of each sequence.
        share = median(lambda ours, _, theirs, gb, beside, count: count / ours / gb / 1e9)
        peer_share = median(lambda ours, _, theirs, gb, beside, count: count / theirs / beside / 1e9)
        ratio = median(lambda ours, _, theirs, *rest: theirs / ours)
        remapped = remapped_ratio = ""
        if what == "decode":
            seconds = median(lambda ours, remapped, *rest: remapped)
            remapped = f"{tokens / seconds:.1f}"
            remapped_ratio = f"{median(lambda o, r, theirs, *rest: theirs / r):.2f}"
        label = f"prefill, {size} tokens" if what == "prefill" else f"decode, B = {size}"
        print(f"| {label} | {tokens / median(lambda ours, *r: ours):.1f} | {share:.0%} | {remapped} "
              f"| {tokens / median(lambda o, m, theirs, *r: theirs):.1f} | {peer_share:.0%} "
              f"| {ratio:.2f} | {share / peer_share:.2f} | {remapped_ratio} |")


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
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--policy", default="lynx")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--times", type=int, default=2, help="prompts in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--experts", default="grouped_mm",
                        help="experts_implementation of transformers")
    options = parser.parse_args()
    os.sched_setaffinity(0, options.cores)
    options.threads = len(options.cores)

    folder = str(pathlib.Path(options.work, f"{options.shape}-{options.layers or 'all'}").resolve())
    if not pathlib.Path(folder, "config.json").exists():
        print(f"writing {folder}", file=sys.stderr)
        checkpoint.write_checkpoint(options.shape, options.layers, folder)
    print(f"{options.shape}, {options.layers or 'all'} layers, bf16, cores {options.cores}, context "
          f"{options.context} in decode")
    for name, python in (peer.split("=", 1) for peer in options.peer):
        if name == "llama" and not pathlib.Path(folder, "model.gguf").exists():
            code = f"import checkpoint; checkpoint.write_gguf({folder!r}, {folder + '/model.gguf'!r})"
            subprocess.run([python, "-c", code], check=True, cwd=HERE)
        peer, rows = Peer(name, python, options, folder), {}
        for _ in range(options.rounds):
            measure_round(options, folder, peer, rows)
        print_table(f"{name}: {peer.about}", rows, options)
        peer.close()
    print("\nshare: bytes that Lynx reads for exact plans on this checkpoint, over time and the read "
          "bandwidth measured beside; ratios are medians of the rounds.\n"
          "at equal bandwidth: the ratio of the shares.")


if __name__ == "__main__":
    main()
