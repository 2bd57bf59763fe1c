"""Compares the tokenizer with Hugging Face `tokenizers` on generated strings.

    LYNX_BIN_DIR=build/release/bin python -m pytest tests/process/test_tokenizer_vs_hf.py
    python tests/process/test_tokenizer_vs_hf.py [--strings N] [--seed S] [--kinds NAME...]

Strings for the demo model and for every tokenizer of tests/tools/text_tokenizers.py. Ids, decodes,
and for every tenth string the stream at every cut must be equal; so must what becomes of special
tokens that are to stay text.
"""

import argparse
import codecs
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import text_tokenizers  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("LYNX_BIN_DIR", ROOT / "build" / "release" / "bin"))
SEED = int(os.environ.get("LYNX_TEST_SEED", "20260601"))
STRINGS = int(os.environ.get("LYNX_TEST_STRINGS", "200"))

SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<s>", "</s>",
    "<unk>", "<mask>", "<rstrip>", "<both>", "word", "<x>", "<x><y>", "caf\u00e9!", "cafe\u0301!",
    "re\u0301sume\u0301", "r\u00e9sum\u00e9", "<｜User｜>", "<|im_", "end|>", "a b",
]
CODE = ["def f(x):\n\treturn x\n", "for (int i=0;i<n;++i) {", "a->b != c::d", "/* */ #include <x>\n",
        "    if x == 1:\n        pass\n", "$x = @{'k'};", "0xFF 1e-5 3.14"]
ENGLISH = "the of and to in is it you that he was for on are as with his they at be this I'll we've".split()
EMOJI = ["👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪", "🎉", "❤️", "1️⃣"]


def assigned_since(char):
    """Code points the two Unicode libraries may know differently are left out."""
    return unicodedata.ucd_3_2_0.category(char) != "Cn"


def random_scalar(rng):
    while True:
        point = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000),
                            rng.randrange(0x110000)])
        if 0xD800 <= point < 0xE000:
            continue
        char = chr(point)
        if assigned_since(char) or rng.random() < 0.02 and point > 0xF0000:
            return char


def in_range(rng, low, high):
    while True:
        char = chr(rng.randrange(low, high))
        if assigned_since(char):
            return char


def piece(rng):
    kind = rng.randrange(16)
    if kind == 0:
        return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 12)))
    if kind == 1:
        return rng.choice(CODE)
    if kind == 2:
        return "".join(in_range(rng, 0x4E00, 0x9FA6) for _ in range(rng.randrange(1, 6)))
    if kind == 3:
        return rng.choice(EMOJI)
    if kind == 4:
        return rng.choice("aeounAE") + "".join(in_range(rng, 0x300, 0x34F)
                                              for _ in range(rng.randrange(1, 4)))
    if kind == 5:
        return "".join(chr(rng.choice([rng.randrange(0x1100, 0x1113), rng.randrange(0x1161, 0x1176),
                                       rng.randrange(0x11A8, 0x11C3), rng.randrange(0xAC00, 0xD7A4)]))
                       for _ in range(rng.randrange(1, 5)))
    if kind == 6:
        return "".join(chr(rng.choice([rng.randrange(0, 32), 0x7F, rng.randrange(0x80, 0xA0)]))
                       for _ in range(rng.randrange(1, 4)))
    if kind == 7:
        return rng.choice([" ", "\t", "\n", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\u2028",
                           "\x85", "\x0b"]) * rng.randrange(1, 8)
    if kind == 8:
        return rng.choice(["\r\n", "\n\n", " \n ", "\r", "\r\n\r\n", " \r\n"])
    if kind == 9:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 9)))
    if kind == 10:
        return rng.choice(["٣", "ⅷ", "²", "½", "१२", "①", "𝟙"]) * rng.randrange(1, 3)
    if kind == 11:
        return rng.choice(SPECIALS)
    if kind == 12:
        return "".join(in_range(rng, *rng.choice([(0x5D0, 0x5EB), (0x620, 0x64B), (0x64B, 0x653)]))
                       for _ in range(rng.randrange(1, 8)))
    if kind == 13:
        return "".join(random_scalar(rng) for _ in range(rng.randrange(1, 4)))
    if kind == 14:
        return rng.choice(["ﬁ", "（全角）", "ｶﾞ", "Å", "ſ", "K", "'S", "'LL", "’s", "▁", "▁▁ x", "\ufffd",
                           "İ", "ß", "ǆ", "한글", "--", "...", "。", "、"])
    return rng.choice(ENGLISH) + rng.choice([" ", ", ", ". ", ""])


def make_string(rng):
    return "".join(piece(rng) for _ in range(rng.randrange(0, 8)))


