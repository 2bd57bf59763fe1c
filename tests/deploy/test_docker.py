"""The Dockerfile against the build that it repeats. It is read here, not run."""
import pathlib
import re
import subprocess

from cluster import BIN, ROOT

FOLDER = ROOT / "deploy" / "docker"
PROGRAMS = ("lynx", "lynx-router", "lynx-prefill", "lynx-decode")


def instructions():
    """[(instruction, its text)] with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (FOLDER / "Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def stages():
    """{stage: (base, [(instruction, text)])}"""
    found = {}
    for name, text in instructions():
        if name == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS (\S+)", text).groups()
            lines = []
            assert stage not in found
            found[stage] = (base, lines)
        elif found:
            lines.append((name, text))
    return found


def test_stages_copy_from_earlier_stages_and_from_what_is_sent():
    sent = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    seen = set()
    for stage, (base, lines) in stages().items():
        assert base in seen or re.fullmatch(r"debian:12-slim|\$\{CUDA_IMAGE\}", base), base
        for _, text in (line for line in lines if line[0] == "COPY"):
            source = re.match(r"--from=(\S+) ", text)
            if source:
                assert source.group(1) in seen, text
                continue
            for path in text.split()[:-1]:
                assert path in sent and any(f == path or f.startswith(path + "/") for f in tracked), path
        seen.add(stage)
    assert list(stages())[-1] == "cpu"


def test_images_are_pinned_and_run_without_root():
    everything = stages()
    assert re.search(r"^ARG CUDA_IMAGE=\S+:\d[\w.-]+$", (FOLDER / "Dockerfile").read_text(), re.M)
    for stage in ("cpu", "cuda"):
        base, lines = everything[stage]
        users = [text for name, text in everything[base][1] + lines if name == "USER"]
        assert users == ["65532:65532"], stage


def test_the_run_time_packages_are_those_that_the_programs_need():
    listed = re.search(r"--no-install-recommends +([^&]*)", dict(stages()["runtime"][1])["RUN"]).group(1).split()
    libraries = set()
    for program in PROGRAMS:
        dynamic = subprocess.run(["readelf", "-d", BIN / program], capture_output=True, text=True, check=True).stdout
        libraries |= set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    needed = set()
    for library in libraries:
        path = pathlib.Path(re.search(rf"^\s{re.escape(library)} .*=> (\S+)$", cache, re.M).group(1)).resolve()
        # Of a merged /usr, the package database may know the older name.
        for name in (path, pathlib.Path(str(path).removeprefix("/usr"))):
            owner = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
            if owner.returncode == 0:
                needed.add(owner.stdout.split(":")[0])
                break
        else:
            raise AssertionError(f"no package has {path}")
    assert set(listed) - needed == {"ibverbs-providers"}, "UCX opens these when it finds a card"
    assert needed <= set(listed)


def test_the_build_is_the_one_that_is_tested():
    for stage, targets in (("build", set(PROGRAMS)), ("cuda-build", {*PROGRAMS, "lynx_cuda"})):
        command = next(text for name, text in stages()[stage][1] if name == "RUN")
        assert set(re.search(r"--target (.*)$", command).group(1).split()) == targets
        options = (ROOT / "common/cmake/LynxOptions.cmake").read_text()
        for option in re.findall(r"-D(LYNX_\w+)=", command):
            assert re.search(rf"(option|set)\({option} ", options), option
        assert '"name": "release"' in (ROOT / "CMakePresets.json").read_text()
    sourced = next(text for name, text in stages()["toolchain"][1] if name == "RUN")
    assert "source tests/tools/setup.sh && lynx_install build" in sourced
