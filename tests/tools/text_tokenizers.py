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
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_SPLITS = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK]
# In the manner of the family's older models: many small cuts, then digits one by one.
DEEPSEEK_V2_SPLITS = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-ᏵḀ-ἕ]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
]
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


def train_byte_level(vocab_size, pre_tokenizer, normalizer=None, texts=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus() if texts is None else texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def train_pieces(vocab_size, unknown, byte_fallback, normalizer, pre_tokenizer, texts=None):
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
        corpus() if texts is None else texts,
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


MIXTRAL_NORMALIZER = normalizers.Sequence(
    [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
)


def deepseek_v2_pre_tokenizer():
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in DEEPSEEK_V2_SPLITS]
        + [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_unigram(vocab_size, byte_fallback, normalizer, pre_tokenizer, texts=None):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        corpus() if texts is None else texts,
        trainers.UnigramTrainer(
            vocab_size=vocab_size,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    data = json.loads(tokenizer.to_str())
    if byte_fallback:
        data["model"]["byte_fallback"] = True
        lowest = min(score for _, score in data["model"]["vocab"])
        data["model"]["vocab"] += [[f"<0x{byte:02X}>", lowest - 1] for byte in range(256)]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def llama_decoder():
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def build_large(kind, texts, vocab_size):
    """One of LARGE, trained on `texts`."""
    if kind == "gpt2":
        return train_byte_level(
            vocab_size, pre_tokenizers.ByteLevel(add_prefix_space=False), texts=texts
        ).to_str()
    if kind == "qwen":
        return train_byte_level(
            vocab_size, split_then_bytes(QWEN), normalizers.NFC(), texts=texts
        ).to_str()
    if kind == "llama3":
        return train_byte_level(
            vocab_size, split_then_bytes(LLAMA3), texts=texts, ignore_merges=True
        ).to_str()
    if kind == "o200k":
        return train_byte_level(vocab_size, split_then_bytes(GPT4O), texts=texts).to_str()
    if kind == "deepseek":
        return train_byte_level(vocab_size, split_then_bytes(*DEEPSEEK_SPLITS), texts=texts).to_str()
    if kind == "deepseek-v2":
        return train_byte_level(vocab_size, deepseek_v2_pre_tokenizer(), texts=texts).to_str()
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    if kind == "mixtral":
        tokenizer = train_pieces(vocab_size, "<unk>", True, MIXTRAL_NORMALIZER, None, texts)
    elif kind == "metaspace":
        tokenizer = train_pieces(vocab_size, "<unk>", True, None, metaspace, texts)
    else:
        tokenizer = train_unigram(vocab_size, False, None, metaspace, texts)
    tokenizer.decoder = llama_decoder()
    return tokenizer.to_str()


LARGE = ["gpt2", "qwen", "llama3", "o200k", "deepseek", "deepseek-v2", "mixtral", "metaspace", "unigram"]


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


def build_unigrams():
    out = {}
    for name, byte_fallback, scheme, normalizer in [
        ("unigram", False, "always", None),
        ("unigram-bytes", True, "first", normalizers.NFKC()),
        (
            "unigram-strip",
            False,
            "always",
            normalizers.Sequence(
                [
                    normalizers.NFKD(),
                    normalizers.StripAccents(),
                    normalizers.Lowercase(),
                    normalizers.Replace(Regex(" {2,}"), " "),
                    normalizers.Strip(),
                ]
            ),
        ),
    ]:
        tokenizer = train_unigram(
            500, byte_fallback, normalizer, pre_tokenizers.Metaspace(prepend_scheme=scheme)
        )
        if byte_fallback:
            tokenizer.decoder = llama_decoder()
        else:
            tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
        )
        out[name] = tokenizer.to_str()
    whole = train_unigram(500, True, MIXTRAL_NORMALIZER, None)
    whole.decoder = llama_decoder()
    for token in added_token_zoo():
        whole.add_tokens([token])
    out["unigram-whole"] = whole.to_str()
    return out


def build_steps(base):
    """Every other kind of normalizer, pre-tokenizer and post-processor, on a byte-level model."""
    out = {}

    def byte_level(name, pre_tokenizer, normalizer=None, added=()):
        tokenizer = Tokenizer.from_str(json.dumps(base))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        for token in added:
            tokenizer.add_tokens([token])
        out[name] = tokenizer
        return tokenizer

    for behavior in BEHAVIORS:
        byte_level(f"punctuation-{behavior}", pre_tokenizers.Punctuation(behavior))
    byte_level("whitespace", pre_tokenizers.Whitespace())
    byte_level("whitespace-split", pre_tokenizers.WhitespaceSplit(), added=added_token_zoo())
    byte_level("char-delimiter", pre_tokenizers.CharDelimiterSplit("e"))
    byte_level("lowercase", pre_tokenizers.Whitespace(), normalizers.Lowercase(), added_token_zoo())
    byte_level(
        "strip-left", pre_tokenizers.Punctuation(), normalizers.Strip(left=True, right=False)
    )
    byte_level(
        "strip-accents",
        pre_tokenizers.Digits(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        added_token_zoo(),
    )
    byte_level(
        "replace-regex",
        pre_tokenizers.Whitespace(),
        normalizers.Sequence(
            [
                normalizers.Replace(Regex(r"\s+"), " "),
                normalizers.Replace(Regex(r"(?<=\p{L})\d"), "#"),
                normalizers.Replace("the", ""),
                normalizers.Prepend("> "),
            ]
        ),
    )
    for name, make in [
        ("bert-processing", processors.BertProcessing),
        ("roberta-processing", processors.RobertaProcessing),
    ]:
        tokenizer = byte_level(
            name, pre_tokenizers.Whitespace(), added=[special("<s>"), special("</s>")]
        )
        tokenizer.post_processor = make(("</s>", 301), ("<s>", 300))
    return {name: tokenizer.to_str() for name, tokenizer in out.items()}


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

    qwen = train_byte_level(600, split_then_bytes(QWEN), normalizers.NFC())
    qwen.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen.add_tokens([AddedToken("<think>", normalized=False)])
    out["qwen"] = qwen.to_str()
    out["deepseek-v2"] = train_byte_level(500, deepseek_v2_pre_tokenizer()).to_str()

    deepseek = train_byte_level(
        600, split_then_bytes(*DEEPSEEK_SPLITS)
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
        MIXTRAL_NORMALIZER,
        None,
    )
    mixtral.decoder = llama_decoder()
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

    plain = train_pieces(
        500, "<unk>", True, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    )
    plain.decoder = llama_decoder()
    out["metaspace-unsplit-bytes"] = plain.to_str()
    data = json.loads(out["metaspace-never"])
    data["model"]["fuse_unk"] = False
    out["unknowns-apart"] = json.dumps(data, ensure_ascii=False)

    out.update(build_unigrams())
    out.update(build_steps(base))

    demo = (ROOT / "models" / "lynx-tiny-moe" / "tokenizer.json").read_text()
    return out, demo
