"""What --check-config and --print-config say of routers and nodes, and the log level of a running one."""
import json
import signal
import subprocess

import pytest

from cluster import BIN, MODEL, running_cluster, wait_for

REQUIRED = {"lynx-router": ["--model", str(MODEL), "--decode", "h1:9100,h2:9100"],
            "lynx-prefill": ["--model", str(MODEL)],
            "lynx-decode": ["--model", str(MODEL)]}


def run(program, *arguments, **environment):
    return subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=environment)


@pytest.mark.parametrize("program", REQUIRED)
def test_what_is_printed_is_a_file_that_says_the_same(program, tmp_path):
    drain = "2m5s"
    printed = run(program, *REQUIRED[program], "--print-config", LYNX_DRAIN_TIMEOUT=drain)
    assert printed.returncode == 0 and f"drain-timeout = {drain}  # environment\n" in printed.stdout, printed
    (tmp_path / "again.conf").write_text(printed.stdout)
    again = run(program, "--config", tmp_path / "again.conf", "--print-config")
    assert again.returncode == 0, again.stderr

    def values(text):
        return [line.split("  #")[0] for line in text.splitlines()]

    assert values(again.stdout) == values(printed.stdout)
    assert run(program, "--config", tmp_path / "again.conf", "--check-config").returncode == 0


@pytest.mark.parametrize("program,arguments,words", [
    ("lynx-router", ["--refuse-late"], "--refuse-late needs"),
    ("lynx-router", ["--listen", "8080"], "--listen"),
    ("lynx-prefill", ["--rank", "1"], "--rank"),
    ("lynx-decode", ["--control", "nowhere"], "--control"),
    ("lynx-decode", ["--max-batch", "64", "--step-rows", "8"], "--step-rows"),
    *((program, ["--no-such-option"], "--no-such-option") for program in REQUIRED),
])
def test_a_wrong_configuration_is_named(program, arguments, words):
    done = run(program, *REQUIRED[program], *arguments, "--check-config")
    assert done.returncode == 2 and words in done.stderr and not done.stdout, done


@pytest.mark.parametrize("program", REQUIRED)
def test_an_unknown_key_of_a_file_is_named_with_its_line(program, tmp_path):
    (tmp_path / "x.conf").write_text("# mine\nno-such-key = 1\n")
    done = run(program, *REQUIRED[program], "--config", tmp_path / "x.conf", "--check-config")
    assert done.returncode == 2 and "x.conf:2: unknown key 'no-such-key'" in done.stderr, done


def test_the_log_level_changes_while_it_runs():
    with running_cluster(router_flags=["--log-level", "error"]) as cluster:
        def refusals():
            return sum(json.loads(line)["message"] == "request refused"
                       for line in cluster.router.log_path.read_text().splitlines())

        def refuse():
            assert cluster.post("/v1/completions", {"model": "lynx-tiny-moe"})[0] == 400
            return refusals()

        assert refuse() == 0
        cluster.router.signal(signal.SIGUSR1)
        wait_for(refuse, 30, "line at the level info")
        cluster.router.signal(signal.SIGUSR2)

        def quiet():
            before = refusals()
            return refuse() == before

        wait_for(quiet, 30, "silence at the level error")
