"""Encoding speed of Lynx and of Hugging Face `tokenizers`, one thread each, in one run.

    LYNX_BIN_DIR=build/release/bin python tests/bench/tokenizers/compare.py [--cache DIR] [--rounds N]

Vocabularies of 32,000 tokens, trained on the Python library installed here (kept in DIR). The texts
are other files of it, cut to the length of prompts; `encode_batch_fast` leaves offsets out, as Lynx
does. Both sides keep their word caches between rounds; the fastest round counts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import text_tokenizers  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("LYNX_BIN_DIR", ROOT / "build" / "release" / "bin"))
VOCAB = 32_000
PROMPT_CHARS = 4_000
PROMPTS = 400


def library_texts():
    """The library's files, alternately for training and for timing."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))[:500]
    texts = [path.read_text(errors="replace") for path in files]
    return texts[::2], texts[1::2]


def prompts(texts):
    pieces = text_tokenizers.EXTRA_TEXT * 3
    for text in texts:
        pieces += [text[i : i + PROMPT_CHARS] for i in range(0, len(text), PROMPT_CHARS)]
    return pieces[:PROMPTS]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/lynx-tokenizer-bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=None)
    arguments = parser.parse_args()
    training, timing = library_texts()
    texts = prompts(timing)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    texts_file = arguments.cache / "texts.json"
    texts_file.write_text(json.dumps(texts))
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"tokenizers {tokenizers.__version__}, {len(texts)} texts, {size:.2f} MB")
    print("| kind | tokenizers MB/s | Lynx MB/s | ratio |\n|---|---|---|---|")
    for kind in arguments.kinds or text_tokenizers.LARGE:
        folder = arguments.cache / kind
        file = folder / "tokenizer.json"
        if not file.exists():
            folder.mkdir(exist_ok=True)
            file.write_text(text_tokenizers.build_large(kind, training, VOCAB))
        reference = tokenizers.Tokenizer.from_file(str(file))
        theirs = float("inf")
        for _ in range(arguments.rounds):
            begin = time.perf_counter()
            encoded = reference.encode_batch_fast(texts, add_special_tokens=False)
            theirs = min(theirs, time.perf_counter() - begin)
        done = subprocess.run([BIN_DIR / "tokenizer_bench", folder, texts_file, str(arguments.rounds)],
                              capture_output=True, check=True)
        ours = json.loads(done.stdout)
        assert ours["tokens"] == sum(len(one.ids) for one in encoded), kind
        print(f"| {kind} | {size / theirs:.1f} | {size / ours['seconds']:.1f} "
              f"| {theirs / ours['seconds']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
