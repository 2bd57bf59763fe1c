"""Requests a second that a cluster serves within a limit on the P99 of the time per output token, exact and lynx.

See README.md.
"""
import argparse
import contextlib
import json
import math
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@contextlib.contextmanager
def cluster(options, folder):
    """A running `lynx up`: its URL. Remapping is what requests ask for, so that one cluster serves both."""
    announce = folder / "announce"
    with open(folder / "cluster.log", "wb") as log:
        process = subprocess.Popen(
            [options.bin / "lynx", "up", "--model", options.model, "--port", "0", "--announce", announce,
             "--threads", str(options.threads), "--lynx-allow", "lynx", *options.up], stdout=log, stderr=log)
    try:
        while not announce.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "cluster.log").read_text()[-3000:])
            time.sleep(0.1)
        addresses = dict(line.split("=", 1) for line in announce.read_text().split())
        yield addresses["router"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def write_prompts(url, options, path):
    """Held-out texts cut to --prompt-tokens, their domains in turn; all of them go to the cluster once.

    A prefill then finds all but a prompt's last block in its cache. It reads what its few tokens need and leaves
    the memory to decode, as if it ran on a machine of its own.
    """
    domains = [[json.loads(line)["text"] for line in file.read_text().splitlines()][:options.texts]
               for file in sorted(options.texts_dir.glob("text-*.jsonl"))]
    prompts = []
    for texts in zip(*domains):
        for text in texts:
            tokens = post(f"{url}/tokenize", {"prompt": text})["tokens"][:options.prompt_tokens]
            prompts.append(post(f"{url}/detokenize", {"tokens": tokens})["prompt"])
    path.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": options.output_tokens}) + "\n"
                            for prompt in prompts))
    for prompt in prompts:
        post(f"{url}/v1/completions", {"model": options.model.resolve().name, "prompt": prompt, "max_tokens": 1})


def run(url, options, folder, policy, rate, seed):
    """Times per token of the run's requests, one each, in seconds; infinite for one that failed."""
    records = folder / "records.jsonl"
    seconds = options.warmup + max(options.seconds, options.least / rate)
    done = subprocess.run(
        [options.bin / "lynx", "loadtest", url, "--endpoint", "completions", "--prompts", folder / "prompts.jsonl",
         "--rate", f"{rate:.4f}", "--duration", f"{seconds:.1f}s", "--warmup", str(int(rate * options.warmup)),
         "--seed", str(seed), "--temperature", "1", "--records", records,
         "--extra-body", json.dumps({"lynx": {"policy": policy}})], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    times = []
    for line in records.read_text().splitlines():
        record = json.loads(line)
        if record["outcome"] != "ok":
            times.append(math.inf)
        elif not record["warmup"]:
            times.append((record["last_token_s"] - record["first_token_s"]) / (record["output_tokens"] - 1))
    if not times:
        raise SystemExit(f"{policy} at {rate:.2f}/s: no request came after --warmup; give it more time")
    return times


def quantile(values, q):
    ascending = sorted(values)
    place = q * (len(ascending) - 1)
    low = int(place)
    high = math.ceil(place)
    if math.isinf(ascending[high]):
        return ascending[high]
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def held(p99, limit):
    """The rate up to which every P99 met the limit, between two rates by a straight line; None: not even the lowest.

    The bool tells whether a higher rate missed it: otherwise the cluster can do more than was asked.
    """
    before = None
    for rate in sorted(p99):
        if p99[rate] > limit:
            if before is None:
                return None, True
            return before + (rate - before) * (limit - p99[before]) / (p99[rate] - p99[before]), True
        before = rate
    return before, False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the model; without, the demo model is widened")
    parser.add_argument("--texts-dir", type=pathlib.Path, default=ROOT / "models/eval", help="of text-*.jsonl")
    parser.add_argument("--texts", type=int, default=30, help="of each domain")
    parser.add_argument("--prompt-tokens", type=int, default=33)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--policy", default="lynx", help="beside exact")
    parser.add_argument("--limits", default="40,50,60,80,100", help="on the P99 of the time per token, ms")
    parser.add_argument("--rates", default="0.4,0.6,0.8,1,1.25,1.5,1.75,2,2.5,3,3.5,4", help="requests a second")
    parser.add_argument("--seconds", type=float, default=40, help="to send for, each rate and policy, or longer for")
    parser.add_argument("--least", type=int, default=40, help="requests of each rate and policy")
    parser.add_argument("--warmup", type=float, default=8, help="seconds before, whose requests do not count")
    parser.add_argument("--rounds", type=int, default=1, help="whose requests are taken together, to draw P99 from")
    parser.add_argument("--seed", type=int, default=1, help="of the first round's arrivals; the next has the next")
    parser.add_argument("--threads", type=int, default=2, help="of each node")
    parser.add_argument("--up", action="append", default=[], metavar="OPTION", help="of lynx up, as --up=--port=8080")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to")
    options = parser.parse_args()
    limits = [float(limit) for limit in options.limits.split(",")]
    rates = sorted(float(rate) for rate in options.rates.split(","))
    policies = ["exact", options.policy]

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.model is None:
            import widen
            options.model = folder / "wide"
            widen.write_wide(ROOT / "models/lynx-tiny-moe", options.model)
        times = {policy: {} for policy in policies}
        with cluster(options, folder) as url:
            write_prompts(url, options, folder / "prompts.jsonl")
            for number in range(options.rounds):
                open_policies = list(policies)
                for rate in rates:
                    for policy in open_policies[::-1 if number % 2 else 1]:
                        new = run(url, options, folder, policy, rate, options.seed + number)
                        times[policy].setdefault(rate, []).extend(new)
                        print(f"round {number + 1}: {rate:5.2f} requests/s, {policy:8} {len(new):4} requests, time per token"
                              f" p50 {1e3 * quantile(new, 0.5):6.1f} ms, p99 {1e3 * quantile(new, 0.99):6.1f} ms",
                              file=sys.stderr, flush=True)
                        if 1e3 * quantile(new, 0.99) > 1.3 * max(limits):
                            open_policies = [other for other in open_policies if other != policy]
        p99 = {policy: {rate: 1e3 * quantile(of, 0.99) for rate, of in times[policy].items()} for policy in policies}

    print(f"| P99 of the time per token | exact, requests/s | {options.policy}, requests/s | ratio |\n|---|---|---|---|")
    rows = []
    for limit in limits:
        (exact, exact_missed), (other, other_missed) = (held(p99[policy], limit) for policy in policies)
        rows.append({"limit_ms": limit, "exact": exact, "policy": other, "exact_missed_above": exact_missed,
                     "policy_missed_above": other_missed})
        shown = ["-" if rate is None else f"{'' if missed else '>= '}{rate:.2f}"
                 for rate, missed in ((exact, exact_missed), (other, other_missed))]
        ratio = f"{other / exact:.2f}" if exact and other and exact_missed and other_missed else "-"
        print(f"| {limit:g} ms | {shown[0]} | {shown[1]} | {ratio} |")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "p99_ms": p99, "times_s": times}))


if __name__ == "__main__":
    main()
