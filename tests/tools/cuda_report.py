#!/usr/bin/env python3
"""Compiles the kernels for one GPU and says what they take of it: registers, spills, shared memory,
blocks and warps that a multiprocessor holds. Fails where a kernel spills, or where the experts' kernel
does not read 16 bytes at a time.

usage: cuda_report.py NVCC ROOT [--arch 90] [--write FILE]
  --write  puts the table between the markers of FILE
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# Of a multiprocessor: registers, bytes of shared memory and warps; from the CUDA programming guide.
LIMITS = {
    "80": (65536, 164 << 10, 64),
    "90": (65536, 228 << 10, 64),
    "100": (65536, 228 << 10, 64),
    "120": (65536, 100 << 10, 48),
}
RESERVED = 1 << 10  # Shared memory that a block takes beside its own.
# What launches say and ptxas cannot know: threads of a block, and dynamic shared memory.
PANEL_SHARED = 8 * 64 * 33 * 4
TILE_SHARED = 4 * 2 * (8 << 10)
LAUNCHES = {
    "RankRows": (128, 0),
    "Vote": (128, 0),
    "AssignRows": (128, 0),
    "SelectSets": (1024, 0),
    "GroupRows": (1024, 0),
    "ExpertFfnKernel": (256, PANEL_SHARED),
    "ExpertGateTiles": (256, TILE_SHARED),
    "ExpertDownTiles": (256, TILE_SHARED),
    "ExpertCombine": (256, 0),
    "AttentionSplits": (256, (8 * (128 + 128 + 256 + 6) + 256 * 8) * 4),  # head_dim 128
    "AttentionTiles": (256, 2 * 16 * 136 + 4 * 16 * (128 + 8 * 70) + 16 * 36 + 32),  # head_dim 128
    "AttentionMerge": (256, 0),
    "SummarizeBlocks": (256, 0),
    "WeighBlocks": (256, 0),
    "DrawTokens": (256, 0),
    "GemmPanels": (256, PANEL_SHARED),
    "GemmTiles": (256, TILE_SHARED),
    "EmbedKernel": (256, 0),
    **dict.fromkeys(("ClipKernel", "GrowKernel", "GateWeightsKernel", "GatherRowsKernel"), (256, 0)),
    "CastKernel": (256, 0),
    "RmsNormKernel": (256, 0),
    "RopeKernel": (128, 0),
    "KvCopyKernel": (256, 0),
    "KvWriteKernel": (128, 0),
    "LatentWriteKernel": (128, 0),
}


def compile_kernels(nvcc, root, arch, out, *options):
    command = [nvcc, "-std=c++20", f"-I{root}", "-fmad=false", f"-arch=sm_{arch}", *options,
               str(root / "kernels/cuda/device_kernels.cu"), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stderr


def demangle(name):
    """('ExpertFfnKernel', 'ExpertFfnKernel<bf16, no, 4>') of a mangled name."""
    base = next((each for each in LAUNCHES if each in name), name)
    after = name.split(base, 1)[-1]
    if not after.startswith("I"):
        return base, base
    words = {"t": "bf16", "f": "f32", "Lb0E": "no", "Lb1E": "yes", "NS1_7F16BitsE": "f16"}
    parts = re.findall(r"NS1_7F16BitsE|Lb[01]E|Li\d+E|[tf]", after[1:].split("EEv")[0] + "E")
    return base, f"{base}<{', '.join(words.get(part, part[2:-1]) for part in parts)}>"


def occupancy(arch, threads, registers, shared):
    registers_there, shared_there, warps_there = LIMITS[arch]
    warps = threads // 32
    per_warp = (registers * 32 + 255) // 256 * 256
    blocks = min(registers_there // (per_warp * warps), shared_there // (shared + RESERVED),
                 warps_there // warps)
    return blocks, blocks * warps / warps_there


def read_ptxas(text):
    """name -> (registers, spilled bytes, static shared memory)"""
    kernels = {}
    for part in re.split(r"Compiling entry function '", text)[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        kernels[part.split("'")[0]] = (int(used.group(1)), int(spills.group(1)) + int(spills.group(2)),
                                       int(shared.group(1)) if shared else 0)
    return kernels


def wide_loads(ptx):
    """Of each kernel of experts whose activations and weights are bf16: its loads from global memory by kind."""
    kernels = {}
    for entry in re.finditer(r"\.entry (\w*ExpertFfnKernelItt\w*)\(.*?\n\}\n", ptx, re.S):
        kernels[entry.group(1)] = collections.Counter(
            re.findall(r"\b(?:ld\.global[.\w]*|cp\.async\.\w+\.shared\.global \[[^\]]*\], \[[^\]]*\], \d+)",
                       entry.group(0)))
    return kernels


def narrow(load):
    return re.search(r"\.(u8|u16|b16|s16|s8)$", load) is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--arch", default="90", choices=LIMITS)
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        kernels = read_ptxas(compile_kernels(args.nvcc, args.root, args.arch, out / "k.o", "-c",
                                             "-Xptxas", "-v"))
        compile_kernels(args.nvcc, args.root, args.arch, out / "k.ptx", "-ptx")
        ptx = (out / "k.ptx").read_text()
    lines = ["| kernel | threads | registers | spilled bytes | shared memory, KiB | blocks | occupancy |",
             "|---|---|---|---|---|---|---|"]
    rows = []
    for name, (registers, spilled, static) in kernels.items():
        base, shown = demangle(name)
        if base not in LAUNCHES:
            problems.append(f"{name}: no launch is known; add it to LAUNCHES")
            continue
        threads, dynamic = LAUNCHES[base]
        blocks, share = occupancy(args.arch, threads, registers, static + dynamic)
        rows.append(f"| `{shown}` | {threads} | {registers} | {spilled} | "
                    f"{(static + dynamic) / 1024:.1f} | {blocks} | {100 * share:.0f} % |")
        if spilled:
            problems.append(f"{shown} spills {spilled} bytes of registers")
        if blocks == 0:
            problems.append(f"{shown} does not fit a multiprocessor")
    lines += sorted(rows)
    loads = wide_loads(ptx)
    if not loads:
        problems.append("no kernel of experts in the PTX")
    for name, kinds in loads.items():
        wide = sum(count for load, count in kinds.items() if ".v4" in load)
        copies = [load for load in kinds if load.startswith("cp.async")]
        if not wide or not copies or any(not copy.endswith(", 16") for copy in copies):
            problems.append(f"{name}: loads are not of 16 bytes: {dict(kinds)}")
        if any(narrow(load) for load in kinds):
            problems.append(f"{name}: elements are loaded one by one: {dict(kinds)}")
    table = "\n".join(lines)
    if args.write:
        text = args.write.read_text()
        begin, end = f"<!-- kernels sm_{args.arch} -->", f"<!-- /kernels sm_{args.arch} -->"
        head, rest = text.split(begin)
        args.write.write_text(f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}")
    else:
        print(table)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
