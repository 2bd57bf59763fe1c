"""Writes a Hugging Face checkpoint of random bf16 weights, and the same as a GGUF file.

All engines run the same file, in the block that Lynx serves (Qwen3-MoE), with the dimensions of the
shape. Weights are uniform with a deviation of 0.02, norms are ones; the router is random too.
Embeddings are 64 times as large: what attention adds, which is much alike for all rows, would else
drown them, and rows would share their experts. So rows spread over the experts nearly evenly.
"""
import json
import pathlib
import struct

import numpy as np

SHAPES = {
    "olmoe-1b-7b": dict(
        vocab_size=50304, hidden_size=2048, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=16, head_dim=128, max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_theta=10000.0, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=1024,
        norm_topk_prob=False),
    "qwen3-30b-a3b": dict(
        vocab_size=151936, hidden_size=2048, num_hidden_layers=48, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6,
        rope_theta=1000000.0, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        norm_topk_prob=True),
    "mixtral-8x7b": dict(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=32768, rms_norm_eps=1e-5,
        rope_theta=1000000.0, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=14336,
        norm_topk_prob=True),
}
FIXED = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu",
    attention_bias=False, attention_dropout=0.0, decoder_sparse_step=1, mlp_only_layers=[],
    tie_word_embeddings=False, use_sliding_window=False, use_cache=True, torch_dtype="bfloat16",
    router_aux_loss_coef=0.001, initializer_range=0.02, output_router_logits=False,
    sliding_window=None, max_window_layers=0, rope_scaling=None, bos_token_id=0, eos_token_id=0)
ONE = 0x3F80  # bf16
HALF_WIDTH = 0.0346  # Of a uniform distribution of deviation 0.02.
EMBEDDING_EXPONENT = 6


def config_of(shape, layers):
    config = {**FIXED, **SHAPES[shape]}
    config["intermediate_size"] = 3 * config["moe_intermediate_size"]
    if layers:
        config["num_hidden_layers"] = layers
    return config


def layer_tensors(config, layer):
    """Names without the layer's prefix, and shapes."""
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    tensors = {
        "input_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [q, hidden],
        "self_attn.k_proj.weight": [kv, hidden],
        "self_attn.v_proj.weight": [kv, hidden],
        "self_attn.o_proj.weight": [hidden, q],
        "self_attn.q_norm.weight": [config["head_dim"]],
        "self_attn.k_norm.weight": [config["head_dim"]],
        "post_attention_layernorm.weight": [hidden],
        "mlp.gate.weight": [config["num_experts"], hidden],
    }
    for expert in range(config["num_experts"]):
        tensors[f"mlp.experts.{expert}.gate_proj.weight"] = [inner, hidden]
        tensors[f"mlp.experts.{expert}.up_proj.weight"] = [inner, hidden]
        tensors[f"mlp.experts.{expert}.down_proj.weight"] = [hidden, inner]
    return {f"model.layers.{layer}.{name}": shape for name, shape in tensors.items()}


def shards(config):
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    yield {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden],
           "lm_head.weight": [vocab, hidden]}
    for layer in range(config["num_hidden_layers"]):
        yield layer_tensors(config, layer)


def random_bf16(rng, count):
    values = rng.uniform(-HALF_WIDTH, HALF_WIDTH, count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def scaled(bits, exponent):
    """bf16 times a power of two."""
    values = (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(2 ** exponent)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_checkpoint(shape, layers, folder, seed=1):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(shape, layers)
    rng = np.random.default_rng(seed)
    # Drawn once; each tensor starts at another place of it.
    pool = np.tile(random_bf16(rng, 16_000_003), 2)
    weight_map, total = {}, 0
    all_shards = list(shards(config))
    for number, tensors in enumerate(all_shards):
        name = f"model-{number + 1:05}-of-{len(all_shards):05}.safetensors"
        header, offset = {}, 0
        for tensor, size in tensors.items():
            end = offset + 2 * int(np.prod(size))
            header[tensor] = {"dtype": "BF16", "shape": size, "data_offsets": [offset, end]}
            weight_map[tensor], offset = name, end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor, size in tensors.items():
                left = int(np.prod(size))
                if len(size) == 1:
                    file.write(np.full(left, ONE, np.uint16).tobytes())
                    continue
                while left:
                    start = int(rng.integers(0, len(pool) // 2))
                    part = pool[start:start + min(left, len(pool) // 2)]
                    if tensor == "model.embed_tokens.weight":
                        part = scaled(part, EMBEDDING_EXPONENT)
                    file.write(part.tobytes())
                    left -= len(part)
        total += offset
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return total


def read_tensors(folder):
    """Name and array of bf16 bits of every tensor, mapped."""
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", 8 + length)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            yield name, data[begin:end].view(np.uint16).reshape(entry["shape"])


def write_gguf(folder, path):
    import gguf

    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    tensors = dict(read_tensors(folder))
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)

    names = {"model.embed_tokens.weight": "token_embd.weight",
             "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    in_layer = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
                "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
                "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
                "mlp.gate": "ffn_gate_inp"}
    parts = [(ours, [tensors[theirs]]) for theirs, ours in names.items()]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        parts += [(f"blk.{layer}.{ours}.weight", [tensors[f"{prefix}{theirs}.weight"]])
                  for theirs, ours in in_layer.items()]
        parts += [(f"blk.{layer}.ffn_{part}_exps.weight",
                   [tensors[f"{prefix}mlp.experts.{expert}.{part}_proj.weight"]
                    for expert in range(config["num_experts"])])
                  for part in ("gate", "up", "down")]

    def is_float(name, arrays):  # Norms and the router are, in files of this format.
        return arrays[0].ndim == 1 or name.endswith("ffn_gate_inp.weight")

    for name, arrays in parts:
        shape = list(arrays[0].shape)
        if name.endswith("_exps.weight"):
            shape.insert(0, len(arrays))
        if is_float(name, arrays):
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        else:
            shape[-1] *= 2  # Bytes: the type says how many make an element.
            writer.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)),
                                   raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, arrays in parts:  # One at a time: together they are the model.
        if is_float(name, arrays):
            writer.write_tensor_data((arrays[0].astype(np.uint32) << 16).view(np.float32))
        else:
            writer.write_tensor_data(np.stack(arrays).view(np.uint8))
    writer.close()
