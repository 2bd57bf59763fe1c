"""A router that knows who may call, driven by the official client."""
import hashlib
import os
import signal
import subprocess

import openai
import pytest

from cluster import BIN, MODEL as FOLDER, fetch, running_cluster, wait_for

MODEL = "lynx-tiny-moe"
ANN, BOB, EVE = "sk-lynx-ann-0123456789", "sk-lynx-bob-0123456789", "sk-lynx-eve-0123456789"


def line(name, key, limits=""):
    return f"{name} {hashlib.sha256(key.encode()).hexdigest()} {limits}\n"


def replace(path, text):
    """As an editor or Kubernetes does: a new file in the old one's place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, path)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "api-keys"
    replace(path, line("ann", ANN) + line("bob", BOB, "requests-per-minute=3 tokens-per-minute=100000"))
    return path


@pytest.fixture(scope="module")
def keyed(keys):
    with running_cluster(router_flags=["--api-keys", str(keys), "--admin-listen", "127.0.0.1:0",
                                       "--log-level", "debug"]) as running:
        yield running


def client_of(cluster, key):
    return openai.OpenAI(base_url=cluster.router.url("/v1"), api_key=key, max_retries=0, timeout=60)


def complete(cluster, key, **fields):
    return client_of(cluster, key).completions.create(model=MODEL, prompt="import os", max_tokens=4, **fields)


def metric(cluster, name, **labels):
    status, text = fetch(cluster.router.url("/metrics"), headers={"Authorization": f"Bearer {ANN}"})
    assert status == 200
    wanted = "".join(f'{k}="{v}"' for k, v in labels.items())
    return sum(float(row.rsplit(" ", 1)[1]) for row in text.splitlines()
               if row.startswith(name + ("{" if wanted else " ")) and wanted in row)


def test_a_key_opens_the_api_and_nothing_else_does(keyed):
    assert complete(keyed, ANN).usage.completion_tokens > 0
    assert [m.id for m in client_of(keyed, ANN).models.list()] == [MODEL]
    assert len(list(complete(keyed, ANN, stream=True))) > 1
    for key in (EVE, "none", ANN + "x", ANN[:-1]):
        with pytest.raises(openai.AuthenticationError) as refused:
            complete(keyed, key)
        assert refused.value.code == "invalid_api_key" and refused.value.status_code == 401
        assert refused.value.response.headers["www-authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            client_of(keyed, key).models.list()
    for path in ("/v1/models", "/metrics", "/nodes", "/openapi.json", "/no-such-page"):
        assert fetch(keyed.router.url(path))[0] == 401, path
    for path in ("/livez", "/readyz", "/startupz", "/health"):
        assert fetch(keyed.router.url(path))[0] == 200, path


def test_limits_of_a_key_are_told_and_kept(keyed):
    refused = []
    for i in range(4):
        try:
            raw = client_of(keyed, BOB).completions.with_raw_response.create(
                model=MODEL, prompt="import os", max_tokens=4)
            assert raw.headers["x-ratelimit-limit-requests"] == "3"
            assert raw.headers["x-ratelimit-remaining-requests"] == str(2 - i)
            assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 100000
        except openai.RateLimitError as error:
            refused.append(error)
    assert len(refused) == 1 and refused[0].code == "rate_limit_exceeded"
    assert 1 <= int(refused[0].response.headers["retry-after"]) <= 20
    assert complete(keyed, ANN).usage.completion_tokens > 0


def test_a_new_file_counts_without_a_restart_and_a_bad_one_does_not(keyed, keys):
    before = keys.read_text()
    failed = metric(keyed, "lynx_router_api_key_loads_total", result="failed")
    replace(keys, before + line("eve", EVE))
    wait_for(lambda: fetch(keyed.router.url("/v1/models"), headers={"Authorization": f"Bearer {EVE}"})[0] == 200,
             30, "key of the new file")
    replace(keys, before + "eve is welcome\n")
    wait_for(lambda: metric(keyed, "lynx_router_api_key_loads_total", result="failed") > failed, 30, "failed load")
    assert complete(keyed, EVE).usage.completion_tokens > 0
    replace(keys, before)
    wait_for(lambda: fetch(keyed.router.url("/v1/models"), headers={"Authorization": f"Bearer {EVE}"})[0] == 401,
             30, "revoked key")
    loads = metric(keyed, "lynx_router_api_key_loads_total", result="ok")
    keyed.router.signal(signal.SIGHUP)
    wait_for(lambda: metric(keyed, "lynx_router_api_key_loads_total", result="ok") > loads, 30, "load after SIGHUP")
    assert complete(keyed, ANN).usage.completion_tokens > 0


def test_keys_and_their_names_are_nowhere_to_be_read(keyed):  # SEC-6, SEC-9
    complete(keyed, ANN)
    with pytest.raises(openai.AuthenticationError):
        complete(keyed, EVE)
    text = fetch(keyed.router.url("/metrics"), headers={"Authorization": f"Bearer {ANN}"})[1]
    logs = "".join(process.log_path.read_text() for process in keyed.processes())
    for secret in (ANN, BOB, EVE):
        assert secret not in text and secret not in logs
        assert hashlib.sha256(secret.encode()).hexdigest() not in text + logs
    assert '"ann"' not in text and '"bob"' not in text


@pytest.mark.parametrize("text,mode,words", [
    (line("ann", ANN), 0o644, "anybody may read"),
    ("ann " + ANN + "\n", 0o600, ":1:"),
    ("", 0o600, "no keys"),
    (None, 0o600, "no such file"),
])
def test_a_router_does_not_start_with_keys_it_cannot_trust(tmp_path, text, mode, words):
    path = tmp_path / "api-keys"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    done = subprocess.run([BIN / "lynx-router", "--model", FOLDER, "--decode", "127.0.0.1:1", "--listen",
                           "127.0.0.1:0", "--api-keys", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert ANN not in done.stderr
