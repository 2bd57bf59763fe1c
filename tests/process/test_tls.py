"""A router that ends TLS itself, met by the official client and by others."""
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.error

import openai
import pytest
import trustme

from cluster import BIN, MODEL as FOLDER, Cluster, fetch, parse_metrics, wait_for

MODEL = "lynx-tiny-moe"


class TlsCluster(Cluster):
    """A cluster whose router speaks TLS, with certificates of an authority of the test's own."""

    def __init__(self, folder, **arguments):
        self.authority = trustme.CA()
        self.trust = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        self.cert = os.path.join(folder, "cert.pem")
        self.key = os.path.join(folder, "key.pem")
        self.issue()
        super().__init__(folder, router_flags=["--tls-cert", self.cert, "--tls-key", self.key], **arguments)

    def issue(self, *names, authority=None):
        """A new certificate in the old one's place."""
        issued = (authority or self.authority).issue_cert("127.0.0.1", *names)
        self.write(self.key, issued.private_key_pem.bytes())
        self.write(self.cert, b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    @staticmethod
    def write(path, content):
        with open(path + ".new", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        os.replace(path + ".new", path)

    def fetch(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        return fetch(f"https://{self.router.http}{path}", 60, data, context=self.trust)

    def wait_ready(self, timeout=60):
        wait_for(lambda: self.fetch("/readyz")[0] == 200, timeout, "ready router")

    def client(self):
        return openai.OpenAI(base_url=f"https://{self.router.http}/v1", api_key="none", max_retries=0,
                             http_client=openai.DefaultHttpxClient(verify=self.trust, timeout=60))

    def metric(self, name, **labels):
        return parse_metrics(self.fetch("/metrics")[1])[(name, frozenset(labels.items()))]

    def served_names(self):
        """Of the certificate that a new connection is shown."""
        host, port = self.router.http.split(":")
        with socket.create_connection((host, int(port)), 10) as raw, \
                self.trust.wrap_socket(raw, server_hostname=host) as wrapped:
            return {name for kind, name in wrapped.getpeercert()["subjectAltName"]}


@pytest.fixture(scope="module")
def secure():
    with tempfile.TemporaryDirectory(prefix="lynx-test-") as folder:
        running = TlsCluster(folder)
        try:
            yield running
        finally:
            running.close()


def test_the_official_client_is_served_over_https(secure):
    client = secure.client()
    whole = client.completions.create(model=MODEL, prompt="import os", max_tokens=8, seed=1)
    stream = client.completions.create(model=MODEL, prompt="import os", max_tokens=8, seed=1, stream=True)
    assert "".join(part.choices[0].text for part in stream) == whole.choices[0].text
    # A body and an answer of many records.
    text = "import os\n" * 20_000
    ids = json.loads(secure.fetch("/detokenize", {"tokens": [5] * 30_000})[1])["prompt"]
    assert len(ids) >= 30_000
    status, answer = secure.fetch("/tokenize", {"prompt": text})
    assert status == 400 and "context length" in answer


def test_strangers_to_the_authority_refuse_and_plain_http_gets_nothing(secure):
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(f"https://{secure.router.http}/livez")
    with pytest.raises((OSError, http.client.HTTPException)):
        fetch(f"http://{secure.router.http}/livez")
    assert secure.fetch("/livez")[0] == 200
    assert secure.metric("lynx_http_rejected_total", reason="tls", server="api") >= 1


@pytest.mark.parametrize("version,name", [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")])
def test_versions_from_1_2_on_are_spoken(secure, version, name):
    host, port = secure.router.http.split(":")
    context = ssl.create_default_context(cadata=secure.authority.cert_pem.bytes().decode())
    context.minimum_version = context.maximum_version = version
    with socket.create_connection((host, int(port)), 10) as raw, \
            context.wrap_socket(raw, server_hostname=host) as wrapped:
        assert wrapped.version() == name


def test_a_new_certificate_is_taken_up_and_a_bad_one_is_not(secure):
    assert "renewed.test" not in secure.served_names()
    stream = secure.client().completions.create(model=MODEL, prompt="import os", max_tokens=200, stream=True,
                                                extra_body={"ignore_eos": True})
    parts = iter(stream)
    next(parts)
    expiry = secure.metric("lynx_router_tls_certificate_expiry_timestamp_seconds")
    assert expiry > 1.7e9
    secure.issue("renewed.test")
    wait_for(lambda: "renewed.test" in secure.served_names(), 30, "renewed certificate")
    assert sum(1 for _ in parts) > 1, "a stream under way goes on"

    failed = secure.metric("lynx_router_tls_loads_total", result="failed")
    secure.write(secure.cert, b"-----BEGIN CERTIFICATE-----\n")
    wait_for(lambda: secure.metric("lynx_router_tls_loads_total", result="failed") > failed, 30, "failed load")
    assert "renewed.test" in secure.served_names()
    secure.issue("again.test")
    secure.router.signal(signal.SIGHUP)
    wait_for(lambda: "again.test" in secure.served_names(), 30, "certificate after SIGHUP")


@pytest.mark.parametrize("key_mode,cert,words", [(0o644, None, "anybody may read"), (0o600, b"junk", "cert.pem")])
def test_a_router_does_not_start_with_files_it_cannot_use(tmp_path, key_mode, cert, words):
    issued = trustme.CA().issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(cert or issued.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "key.pem").chmod(key_mode)
    done = subprocess.run([BIN / "lynx-router", "--model", FOLDER, "--decode", "127.0.0.1:1", "--listen",
                           "127.0.0.1:0", "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert "PRIVATE" not in done.stderr
