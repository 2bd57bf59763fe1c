#!/usr/bin/env python3
"""Writes the golden fixture of a model: what Hugging Face transformers computes in float32.

    python3 tests/golden/make_golden.py models/lynx-tiny-moe tests/golden/lynx-tiny-moe

needs torch, transformers and tokenizers. Writes <output>.json (token ids, positions, greedy
continuations) and <output>.bin: little-endian float32, in the order and at the offsets the JSON
names. The fixture is the authority on correctness; nothing of this repository computes it.
"""

import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(args.model / "tokenizer.json"))

    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    prompts.append(long_text(root, tokenizer))
    values, entries, offset = [], [], 0
    for ids in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].numpy().astype("<f4")
        full = sorted({0, len(ids) // 2, len(ids) - 1})
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
    args.output.with_suffix(".bin").write_bytes(data.tobytes())
    fixture = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__,
                      "dtype": "float32", "attention": "eager"},
        "vocab_size": model.config.vocab_size,
        "top": TOP,
        "values": int(data.size),
        "prompts": entries,
    }
    args.output.with_suffix(".json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(f"{len(prompts)} prompts, {data.nbytes} bytes of logits")
    print("smallest greedy gap", min(min(e["greedy_gaps"]) for e in entries))


if __name__ == "__main__":
    main()