def ask(model_dir, requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([BIN_DIR / "tokenizer_probe", model_dir], input=text.encode(),
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def byte_alphabet():
    keep = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in keep]
    return {**{chr(b): b for b in keep}, **{chr(256 + i): b for i, b in enumerate(moved)}}


ALPHABET = byte_alphabet()


def token_bytes(reference, token_id):
    """What a token adds, worked out from its spelling only; None with a start-sensitive decoder."""
    spelling = reference.id_to_token(token_id)
    if spelling is None:
        return b""
    if "ByteLevel" in str(reference.decoder):
        if all(char in ALPHABET for char in spelling):
            return bytes(ALPHABET[char] for char in spelling)
        return spelling.encode()
    if re.fullmatch(r"<0x[0-9A-F]{2}>", spelling) and "ByteFallback" in str(reference.decoder):
        return bytes([int(spelling[3:5], 16)])
    return spelling.replace("▁", " ").encode()


def expected_rest(reference, ids, cut, whole):
    """What a stream may say after the prompt ids[:cut]: all that the prompt had not completed."""
    pieces = [token_bytes(reference, token) for token in ids]
    # Spaces that the decoder drops at the start of the text.
    dropped = len(b"".join(pieces).decode(errors="replace")) - len(whole)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return whole[max(0, len(decoder.decode(b"".join(pieces[:cut]))) - dropped):]


def mixed_byte_run(reference, ids):
    """A run of byte tokens with good and bad characters, where the reference replaces both."""
    run = b""
    for token in [*ids, None]:
        spelling = "" if token is None else reference.id_to_token(token) or ""
        match = re.fullmatch(r"<0x([0-9A-F]{2})>", spelling)
        if match:
            run += bytes([int(match[1], 16)])
            continue
        good = run.decode(errors="ignore")  # U+FFFD may be one of them.
        if good and good.encode() != run:
            return True
        run = b""
    return False


def compare(name, model_dir, reference, rng, count):
    """Returns the number of strings, token sequences and cuts compared, and of left out ones."""
    texts = [make_string(rng) for _ in range(count)]
    answers = ask(model_dir, [{"text": text, "cuts": i % 10 == 0} for i, text in enumerate(texts)])
    assert len(answers) == count
    cuts = 0
    for text, answer in zip(texts, answers):
        ids = reference.encode(text, add_special_tokens=False).ids
        where = f"{name}: {text!r} ({ascii(text)})"
        assert answer.get("ids") == ids, f"{where}\n got {answer}\n want {ids}"
        assert answer["ids_with_special"] == reference.encode(text).ids, where
        whole = reference.decode(ids, skip_special_tokens=False)
        assert answer["decoded"] == whole, f"{where}\n got {answer['decoded']!r}\n want {whole!r}"
        assert answer["decoded_skip"] == reference.decode(ids), where
        for cut, rest in enumerate(answer.get("cuts", [])):
            want = expected_rest(reference, ids, cut, whole)
            assert rest == want, f"{where} cut {cut}\n got {rest!r}\n want {want!r}"
            cuts += 1

    # A spelling of a special token that is not normalised needs no other rule.
    if not any(token.special and token.normalized
               for token in reference.get_added_tokens_decoder().values()):
        reference.encode_special_tokens = True
        for text, answer in zip(texts, answers):
            ids = reference.encode(text, add_special_tokens=False).ids
            where = f"{name}, all as text: {text!r}"
            assert answer["ids_as_text"] == ids, f"{where}\n got {answer}\n want {ids}"
        reference.encode_special_tokens = False

    size = reference.get_vocab_size()
    byte_ids = [i for i in range(size) if len(token_bytes(reference, i)) == 1
                and token_bytes(reference, i)[0] >= 0x80]
    sequences = []
    for _ in range(count // 4):
        pool = byte_ids if byte_ids and rng.random() < 0.5 else range(size)
        sequences.append([rng.choice(pool) for _ in range(rng.randrange(1, 12))])
    left_out = 0
    for ids, answer in zip(sequences, ask(model_dir, [{"ids": ids} for ids in sequences])):
        where = f"{name}: {ids}"
        whole = reference.decode(ids, skip_special_tokens=False)
        if mixed_byte_run(reference, ids):
            left_out += 1
            whole = answer["decoded"]
        assert answer["decoded"] == whole, f"{where}\n got {answer['decoded']!r}\n want {whole!r}"
        assert "".join(answer["deltas"]) == whole, where
        for cut, rest in enumerate(answer["resumed"]):
            assert "".join(answer["deltas"][:cut]) + rest == whole, f"{where} cut {cut}"
            cuts += 1
    return len(texts), len(sequences), cuts, left_out


def run(count, seed, kinds=None):
    print(f"seed {seed}, tokenizers {tokenizers.__version__}, {count} strings a kind")
    built, demo = text_tokenizers.build()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in [("demo", demo), *built.items()]:
            if kinds and name not in kinds:
                continue
            model_dir = pathlib.Path(folder) / name
            model_dir.mkdir()
            (model_dir / "tokenizer.json").write_text(text)
            reference = tokenizers.Tokenizer.from_str(text)
            texts, sequences, cuts, left_out = compare(
                name, model_dir, reference, random.Random(f"{seed}-{name}"), count)
            print(f"{name}: {texts} strings, {sequences} token sequences, {cuts} stream cuts equal; "
                  f"{left_out} mixed byte runs checked against our own decode only", flush=True)


def test_tokenizer_equals_reference():
    run(STRINGS, SEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strings", type=int, default=STRINGS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--kinds", nargs="*")
    arguments = parser.parse_args()
    run(arguments.strings, arguments.seed, arguments.kinds)
