"""Nodes and `lynx inspect` before folders whose weights are incomplete, damaged or not alone."""
import json
import shutil
import subprocess
import time

import pytest

import tiny_folder
from cluster import BIN, Process, fetch, wait_for

SHARDS = [f"part-{i}.weights" for i in range(3)]
# Generous where others use the machine, far below the time that loading a model may take.
SECONDS = 30


def split(path):
    """[(header, data)] of the tensors of a safetensors file, in three parts."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    parts = [({}, b"") for _ in SHARDS]
    for i, (name, entry) in enumerate(sorted(header.items())):
        begin, end = entry["data_offsets"]
        tensors, data = parts[i % len(parts)]
        tensors[name] = {**entry, "data_offsets": [len(data), len(data) + end - begin]}
        parts[i % len(parts)] = (tensors, data + raw[8 + length + begin:8 + length + end])
    return parts


@pytest.fixture
def model(tmp_path):
    """A sound folder of three shards under unusual names."""
    folder = tiny_folder.write_folder(tmp_path, "mixtral")
    parts = split(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard, (tensors, data) in zip(SHARDS, parts):
        header = json.dumps(tensors).encode()
        (folder / shard).write_bytes(len(header).to_bytes(8, "little") + header + data)
        weight_map.update({name: shard for name in tensors})
    tiny_folder.write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def delete(folder):
    (folder / SHARDS[1]).unlink()
    return [SHARDS[1]]


def truncate(folder):
    path = folder / SHARDS[2]
    path.write_bytes(path.read_bytes()[:-1])
    return [SHARDS[2], "1 bytes short"]


def empty(folder):
    (folder / SHARDS[0]).write_bytes(b"")
    return [SHARDS[0], "empty"]


def pointer(folder):
    (folder / SHARDS[1]).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n")
    return [SHARDS[1], "not a safetensors file"]


def several(folder):
    return delete(folder) + truncate(folder) + empty(folder)


def name_absent(folder):
    path = folder / "model.safetensors.index.json"
    index = tiny_folder.read_json(path)
    index["weight_map"]["model.absent.weight"] = SHARDS[0]
    tiny_folder.write_json(path, index)
    return ["model.absent.weight", SHARDS[0]]


@pytest.mark.parametrize("damage", [delete, truncate, empty, pointer, several, name_absent])
def test_a_node_ends_at_once_naming_the_files(model, tmp_path, damage):
    words = damage(model)
    began = time.monotonic()
    nodes = [Process(tmp_path, role, f"lynx-{role}", "--model", model, "--control", "127.0.0.1:0",
                     "--http", "127.0.0.1:0", "--threads", 1) for role in ("prefill", "decode")]
    for node in nodes:
        wait_for(lambda: node.process.poll() is not None, SECONDS, f"end of {node.name}")
        assert node.process.returncode == 1, node.log()
        assert not node.announce.exists(), "never ready"
        assert '"ready"' not in node.log()
        for word in words:
            assert word in node.log(), node.log()
    assert time.monotonic() - began < SECONDS
    inspected = subprocess.run([BIN / "lynx", "inspect", model], capture_output=True, text=True, timeout=SECONDS)
    assert inspected.returncode == 1, inspected
    for word in words:
        assert word in inspected.stdout, inspected.stdout


def test_stray_files_are_told_once_and_not_read(model, tmp_path):
    (model / "model.safetensors").write_bytes(b"rubbish")
    (model / "original").mkdir()
    for shard in SHARDS:
        shutil.copy(model / shard, model / "original")
    node = Process(tmp_path, "decode", "lynx-decode", "--model", model, "--control", "127.0.0.1:0",
                   "--http", "127.0.0.1:0", "--threads", 1, "--kv-memory", "16MiB").wait_announced()
    assert fetch(node.url("/readyz"))[0] in (200, 503)
    assert node.log_path.read_text().count("weight files beside the model's own are not used: model.safetensors") == 1
    maps = open(f"/proc/{node.process.pid}/maps").read()
    assert "rubbish" not in maps and str(model / "model.safetensors") not in maps and "original" not in maps
    assert node.stop() == 0


def test_a_tokenizer_of_more_ids_than_the_model_has(model):
    tokenizer = tiny_folder.read_json(model / "tokenizer.json")
    vocab_size = tiny_folder.read_json(model / "config.json")["vocab_size"]
    tokenizer["added_tokens"].append({"id": vocab_size, "content": "<extra>", "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False, "special": True})
    tiny_folder.write_json(model / "tokenizer.json", tokenizer)
    done = subprocess.run([BIN / "lynx-router", "--model", model, "--listen", "127.0.0.1:0", "--prefill", "127.0.0.1:1",
                           "--decode", "127.0.0.1:2"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert f"tokenizer.json has ids up to {vocab_size}; vocab_size of config.json is {vocab_size}" in done.stdout + done.stderr
