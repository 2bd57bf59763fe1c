#!/usr/bin/env python3
"""Writes the golden fixture of a model: what Hugging Face transformers computes in float32.

    python3 tests/golden/make_golden.py [VARIANT ...]

needs torch, transformers and tokenizers. Writes tests/golden/lynx-tiny-moe.json (token ids,
positions, greedy continuations) and .bin: little-endian float32, in the order and at the offsets
the JSON names. Then random models of every family in odd shapes, each a folder
tests/golden/variants/<name> as transformers saves it, with the same pair of files beside it; of
named variants, only those are written. And config_defaults.json: what transformers takes for keys
that a config.json lacks. The fixtures are the authority on
correctness; nothing of this repository computes them.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

TEXTS = [
    "And the LORD said unto Moses, ",
    "<|im_start|>user\nWhat is 58+27?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "static int __init ",
    "import os\n\ndef main(argv):\n    for name in argv:\n        print(os.path.",
    "<|im_start|>user\nSort: 42 7 19 88<|im_end|>\n<|im_start|>assistant\n",
    "a",
]
LONG_TEXT_TOKENS = 330
GREEDY_TOKENS = 64
TOP = 16


def long_text(root, tokenizer):
    """More than 300 tokens of held-out documents."""
    ids = []
    for line in (root / "models/eval/text-prose.jsonl").read_text().splitlines():
        ids += tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
        if len(ids) >= LONG_TEXT_TOKENS:
            return ids[:LONG_TEXT_TOKENS]
    raise SystemExit("models/eval/text-prose.jsonl is too short")


@torch.no_grad()
def greedy(model, ids):
    tokens, gaps = [], []
    logits = model(torch.tensor([ids]), use_cache=True)
    past = logits.past_key_values
    for _ in range(GREEDY_TOKENS):
        last = logits.logits[0, -1]
        best = torch.topk(last, 2).values
        tokens.append(int(torch.argmax(last)))
        gaps.append(float((best[0] - best[1]) / last.abs().max()))
        logits = model(torch.tensor([[tokens[-1]]]), past_key_values=past, use_cache=True)
        past = logits.past_key_values
    return tokens, gaps


DEFAULT = object()  # Leaves a size to the family.
# A deviation of 0.15 at a width of 36 lets values grow as 0.02 does at the 2048 of a real model.
# Odd sizes everywhere, and between the variants of a family every switch it has. "type" is the
# model_type; sizes that a family does not take under these names are its own.
SIZES = dict(
    vocab_size=97, hidden_size=36, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=10, max_position_embeddings=128, initializer_range=0.15,
    eos_token_id=96, pad_token_id=None,
)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20)
LATENTS = dict(
    head_dim=DEFAULT, num_key_value_heads=4, kv_lora_rank=26, qk_nope_head_dim=14,
    qk_rope_head_dim=8, v_head_dim=12,
)
VARIANTS = {
    "deepseek-v2": dict(
        type="deepseek_v2", **LATENTS, q_lora_rank=None, n_routed_experts=6, n_shared_experts=2,
        num_experts_per_tok=2, moe_intermediate_size=20, num_hidden_layers=3,
        first_k_dense_replace=1, routed_scaling_factor=1.6, topk_method="greedy",
        norm_topk_prob=False, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=0.707, mscale_all_dim=0.707,
            original_max_position_embeddings=32),
    ),
    "deepseek-v2-grouped": dict(
        type="deepseek_v2", **LATENTS, q_lora_rank=18, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, moe_intermediate_size=20, first_k_dense_replace=0,
        routed_scaling_factor=2.0, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        norm_topk_prob=False, tie_word_embeddings=True,
    ),
    "deepseek-v3": dict(
        type="deepseek_v3", seed=10, **LATENTS, q_lora_rank=22, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, moe_intermediate_size=20, num_hidden_layers=3,
        first_k_dense_replace=1, routed_scaling_factor=2.5, n_group=4, topk_group=2,
        norm_topk_prob=True, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.5,
            original_max_position_embeddings=32),
    ),
    # Weights in e4m3 with a scale for each block; of blocks that do not divide the sizes.
    "deepseek-v3-fp8": dict(
        type="deepseek_v3", fp8_block=[16, 24], **LATENTS, q_lora_rank=22, n_routed_experts=6,
        n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=20,
        first_k_dense_replace=1, routed_scaling_factor=1.5, n_group=3, topk_group=2,
        norm_topk_prob=True,
    ),
    "deepseek-v3-plain": dict(
        # Sizes that the products of bf16 take, and room for more than one split of a sequence.
        type="deepseek_v3", **{**LATENTS, "kv_lora_rank": 64, "qk_rope_head_dim": 32},
        max_position_embeddings=512, q_lora_rank=None, n_routed_experts=4, n_shared_experts=2,
        num_experts_per_tok=2, moe_intermediate_size=20, first_k_dense_replace=0,
        routed_scaling_factor=1.3, n_group=1, topk_group=1, norm_topk_prob=False,
    ),
    "dense-untied-f32": dict(
        type="qwen3_moe", seed=10, **EXPERTS, num_hidden_layers=3, mlp_only_layers=[1],
        norm_topk_prob=False, tie_word_embeddings=False,
    ),
    "sparse-step-tied-f16": dict(
        type="qwen3_moe", **EXPERTS, dtype=torch.float16, decoder_sparse_step=2,
        norm_topk_prob=True, tie_word_embeddings=True, num_key_value_heads=1,
    ),
    "glm4-moe": dict(
        type="glm4_moe", n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, n_group=3,
        topk_group=2, moe_intermediate_size=20, num_hidden_layers=3, first_k_dense_replace=1,
        routed_scaling_factor=1.7, attention_bias=True, head_dim=12, use_qk_norm=True,
        norm_topk_prob=True,
    ),
    "glm4-moe-plain": dict(
        type="glm4_moe", n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=3, n_group=1,
        topk_group=1, moe_intermediate_size=20, first_k_dense_replace=0, head_dim=12,
        norm_topk_prob=False,
    ),
    "gpt-oss": dict(
        type="gpt_oss", max_position_embeddings=512, num_local_experts=5, num_experts_per_tok=2, sliding_window=8,
        num_hidden_layers=3, layer_types=["sliding_attention", "full_attention"] + ["sliding_attention"],
        rope_parameters=dict(
            rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32,
            beta_fast=32.0, beta_slow=1.0, truncate=False),
    ),
    # As released: experts in MXFP4, the rest in bf16. Three blocks in a row of one product, two in
    # one of the other.
    "gpt-oss-mxfp4": dict(
        type="gpt_oss", mxfp4=True, dtype=torch.bfloat16, hidden_size=96, intermediate_size=64,
        initializer_range=0.09, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
            rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32,
            beta_fast=32.0, beta_slow=1.0, truncate=False),
    ),
    "granitemoe": dict(
        type="granitemoe", attention_bias=True, head_dim=DEFAULT, num_attention_heads=6, num_local_experts=5,
        num_experts_per_tok=2, embedding_multiplier=6.0, attention_multiplier=0.3,
        residual_multiplier=0.7, logits_scaling=3.0, tie_word_embeddings=True,
    ),
    "granitemoeshared": dict(
        type="granitemoeshared", head_dim=DEFAULT, num_attention_heads=6, num_local_experts=5,
        num_experts_per_tok=2, embedding_multiplier=6.0, attention_multiplier=0.3,
        residual_multiplier=0.6, shared_intermediate_size=28,
    ),
    "llama": dict(type="llama"),
    "llama3-scaled": dict(
        type="llama", head_dim=16, rope_parameters=dict(
            rope_type="llama3", rope_theta=200.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-biased": dict(type="llama", attention_bias=True, tie_word_embeddings=True),
    "llama4": dict(
        type="llama4_text", wrapped="llama4", attention_bias=True, max_position_embeddings=512, head_dim=12, num_local_experts=5, num_experts_per_tok=2,
        intermediate_size=20, intermediate_size_mlp=44, num_hidden_layers=5,
        interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=16,
        attn_temperature_tuning=True, floor_scale=8, attn_scale=0.3,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=200.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=1.0, original_max_position_embeddings=32),
    ),
    "llama4-text": dict(
        type="llama4_text", head_dim=12, num_local_experts=4, num_experts_per_tok=1,
        intermediate_size=20, intermediate_size_mlp=44, use_qk_norm=False,
        no_rope_layers=[0, 1], attention_chunk_size=DEFAULT, attn_temperature_tuning=False,
    ),
    "mistral": dict(type="mistral", sliding_window=None),
    # Windows that prompts and decoding leave well behind, of no whole number of blocks.
    "mistral-window": dict(type="mistral", max_position_embeddings=512, sliding_window=11),
    "mixtral": dict(type="mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    "mixtral-window": dict(
        type="mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=16,
    ),
    "olmoe": dict(
        type="olmoe", head_dim=DEFAULT, num_attention_heads=6, num_experts=5, num_experts_per_tok=2,
    ),
    "olmoe-clipped": dict(
        type="olmoe", head_dim=DEFAULT, num_attention_heads=6, num_key_value_heads=6, num_experts=5,
        num_experts_per_tok=3, clip_qkv=0.7, norm_topk_prob=True,
    ),
    "qwen2": dict(type="qwen2", head_dim=DEFAULT, num_attention_heads=6),
    "qwen2-late-windows": dict(
        type="qwen2", head_dim=DEFAULT, num_attention_heads=6, num_hidden_layers=3,
        use_sliding_window=True, sliding_window=9, max_window_layers=1, unsaid=["layer_types"],
    ),
    "qwen2-layer-types": dict(
        type="qwen2", head_dim=DEFAULT, num_attention_heads=6, use_sliding_window=True,
        sliding_window=21, layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen2-moe": dict(
        type="qwen2_moe", **EXPERTS, head_dim=DEFAULT, num_attention_heads=6, num_hidden_layers=3,
        mlp_only_layers=[1], shared_expert_intermediate_size=28,
    ),
    "qwen2-moe-windows": dict(
        type="qwen2_moe", **EXPERTS, head_dim=DEFAULT, num_attention_heads=6, num_hidden_layers=4,
        shared_expert_intermediate_size=28, use_sliding_window=True, sliding_window=13,
        max_window_layers=3, unsaid=["layer_types"],
    ),
    "qwen3": dict(type="qwen3"),
    "qwen3-window": dict(
        type="qwen3", use_sliding_window=True, sliding_window=10, max_window_layers=1,
    ),
    "qwen3-moe-window": dict(
        type="qwen3_moe", **EXPERTS, norm_topk_prob=True, use_sliding_window=True,
        sliding_window=10,
    ),
    "qwen3-moe-fp8": dict(
        type="qwen3_moe", fp8_block=[24, 16], **EXPERTS, mlp_only_layers=[0], norm_topk_prob=True,
    ),
    "qwen3-yarn": dict(
        type="qwen3", head_dim=16, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32),
    ),
}


def write_variant(options, folder, seed):
    torch.manual_seed(seed)
    options = {**SIZES, **options}
    options.pop("seed", None)
    options.pop("fp8_block", None)
    options.pop("mxfp4", None)
    options.pop("wrapped", None)
    dtype = options.pop("dtype", torch.float32)
    unsaid = options.pop("unsaid", [])  # Keys that transformers writes and older releases lack.
    config = transformers.AutoConfig.for_model(
        options.pop("type"), **{key: value for key, value in options.items() if value is not DEFAULT})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # Ones would hide a missing gain, zeros a bias.
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
            elif parameter.dim() == 1 or name.endswith("_bias"):
                torch.nn.init.uniform_(parameter, -0.5, 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                torch.nn.init.uniform_(buffer, -0.3, 0.3)
    model.to(dtype).save_pretrained(folder)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    for key in unsaid:
        del saved[key]
    path.write_text(json.dumps(saved, indent=2) + "\n")


def wrap(folder, model_type):
    """Makes a text model a part of a multimodal one, as such are released."""
    weights = folder / "model.safetensors"
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(weights).items()}
    tensors["vision_model.class_embedding"] = torch.zeros(4)
    save_file(tensors, weights)
    config = folder / "config.json"
    text = json.loads(config.read_text())
    config.write_text(json.dumps({"model_type": model_type, "text_config": text}, indent=2) + "\n")


def quantise(folder, block):
    """Quantises the linear layers of `folder`; returns a folder of what their weights now are."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    exact = {}
    for name, weight in list(tensors.items()):
        if not name.endswith("_proj.weight") and "kv_a_proj" not in name:
            exact[name] = weight
            continue
        rows, columns = weight.shape
        scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
        expanded = torch.empty(rows, columns)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
                scales[i, j] = weight[part].abs().max() / 448
                expanded[part] = scales[i, j]
        tensors[name] = (weight / expanded).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scales
        exact[name] = (tensors[name].float() * expanded).bfloat16()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    dequantised = pathlib.Path(tempfile.mkdtemp())
    shutil.copy(folder / "config.json", dequantised)
    safetensors.torch.save_file(exact, dequantised / path.name, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": block}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return dequantised


MXFP4_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantise_to_mxfp4(folder):
    """Puts the experts of `folder` into MXFP4, which transformers read themselves."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        # The checkpoint has a row of every output, in blocks of 32 inputs, two of them in a byte.
        blocks = tensors.pop(name).float().transpose(1, 2).unflatten(-1, (-1, 32))
        # Of very different sizes, so that no scale can be mistaken for another.
        blocks = blocks * torch.exp2(torch.randint(-3, 2, blocks.shape[:-1]).float()).unsqueeze(-1)
        # The largest code is 1.5 * 2^2.
        exponents = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
        scaled = blocks / torch.exp2(exponents).unsqueeze(-1)
        codes = (scaled.abs().unsqueeze(-1) - MXFP4_MAGNITUDES).abs().argmin(-1)
        codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
        tensors[name + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[name + "_scales"] = (exponents + 127).to(torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(model_dir, dtype):
    options = {}
    if json.loads((model_dir / "config.json").read_text()).get("quantization_config"):
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, attn_implementation="eager", experts_implementation="eager", **options
    ).eval()


@torch.no_grad()
def all_logits(model, ids):
    return model(torch.tensor([ids])).logits[0].float()


def write_fixture(model_dir, prompts, output, full_positions):
    model, rounded = load(model_dir, torch.float32), load(model_dir, torch.bfloat16)
    values, entries, divergences, offset = [], [], [], 0
    for ids in prompts:
        exact = all_logits(model, ids)
        divergences += torch.nn.functional.kl_div(
            all_logits(rounded, ids).log_softmax(-1), exact.log_softmax(-1), log_target=True,
            reduction="none").sum(-1).tolist()
        logits = exact.numpy().astype("<f4")
        full = full_positions(len(ids))
        top_ids = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        largest = np.abs(logits).max(axis=1)
        entry = {"tokens": ids, "full_positions": full, "full_offset": offset}
        values.append(logits[full].ravel())
        offset += values[-1].size
        entry["top_ids"] = top_ids.tolist()
        entry["top_offset"] = offset
        values.append(np.take_along_axis(logits, top_ids, axis=1).ravel())
        offset += values[-1].size
        entry["largest_offset"] = offset
        values.append(largest)
        offset += largest.size
        entry["greedy"], gaps = greedy(model, ids)
        entry["greedy_gaps"] = [float(f"{gap:.3g}") for gap in gaps]
        entries.append(entry)

    data = np.concatenate(values).astype("<f4")
    output.with_suffix(".bin").write_bytes(data.tobytes())
    fixture = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__,
                      "dtype": "float32", "attention": "eager"},
        "vocab_size": model.config.vocab_size,
        "top": TOP,
        "values": int(data.size),
        # What rounding to bf16 costs transformers themselves.
        "bf16_divergence": {"mean": sum(divergences) / len(divergences), "max": max(divergences)},
        "prompts": entries,
    }
    output.with_suffix(".json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(f"{output}: {len(prompts)} prompts, {data.nbytes} bytes of logits, smallest greedy gap",
          min(min(e["greedy_gaps"]) for e in entries))
    return max(divergences)


def write_demo_model(golden):
    root = golden.parents[1]
    model = root / "models/lynx-tiny-moe"
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    prompts.append(long_text(root, tokenizer))
    write_fixture(model, prompts, golden / "lynx-tiny-moe", lambda n: sorted({0, n // 2, n - 1}))


def write_config_defaults(output):
    """What every family takes for a key that its config.json does not have."""
    defaults = {}
    for model_type in sorted({options["type"] for options in VARIANTS.values()}):
        made = transformers.AutoConfig.for_model(model_type)
        values = defaults[model_type] = {}
        names = {field.name for field in dataclasses.fields(made)}
        for name in names - {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}:
            # The instance has what the class leaves open, and forgets a window that is switched off.
            value = getattr(type(made), name, None)
            value = getattr(made, name) if value is None else value
            if not isinstance(value, list):  # Of layers.
                values[name] = value
    output.write_text(json.dumps(defaults, indent=1, sort_keys=True) + "\n")


def main():
    torch.set_num_threads(1)
    golden = pathlib.Path(__file__).resolve().parent
    write_config_defaults(golden / "config_defaults.json")
    if len(sys.argv) == 1:
        write_demo_model(golden)
    for name in sys.argv[1:] or VARIANTS:
        folder = golden / "variants" / name
        prompts = [[(7 * i * i + 3 * i + start) % 97 for i in range(n)] for start, n in ((5, 1), (1, 40))]
        # A model of which rounding to bf16 changes no routing choice, or bf16 could not be judged.
        # Where ours still chooses otherwise, a variant begins with another seed.
        for seed in range(VARIANTS[name].get("seed", 0), 100):
            write_variant(VARIANTS[name], folder, seed)
            judged = folder
            if "fp8_block" in VARIANTS[name]:
                judged = quantise(folder, VARIANTS[name]["fp8_block"])
            if "mxfp4" in VARIANTS[name]:
                quantise_to_mxfp4(folder)
            divergence = write_fixture(judged, prompts, folder, lambda n: list(range(n)))
            if judged != folder:
                shutil.rmtree(judged)
            if divergence < 5e-4:
                break
        if "wrapped" in VARIANTS[name]:
            wrap(folder, VARIANTS[name]["wrapped"])


if __name__ == "__main__":
    main()
