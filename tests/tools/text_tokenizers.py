"""Small tokenizers of every supported form, built with Hugging Face `tokenizers`.

Used to make the committed fixtures (make_text_fixtures.py) and by the comparison of ten thousand
strings (tests/process/test_tokenizer_vs_hf.py).
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]

EXTRA_TEXT = [
    "Grüße aus Köln, déjà vu, naïve café, Ångström.",
    "日本語のテキストと中文文本，以及한국어 문장.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم.",
    "👩‍👩‍👧‍👦 🎉🚀 ½ ﬁ ① （全角）",
]


def corpus():
    lines = list(EXTRA_TEXT) * 20
    for name in ["text-prose", "text-python", "text-docs"]:
        for line in (ROOT / "models" / "eval" / f"{name}.jsonl").read_text().splitlines()[:20]:
            record = json.loads(line)
            lines.append(record.get("text") or record.get("prompt") or "")
    return lines


def special(content, **flags):
    return AddedToken(content, special=True, **flags)


def train_byte_level(vocab_size, pre_tokenizer, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def train_pieces(vocab_size, unknown, byte_fallback, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(
        models.BPE(unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # Training without cuts would merge whole sentences.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    first = [unknown, "<s>", "</s>"]
    if byte_fallback:
        first += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=first,
            limit_alphabet=150,
            show_progress=False,
        ),
    )
    # Byte tokens are plain words of the vocabulary in real files, not added tokens.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if pre_tokenizer is None:
        data["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(data))
    else:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def split_then_bytes(*splits):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def added_token_zoo():
    """Every flag, overlapping spellings, and an accent under both settings of `normalized`."""
    return [
        special("<|im_start|>"),
        special("<|im_end|>"),
        special("<mask>", lstrip=True),
        special("<rstrip>", rstrip=True),
        special("<both>", lstrip=True, rstrip=True),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("caf\u00e9!", normalized=True),
        AddedToken("re\u0301sume\u0301", normalized=False),
        AddedToken("<x>", normalized=False),
        AddedToken("<x><y>", normalized=False),
        AddedToken("   ", normalized=True),
        AddedToken("a b", normalized=True),
    ]


def build():
    """name -> tokenizer.json text."""
    out = {}

    llama = train_byte_level(700, split_then_bytes(LLAMA3), ignore_merges=True)
    llama.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos = llama.token_to_id("<|begin_of_text|>")
    llama.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                special_tokens=[("<|begin_of_text|>", bos)],
            ),
        ]
    )
    out["llama3"] = llama.to_str()

    gpt2 = train_byte_level(600, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True))
    gpt2.add_special_tokens(["<|endoftext|>"])
    data = json.loads(gpt2.to_str())
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    out["gpt2"] = json.dumps(data, ensure_ascii=False)

    out["gpt4o"] = train_byte_level(600, split_then_bytes(GPT4O)).to_str()

    deepseek = train_byte_level(
        600, split_then_bytes(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK)
    )
    deepseek.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜User｜>"])
    out["deepseek"] = deepseek.to_str()

    for name, normalizer in [
        ("nfc", normalizers.NFC()),
        ("nfd", normalizers.NFD()),
        ("nfkc", normalizers.NFKC()),
        ("nfkd", normalizers.NFKD()),
        ("nfd-then-nfkc", normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])),
    ]:
        tokenizer = train_byte_level(400, split_then_bytes(LLAMA3), normalizer)
        for token in added_token_zoo():
            tokenizer.add_tokens([token])
        out[name] = tokenizer.to_str()

    base = json.loads(train_byte_level(300, split_then_bytes(LLAMA3)).to_str())
    for behavior in BEHAVIORS:
        for invert in [False, True]:
            tokenizer = Tokenizer.from_str(json.dumps(base))
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"[\s,.]"), behavior, invert),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
            out[f"split-{behavior}{'-inverted' if invert else ''}"] = tokenizer.to_str()
    for individual in [False, True]:
        tokenizer = Tokenizer.from_str(json.dumps(base))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("--", "removed"),
                pre_tokenizers.Digits(individual_digits=individual),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
            ]
        )
        out[f"digits{'-individual' if individual else ''}"] = tokenizer.to_str()

    mixtral = train_pieces(
        900,
        "<unk>",
        True,
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
    )
    mixtral.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    mixtral.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    out["mixtral"] = mixtral.to_str()

    for scheme in ["first", "always", "never"]:
        metaspace = train_pieces(
            500, "<unk>", False, None, pre_tokenizers.Metaspace(prepend_scheme=scheme)
        )
        metaspace.decoder = decoders.Metaspace(prepend_scheme=scheme)
        out[f"metaspace-{scheme}"] = metaspace.to_str()

    demo = (ROOT / "models" / "lynx-tiny-moe" / "tokenizer.json").read_text()
    return out, demo
