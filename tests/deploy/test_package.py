"""The Debian packages: made, unpacked and started, with nothing else of the build at hand."""
import json
import re
import subprocess

import pytest

from cluster import ROOT, fetch

BUILD = ROOT / "build" / "release"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """{name: (fields of its control file, root it was unpacked at)}"""
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run(["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder], cwd=BUILD, check=True,
                   stdout=subprocess.DEVNULL, timeout=300)
    found = {}
    for package in folder.glob("*.deb"):
        text = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
        fields = dict(re.findall(r"^(\S+): (.*)$", text, re.M))
        root = folder / fields["Package"]
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        found[fields["Package"]] = fields, root
    return found


def test_the_cpu_package_needs_what_its_programs_link_and_no_cuda(packages):
    fields, root = packages["lynx"]
    image = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    for library in ("libzmq5", "libucx0", "libprotobuf32", "libgloo0"):
        assert library in image and re.search(rf"\b{library}\b", fields["Depends"]), fields["Depends"]
    assert not re.search("cuda|nccl|nvidia", fields["Depends"])
    assert not list(root.rglob("*cuda*.so*"))


def test_the_plugin_comes_apart_and_for_this_version_only(packages):
    if not (BUILD / "lib" / "liblynx_cuda.so").exists():
        pytest.skip("built without the CUDA plug-in")
    fields, root = packages["lynx-cuda"]
    assert fields["Depends"] == f"lynx (= {packages['lynx'][0]['Version']})"
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["liblynx_cuda.so"]


@pytest.mark.parametrize("program", ("lynx-router", "lynx-prefill", "lynx-decode"))
def test_units_start_what_is_installed_with_options_that_it_takes(packages, program):
    _, root = packages["lynx"]
    unit = (root / "usr/lib/systemd/system" / f"{program}.service").read_text()
    binary, flag, config = re.search(r"^ExecStart=(\S+) (\S+) (\S+)$", unit, re.M).groups()
    assert flag == "--config" and binary == f"/usr/bin/{program}"
    options = re.findall(r"^(\S+) = ", (root / config.lstrip("/")).read_text(), re.M)
    known = subprocess.run([root / binary.lstrip("/"), "--help"], capture_output=True, text=True, check=True).stdout
    for option in options:
        assert re.search(rf"--{option}\b", known), option
    # A drain that systemd cuts short would end streams.
    drain = re.search(r"--drain-timeout[\s\S]*?default (\d+)(s|m)\b", known)
    seconds = int(drain.group(1)) * {"s": 1, "m": 60}[drain.group(2)]
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1)) >= seconds + 15


def test_what_an_operator_edits_is_kept_by_upgrades(packages):
    _, root = packages["lynx"]
    edited = {"/" + str(path.relative_to(root)) for path in (root / "etc").rglob("*") if path.is_file()}
    assert edited == {f"/etc/lynx/lynx-{role}.conf" for role in ("router", "prefill", "decode")}
    listed = set((BUILD / "conffiles").read_text().split())
    assert listed == edited


def test_the_installed_programs_serve_the_installed_model(packages, tmp_path):
    _, root = packages["lynx"]
    with open(tmp_path / "log", "wb") as log:
        up = subprocess.Popen([root / "usr/bin/lynx", "up", "--model", root / "usr/share/lynx/models/lynx-tiny-moe",
                               "--port", "0", "--threads", "1"],
                              cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = up.stdout.readline()
        assert line.startswith("ready at "), (tmp_path / "log").read_text()
        body = json.dumps({"model": "lynx-tiny-moe", "prompt": "import os", "max_tokens": 4}).encode()
        status, text = fetch(f"{line.split()[-1]}/v1/completions", data=body, headers={"Content-Type": "application/json"})
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 4, text
    finally:
        up.terminate()
        up.stdout.close()
        assert up.wait(60) == 0
