"""Writes the demo model with the dimensions of OLMoE-1B-7B: 2048 wide, 16 heads of 128, experts of 1024.

What is added is zeros, so it routes and answers as before (but for rounding), while a step reads what a layer
of OLMoE makes it read. Random weights would not do: their routers spread tokens evenly, and what remapping saves
goes by how trained ones do. The file has holes for the zeros and takes a tenth of its length on disk.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct

OLMOE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
         "moe_intermediate_size": 1024, "intermediate_size": 3072}
BYTES = 2  # Of a bf16.


def read_header(file):
    """The tensors' entries, and where the data begins."""
    length = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def scaled(data, factor):
    """bf16 times a number, rounded to the nearest."""
    out = bytearray()
    for (bits,) in struct.iter_unpack("<H", data):
        value = struct.unpack("<f", struct.pack("<I", bits << 16))[0] * factor
        wide = struct.unpack("<I", struct.pack("<f", value))[0]
        out += struct.pack("<H", (wide + 0x7FFF + (wide >> 16 & 1)) >> 16)
    return bytes(out)


class Widener:
    def __init__(self, narrow, wide):
        self.narrow, self.wide = narrow, wide
        self.heads, self.head_dim = narrow["num_attention_heads"], narrow["head_dim"]
        self.group = self.heads // narrow["num_key_value_heads"]
        # Rotated pairs (i, i + n / 2) go where the wider head rotates at the same speed.
        half, step = self.head_dim // 2, wide["head_dim"] // self.head_dim
        self.rotated = [i * step for i in range(half)] + [wide["head_dim"] // 2 + i * step for i in range(half)]

    def shape(self, name, narrow):
        heads = self.wide["num_attention_heads"] * self.wide["head_dim"]
        hidden, inner = self.wide["hidden_size"], self.wide["moe_intermediate_size"]
        kind = name.split(".")[-2]
        if kind in ("q_norm", "k_norm"):
            return [self.wide["head_dim"]]
        return {"q_proj": [heads, hidden], "k_proj": [heads, hidden], "v_proj": [heads, hidden],
                "o_proj": [hidden, heads], "gate_proj": [inner, hidden], "up_proj": [inner, hidden],
                "down_proj": [hidden, inner]}.get(kind, [*narrow[:-1], hidden])

    def parts(self, name, shape, data):
        """(row, column, bytes) of what is not zero."""
        kind = name.split(".")[-2]
        if kind in ("q_norm", "k_norm"):
            # Over more dimensions the mean square is less, for both; scores are scaled by 1 / sqrt(head_dim).
            share = self.head_dim / self.wide["head_dim"]
            data = scaled(data, 1 if kind == "q_norm" else math.sqrt(share))
            return [(0, place, data[BYTES * i:BYTES * (i + 1)]) for i, place in enumerate(self.rotated)]
        if len(shape) == 1:
            return [(0, 0, scaled(data, math.sqrt(self.narrow["hidden_size"] / self.wide["hidden_size"])))]
        width = BYTES * shape[1]
        rows = [data[i:i + width] for i in range(0, len(data), width)]
        if kind in ("q_proj", "k_proj", "v_proj"):
            places = range(self.head_dim) if kind == "v_proj" else self.rotated
            group = 1 if kind == "q_proj" else self.group  # Every head of the wide model has its own keys and values.
            return [(head * self.wide["head_dim"] + place, 0, rows[head // group * self.head_dim + i])
                    for head in range(self.heads) for i, place in enumerate(places)]
        if kind == "o_proj":
            head = BYTES * self.head_dim
            return [(row, i * self.wide["head_dim"], values[i * head:(i + 1) * head])
                    for row, values in enumerate(rows) for i in range(self.heads)]
        return [(row, 0, values) for row, values in enumerate(rows)]


def write_wide(source, target, wide=OLMOE):
    """Returns the bytes of weights."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    widener = Widener(config, wide)
    with open(source / "model.safetensors", "rb") as narrow, open(target / "model.safetensors", "wb") as file:
        entries, begin = read_header(narrow)
        header, size = {}, 0
        for name, entry in entries.items():
            shape = widener.shape(name, entry["shape"])
            end = size + BYTES * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
            size = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in entries.items():
            narrow.seek(begin + entry["data_offsets"][0])
            data = narrow.read(entry["data_offsets"][1] - entry["data_offsets"][0])
            start = 8 + len(text) + header[name]["data_offsets"][0]
            for row, column, part in widener.parts(name, entry["shape"], data):
                file.seek(start + BYTES * (row * header[name]["shape"][-1] + column))
                file.write(part)
        file.truncate(8 + len(text) + size)
    (target / "config.json").write_text(json.dumps({**config, **wide}, indent=1))
    for path in source.glob("*.json"):
        if path.name != "config.json":
            shutil.copy(path, target / path.name)
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="folder of the demo model")
    parser.add_argument("target", help="folder to write")
    arguments = parser.parse_args()
    print(f"{write_wide(arguments.source, arguments.target) / 1e9:.1f} GB")
