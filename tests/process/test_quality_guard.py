"""The quality guard and the policy auto, through the real programs."""
import subprocess

import pytest

from cluster import BIN, MODEL, running_cluster, wait_for
from test_exactness import alone, ask_all, requests


def test_a_harmful_policy_leaves_the_node_exact():
    flags = ("--lynx-policy", "prune:k0=1", "--lynx-guard-share", "1", "--lynx-guard-window", "16")
    with running_cluster(decode_flags=flags) as running:
        decode = running.nodes["decode-0"]
        assert decode.metric("lynx_quality_guard_state", state="active") == 1
        ask_all(running, requests(16, seed=5))
        assert decode.metric("lynx_quality_guard_state", state="backoff") == 1
        assert decode.metric("lynx_quality_guard_trips_total", reason="kl") == 1
        assert decode.metric("lynx_quality_kl_divergence_nats_count") >= 16
        applied = decode.metric("lynx_moe_plans_total", result="applied")
        assert applied > 0
        # Its hold time outlasts this test.
        asked = requests(16, seed=6)
        assert ask_all(running, asked) == alone(running, asked)
        assert decode.metric("lynx_moe_plans_total", result="applied") == applied
        assert decode.metric("lynx_moe_bypass_total", reason="quality_backoff") > 0


def test_auto_leaves_exact_where_steps_are_too_slow():
    flags = ("--lynx-policy", "auto", "--lynx-tpot-target", "1us", "--lynx-guard-share", "0.5",
             "--lynx-guard-kl", "10")
    with running_cluster(decode_flags=flags) as running:
        decode = running.nodes["decode-0"]
        assert decode.metric("lynx_moe_policy_info", policy="auto") == 1
        assert decode.metric("lynx_moe_auto_rung") == 0

        def climbed():
            ask_all(running, [{"prompt": f"{i}", "max_tokens": 256, "ignore_eos": True} for i in range(8)])
            return decode.metric("lynx_moe_auto_rung") > 1 and decode.metric("lynx_moe_plans_total", result="applied") > 0

        wait_for(climbed, 60, "auto to leave exact")
        assert decode.metric("lynx_quality_kl_divergence_nats_count") >= 32


@pytest.mark.parametrize("flags, named", [
    (("--lynx-guard-share", "1.5"), "--lynx-guard-share"),
    (("--lynx-guard-kl", "0"), "--lynx-guard-kl"),
    (("--lynx-guard-share", "0", "--lynx-policy", "auto"), "quality guard"),
    (("--lynx-auto-harshest", "oea:k0=2"), "one kind"),
    (("--lynx-auto-gentlest", "budget:coverage=2"), "coverage"),
])
def test_a_bad_flag_ends_the_start(flags, named):
    ended = subprocess.run([str(BIN / "lynx-decode"), "--model", str(MODEL), "--control", "127.0.0.1:0", "--http",
                            "127.0.0.1:0", *flags], capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert named in ended.stderr, ended.stderr
