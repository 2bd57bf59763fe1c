"""Expert remapping by flag and by request, through the real programs."""
import subprocess

import pytest

from cluster import BIN, LONG, MODEL, running_cluster
from test_exactness import NAME, alone, ask_all, requests

HARSH = "lynx:alpha=1,beta=1,floor=0"  # Remaps most of what can be.


@pytest.fixture(scope="module")
def remapping():
    with running_cluster(decode_flags=("--lynx-policy", HARSH), router_flags=("--lynx-allow", "lynx,vote")) as running:
        yield running


def test_exact_requests_in_a_remapped_batch_get_the_tokens_of_one_process_alone(remapping):
    asked = requests(200 if LONG else 32, seed=20240303)
    want = alone(remapping, asked)
    for i, request in enumerate(asked):
        if i % 4 == 0:
            request["lynx"] = {"policy": "exact"}
        elif i % 4 == 1:
            request["lynx"] = {"policy": "vote", "M": 9}
    got = ask_all(remapping, asked)
    assert got[::4] == want[::4]
    assert got != want, "nothing was remapped, so this shows nothing"


def test_an_exact_request_is_the_same_beside_any_companions(remapping):
    body = {"prompt": "static int __init ", "max_tokens": 48, "temperature": 0, "lynx": {"policy": "exact"}}
    want = ask_all(remapping, [body])
    for companions in (1, 15):
        assert ask_all(remapping, [body, *requests(companions, seed=companions)])[:1] == want
    chat = {"model": NAME, "messages": [{"role": "user", "content": "What is 58+27?"}], "temperature": 0,
            "max_tokens": 16, "lynx": {"policy": "exact"}}
    assert remapping.post("/v1/chat/completions", chat)[0] == 200


def test_the_metrics_tell_what_was_remapped(remapping):
    ask_all(remapping, requests(16, seed=3))
    decode, prefill = remapping.nodes["decode-0"], remapping.nodes["prefill-0"]
    assert decode.metric("lynx_moe_policy_info", policy="lynx", alpha="1", beta="1", floor="0") == 1
    assert decode.metric("lynx_moe_plans_total", result="applied") > 0
    before = decode.metric("lynx_moe_layer_active_experts_total", stage="before")
    after = decode.metric("lynx_moe_layer_active_experts_total", stage="after")
    assert 0 < after < before
    assert decode.metric("lynx_moe_remapped_assignments_total", phase="decode") > 0
    saved = decode.metric("lynx_moe_expert_weight_saved_bytes_total")
    read = decode.metric("lynx_moe_expert_weight_read_bytes_total")
    assert saved / (saved + read) == pytest.approx(1 - after / before), "all experts are of one size"
    assert decode.metric("lynx_moe_kept_gate_mass_ratio_count") == decode.metric("lynx_moe_plans_total", result="applied")

    assert prefill.metric("lynx_moe_policy_info", policy="exact") == 1
    assert prefill.metric("lynx_moe_plans_total", phase="prefill", result="bypassed") > 0
    assert prefill.metric("lynx_moe_plans_total", result="applied") == 0
    assert prefill.metric("lynx_moe_remapped_assignments_total") == 0
    assert prefill.metric("lynx_moe_expert_weight_saved_bytes_total") == 0


@pytest.mark.parametrize("lynx, param", [
    ({"policy": "made_up"}, "lynx.policy"),
    ({"policy": "oea"}, "lynx.policy"),  # Known, not allowed.
    ({"policy": "lynx", "alpha": 0}, "lynx.alpha"),
    ({"policy": "lynx", "beta": "many"}, "lynx.beta"),
    ({"policy": "lynx", "floor": 9}, "lynx.floor"),  # The model's k is 8,
    ({"policy": "vote", "M": 65}, "lynx.M"),  # its N 64.
    ({"policy": "lynx", "made_up": 1}, "lynx.made_up"),
    ({"alpha": 3}, "lynx.policy"),
    ("lynx", "lynx"),
])
def test_a_bad_policy_is_refused_by_its_field(remapping, lynx, param):
    for path, prompt in (("/v1/completions", {"prompt": "a"}),
                         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        status, answer = remapping.post(path, {"model": NAME, "max_tokens": 1, "lynx": lynx, **prompt})
        assert (status, answer["error"]["param"]) == (400, param), answer
        assert param in answer["error"]["message"]


def test_only_exact_may_be_asked_for_unless_allowed(cluster):
    for lynx, status in (({"policy": "exact"}, 200), ({"policy": "lynx"}, 400)):
        assert cluster.post("/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 1, "lynx": lynx})[0] == status


@pytest.mark.parametrize("program, flags, named", [
    ("lynx-decode", ("--lynx-policy", "made_up"), "made_up"),
    ("lynx-decode", ("--lynx-policy", "lynx:alpha=0"), "alpha"),
    ("lynx-decode", ("--lynx-policy", "lynx:floor=9"), "floor"),
    ("lynx-decode", ("--lynx-mixed-steps", "made_up"), "made_up"),
    ("lynx-router", ("--prefill", "a:1", "--decode", "a:2", "--lynx-allow", "lynx,made_up"), "made_up"),
])
def test_a_bad_flag_ends_the_start(program, flags, named):
    ended = subprocess.run([str(BIN / program), "--model", str(MODEL), "--control" if "decode" in program else "--listen",
                            "127.0.0.1:0", *(("--http", "127.0.0.1:0") if "decode" in program else ()), *flags],
                           capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert named in ended.stderr and flags[-2] in ended.stderr, ended.stderr
