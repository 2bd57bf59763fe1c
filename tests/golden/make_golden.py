#!/usr/bin/env python3
"""Writes the golden fixture of a model: what Hugging Face transformers computes in float32.

    python3 tests/golden/make_golden.py

needs torch, transformers and tokenizers. Writes tests/golden/lynx-tiny-moe.json (token ids,
positions, greedy continuations) and .bin: little-endian float32, in the order and at the offsets
the JSON names. Then a few random models of odd shapes, each a folder tests/golden/variants/<name>
as transformers saves it, with the same pair of files beside it. The fixtures are the authority on
correctness; nothing of this repository computes them.
"""

import json
import pathlib

import numpy as np
import tokenizers
import torch
import transformers

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


# Odd sizes everywhere, and between them every switch of the family.
VARIANTS = {
    "dense-untied-f32": dict(
        dtype=torch.float32, num_hidden_layers=3, mlp_only_layers=[1], norm_topk_prob=False,
        tie_word_embeddings=False, num_key_value_heads=2,
    ),
    "sparse-step-tied-f16": dict(
        dtype=torch.float16, num_hidden_layers=2, decoder_sparse_step=2, norm_topk_prob=True,
        tie_word_embeddings=True, num_key_value_heads=1,
    ),
}


def write_variant(name, options, folder):
    torch.manual_seed(len(name))
    options = dict(options)
    dtype = options.pop("dtype")
    config = transformers.Qwen3MoeConfig(
        vocab_size=97, hidden_size=36, intermediate_size=44, moe_intermediate_size=20,
        num_attention_heads=4, head_dim=10, num_experts=5, num_experts_per_tok=2,
        max_position_embeddings=128, initializer_range=0.3, eos_token_id=96, **options,
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    for parameter in model.parameters():  # Norm gains too: ones would hide a missing one.
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype).save_pretrained(folder)


def write_fixture(model_dir, prompts, output, full_positions):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    values, entries, offset = [], [], 0
    for ids in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].numpy().astype("<f4")
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
        "prompts": entries,
    }
    output.with_suffix(".json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(f"{output}: {len(prompts)} prompts, {data.nbytes} bytes of logits, smallest greedy gap",
          min(min(e["greedy_gaps"]) for e in entries))


def main():
    torch.set_num_threads(1)
    golden = pathlib.Path(__file__).resolve().parent
    root = golden.parents[1]
    model = root / "models/lynx-tiny-moe"
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    prompts.append(long_text(root, tokenizer))
    write_fixture(model, prompts, golden / "lynx-tiny-moe", lambda n: sorted({0, n // 2, n - 1}))

    for name, options in VARIANTS.items():
        folder = golden / "variants" / name
        write_variant(name, options, folder)
        prompts = [[(7 * i * i + 3 * i + start) % 97 for i in range(n)] for start, n in ((5, 1), (1, 40))]
        write_fixture(folder, prompts, golden / "variants" / name, lambda n: list(range(n)))


if __name__ == "__main__":
    main()
