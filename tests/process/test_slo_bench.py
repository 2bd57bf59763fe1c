"""tests/bench/slo: the bench at a tiny scale, and the model that it widens."""
import json
import math
import subprocess
import sys

import pytest

from cluster import BIN, MODEL, ROOT, running_cluster

BENCH = ROOT / "tests/bench/slo"
sys.path.insert(0, str(BENCH))

import slo_bench  # noqa: E402
import widen  # noqa: E402


def test_a_rate_is_held_up_to_where_the_limit_is_crossed():
    p99 = {1.0: 20.0, 2.0: 40.0, 4.0: 100.0, 8.0: 90.0}
    assert slo_bench.held(p99, 19) == (None, True)
    assert slo_bench.held(p99, 30) == (1.5, True)
    assert slo_bench.held(p99, 95) == (pytest.approx(2 + 2 * 55 / 60), True)  # Not 8: 4 missed it.
    assert slo_bench.held(p99, 100) == (8.0, False)
    assert slo_bench.held({1.0: 20.0, 2.0: math.inf}, 30) == (1.0, True)


def test_a_failed_request_is_in_the_tail():
    assert slo_bench.quantile([1.0, 2.0, 3.0], 0.5) == 2
    assert slo_bench.quantile([3.0, 1.0], 0.75) == 2.5
    assert slo_bench.quantile([1.0, math.inf], 0.99) == math.inf
    assert slo_bench.quantile([1.0, 2.0, math.inf], 0.5) == 2


def test_runs_and_prints_a_row_for_each_limit(tmp_path):
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, BENCH / "slo_bench.py", "--bin", BIN, "--model", MODEL, "--texts", "2", "--rates", "20,10",
         "--seconds", "1", "--least", "1", "--warmup", "0", "--output-tokens", "8", "--limits", "0.001,60000",
         "--threads", "1", "--json", report], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert [row["limit_ms"] for row in rows] == [0.001, 60000]
    assert rows[0]["exact"] is None and rows[0]["policy"] is None
    assert rows[1]["exact"] == 20 and rows[1]["policy"] == 20
    assert done.stdout.splitlines()[-2:] == ["| 0.001 ms | - | - | - |", "| 60000 ms | >= 20.00 | >= 20.00 | - |"]


def answers(model):
    prompts = ["What is 58+27?", "And the LORD said unto Moses,", "static int __init "]
    # Rounding to bf16 differs where norms were scaled.
    with running_cluster(model=model, node_flags=("--compute-dtype", "f32")) as cluster:
        bodies = [cluster.post("/v1/completions", {"model": model.name, "prompt": prompt, "max_tokens": 12,
                                                   "temperature": 0}) for prompt in prompts]
    assert [status for status, _ in bodies] == [200] * len(prompts), bodies
    return [body["choices"][0]["text"] for _, body in bodies]


def test_the_widened_model_answers_as_the_narrow_one(tmp_path):
    wide = {"hidden_size": 768, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 128,
            "moe_intermediate_size": 128, "intermediate_size": 384}
    widen.write_wide(MODEL, tmp_path / "wide", wide)
    assert answers(tmp_path / "wide") == answers(MODEL)
