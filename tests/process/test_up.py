"""`lynx up`, the cluster in one command."""
import json
import os
import re
import signal
import socket
import subprocess

import pytest

from cluster import BIN, MODEL, fetch, wait_for


class Up:
    """A running `lynx up`; its log is what it and its nodes write to standard error."""

    def __init__(self, folder, *flags, model=MODEL, cwd=None, **environment):
        self.scratch = folder / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self.log_path = folder / "log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [BIN / "lynx", "up", "--model", model, "--port", "0", "--threads", "1", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=cwd,
                env={**os.environ, "TMPDIR": str(self.scratch), **environment})
        line = self.process.stdout.readline()
        assert line.startswith("ready at "), self.log()
        self.url = line.split()[-1]

    def log(self):
        return self.log_path.read_text()

    def ask(self):
        body = {"model": MODEL.name, "prompt": "import os", "max_tokens": 8}
        status, text = fetch(f"{self.url}/v1/completions", data=json.dumps(body).encode(),
                             headers={"Content-Type": "application/json"})
        assert status == 200, text
        return text

    def end(self, number):
        self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(60)


def test_a_cluster_may_be_one_node(tmp_path):
    up = Up(tmp_path, "--both", "1")
    up.ask()
    assert up.end(signal.SIGINT) == 0
    nodes = [json.loads(line) for line in up.log().splitlines() if "node joined" in line]
    assert [node["role"] for node in nodes] == ["decode"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_clean_stop_warns_of_nothing(tmp_path, number):
    up = Up(tmp_path)
    up.ask()
    assert up.end(number) == 0
    lines = [json.loads(line) for line in up.log().splitlines() if line.startswith("{")]
    assert [line for line in lines if line["level"] not in ("info", "debug")] == []
    assert not list(up.scratch.iterdir())


def test_the_model_is_named_by_its_folder_however_that_is_written(tmp_path):
    for model in (".", f"{MODEL}/.", f"../{MODEL.name}/"):
        up = Up(tmp_path, model=model, cwd=MODEL)
        up.ask()
        assert up.end(signal.SIGINT) == 0


def test_a_killed_cluster_leaves_nothing_for_long(tmp_path):
    first = Up(tmp_path)
    first.end(signal.SIGKILL)
    wait_for(lambda: "drained" in first.log(), 20, "end of the nodes")  # Their owner's death ends them.
    assert len(list(first.scratch.iterdir())) == 1
    second, third = Up(tmp_path), Up(tmp_path)
    assert len(list(first.scratch.iterdir())) == 2, "those of the two that run"
    assert second.end(signal.SIGTERM) == 0 and third.end(signal.SIGTERM) == 0
    assert not list(first.scratch.iterdir())


def test_an_address_that_cannot_be_listened_at_is_told_before_weights_are_read():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, status, text in ((("--port", str(taken.getsockname()[1])), 1, "Address already in use"),
                                        (("--host", "localhost"), 2, "'localhost' is not an IP address"),
                                        (("--host", "192.0.2.1"), 1, "cannot listen at 192.0.2.1:")):
            done = subprocess.run([BIN / "lynx", "up", "--model", MODEL, *arguments], capture_output=True, text=True, timeout=60)
            assert done.returncode == status and text in done.stderr, done.stderr
            assert "model loaded" not in done.stderr


def test_nodes_of_both_roles_go_with_no_others():
    done = subprocess.run([BIN / "lynx", "up", "--model", MODEL, "--both", "1", "--decode", "2"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and "--both takes the place of" in done.stderr, done.stderr


def test_chat_and_up_do_not_share_a_variable_of_two_meanings(tmp_path):
    up = Up(tmp_path)
    environment = {**os.environ, "LYNX_MODEL": str(MODEL), "LYNX_URL": up.url}
    done = subprocess.run([BIN / "lynx", "chat", "--message", "hello", "--max-tokens", "4"], env=environment,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([BIN / "lynx", "chat", "--message", "hello", "--served-model-name", "nobody"],
                          env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and re.search("nobody", done.stderr)
    assert up.end(signal.SIGTERM) == 0
