#!/usr/bin/env python3
"""Checks every #include against the dependency table of docs/architecture.md.

usage: check_includes.py ROOT | --self-test
"""
import pathlib
import re
import sys
import tempfile

# First part of an include path -> outside package. Anything of the standard library, the C library,
# Linux or Abseil is free.
PACKAGES = {
    "google": "protobuf",
    "nlohmann": "nlohmann_json",
    "pcre2.h": "pcre2",
    "unicode": "icu",
    "CLI": "cli11",
    "prometheus": "prometheus-cpp",
    "spdlog": "spdlog",
    "fmt": "spdlog",
    "boost": "boost",
    "openssl": "openssl",
    "zmq.h": "zeromq",
    "zmq.hpp": "zeromq",
    "zmq_addon.hpp": "zeromq",
    "ucp": "ucx",
    "ucs": "ucx",
    "uct": "ucx",
    "xxhash.h": "xxhash",
    "xxh_x86dispatch.h": "xxhash",
    "gloo": "gloo",
    "nccl.h": "nccl",
    "cuda_runtime.h": "cuda",
    "cuda_runtime_api.h": "cuda",
    "cublasLt.h": "cuda",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


# Code for GPUs, wherever its operation stands: CUDA is free there, and what nvcc need not read is not.
DEVICE_SUFFIXES = (".cu", ".cuh")
NOT_ON_DEVICES = {"absl", "google"}


def read_table(text):
    body = text.split("<!-- dependency-table -->")[1].split("<!-- /dependency-table -->")[0]
    rows = {}
    for line in body.strip().splitlines()[2:]:
        target, deps, packages = (cell.strip() for cell in line.strip().strip("|").split("|"))
        split = lambda cell: [] if cell == "-" else [part.strip() for part in cell.split(",")]
        full = [dep if "/" in dep else "common/" + dep for dep in split(deps)]
        rows[target] = (full, set(split(packages)))
    return rows


def match(target, patterns):
    return any(p == target or (p.endswith("/*") and target.startswith(p[:-1])) for p in patterns)


def row_of(rows, target):
    if target in rows:
        return rows[target]
    return rows.get(target.split("/")[0] + "/*")


def closure(rows, target, targets):
    """Targets that `target` may include: its line and what that pulls in."""
    allowed, todo = {target}, [target]
    while todo:
        deps = row_of(rows, todo.pop())[0]
        for other in targets:
            if other not in allowed and match(other, deps):
                allowed.add(other)
                todo.append(other)
    return allowed


def target_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 or parts[0] != "services" else None


def check(root):
    rows = read_table((root / "docs/architecture.md").read_text())
    files = [
        f
        for area in ("common", "kernels", "services")
        for f in sorted((root / area).rglob("*"))
        if f.suffix in (".h", ".cc", ".cu", ".cuh", ".inc")
    ]
    # Targets of the table count too: one may hold generated headers only.
    named = {target for target in rows if not target.endswith("/*")}
    targets = sorted(named | {target_of(str(f.relative_to(root))) for f in files})
    problems = []
    for target in targets:
        if row_of(rows, target) is None:
            problems.append(f"{target}: no line in the table")
    if problems:
        return problems, len(files)
    for file in files:
        name = str(file.relative_to(root))
        target = target_of(name)
        allowed = closure(rows, target, targets)
        packages = row_of(rows, target)[1]
        on_device = file.suffix in DEVICE_SUFFIXES
        for quote, include in INCLUDE.findall(file.read_text()):
            first = include.split("/")[0]
            if first in ("common", "kernels", "services"):
                other = target_of(include)
                if other not in allowed:
                    problems.append(f"{name}: includes {include}, but {target} may not use {other}")
            elif first == "tests":
                problems.append(f"{name}: product code includes {include}")
            elif on_device and first in NOT_ON_DEVICES:
                problems.append(f"{name}: code for GPUs includes {include}")
            elif on_device and PACKAGES.get(first) == "cuda":
                continue
            elif first in PACKAGES and PACKAGES[first] not in packages:
                problems.append(
                    f"{name}: includes {include}, but {target} may not use {PACKAGES[first]}")
            elif quote == '"' and "/" not in include:
                problems.append(f"{name}: includes \"{include}\"; write the path from the root")
    return problems, len(files)


def self_test():
    """The checker must find each kind of violation in a made-up tree."""
    table = """<!-- dependency-table -->
| target | may depend on | outside packages |
|---|---|---|
| common/base | - | - |
| common/kv | base | - |
| common/http | base | boost |
| services/router | http | - |
| services/decode | kv | - |
<!-- /dependency-table -->"""
    cases = {
        ("common/kv/a.h", '#include "common/base/b.h"'): None,
        ("services/router/a.cc", '#include "common/base/b.h"'): None,
        ("common/base/a.h", '#include "common/kv/b.h"'): "may not use common/kv",
        ("common/kv/a.h", "#include <boost/asio.hpp>"): "may not use boost",
        ("services/router/a.cc", '#include "services/decode/x/b.h"'): "may not use services/decode",
        ("common/kv/a.h", '#include "tests/support/x.h"'): "product code includes",
        ("common/kv/a.h", '#include "b.h"'): "path from the root",
        ("common/odd/a.h", ""): "no line in the table",
        ("common/kv/a.cuh", "#include <cuda_runtime.h>"): None,
        ("common/kv/a.h", "#include <cuda_runtime.h>"): "may not use cuda",
        ("common/kv/a.cu", '#include "absl/status/status.h"'): "code for GPUs includes",
    }
    for (name, include), want in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path in ("docs/architecture.md", "common/base/z.h", "common/kv/z.h",
                         "services/decode/x/z.h", "services/router/z.h", name):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("")
            (root / "docs/architecture.md").write_text(table)
            (root / name).write_text(include + "\n")
            problems, _ = check(root)
            if want is None:
                assert not problems, (name, include, problems)
            else:
                assert len(problems) == 1 and want in problems[0], (name, include, problems)
    print(f"{len(cases)} cases")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    problems, count = check(pathlib.Path(sys.argv[1]))
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
