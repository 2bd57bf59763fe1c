"""`lynx bench transfer` and `lynx bench router`: benches with processes of their own."""
import json
import subprocess

from cluster import BIN, MODEL, ROOT


def bench(*arguments, timeout=100, **options):
    return subprocess.run([str(BIN / "lynx"), "bench", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, timeout=timeout, **options)


TRANSFER = ("transfer", "--shape", MODEL / "config.json", "--tokens", 100, "--rounds", 1)


def test_transfer_hands_kv_over_both_transports():
    done = bench(*TRANSFER, "--payload", "1MiB", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["prompt_bytes"] == 4 * 7 * report["block_bytes"]  # 4 layers, 7 blocks.
    assert report["message_bytes"] == 7 * report["block_bytes"]
    assert [row["transport"] for row in report["results"]] == ["tcp", "shm"]
    for row in report["results"]:
        assert row["handoff_gb_s"] > 0 and row["ucx_perftest_gb_s"] > 0 and row["share"] > 0


def test_transfer_goes_on_without_ucx_perftest():
    done = bench(*TRANSFER, "--transports", "tcp", "--json", env={"PATH": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "not installed" in report["notes"][0] and "share" not in report["results"][0]


def test_transfer_overlaps_with_compute():
    # Chunks that end within a block.
    done = bench(*TRANSFER, "--transports", "tcp", "--overlap", "--chunk", 24, "--threads", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = json.loads(done.stdout)["overlap"]
    assert min(row["alone_ms"], row["compute_ms"], row["transfer_ms"], row["exposed_ms"]) > 0


def test_router_streams_through_real_processes():
    done = bench("router", "--streams", 20, "--batch", 8, "--rate", 20, "--window", "300ms", "--rounds", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    for side in ("router", "echo"):
        figures = report[side]
        assert figures["tokens"] > 0 and figures["cpu_seconds"] > 0, report
        assert 0 < figures["latency_ms_p50"] <= figures["latency_ms_p99"], report
    # A chunk of HTTP around an event around JSON.
    assert 150 < report["router"]["bytes_per_token"] < 400
    assert abs(report["echo"]["bytes_per_token"] - report["router"]["bytes_per_token"]) <= 1


def test_bad_flags_are_named():
    for arguments, named in ((("router", "--streams", "0"), "--streams"), (("router", "--window", "3"), "--window"),
                             (("transfer", "--transports", "rdma"), "--transports"),
                             (("transfer", "--chunk", "0"), "--chunk"),
                             (("transfer", "--payload", "much"), "--payload")):
        done = bench(*arguments)
        assert done.returncode == 2 and named in done.stderr and done.stdout == "", done
