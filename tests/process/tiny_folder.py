"""Hugging Face folders of the golden models: their weights with a tokenizer and a chat template.

The golden variants (tests/golden) have 97 tokens and no text. Here each token is a character, so that any
list of ids is a text and the continuations that transformers computed can be asked for by chat.
"""
import json
import pathlib
import shutil

VARIANTS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "variants"

# Id 0 to 93 are '!' to '~', then space and line break as byte-level BPE spells them, then the end token.
SPELLINGS = [chr(33 + i) for i in range(94)] + ["\u0120", "\u010a"]
CHARACTERS = SPELLINGS[:94] + [" ", "\n"]
END_TOKEN, END_ID = "<|end|>", 96
# What the messages say, one after the other, and nothing else: a prompt can then be any text.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def text_of(ids):
    return "".join(CHARACTERS[i] for i in ids)


def golden(variant):
    """[(prompt ids, greedy ids)] as transformers computed them in float32."""
    fixture = json.loads((VARIANTS / f"{variant}.json").read_text())
    return [(prompt["tokens"], prompt["greedy"]) for prompt in fixture["prompts"]]


def read_json(path):
    return json.loads(path.read_text())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1))


def write_folder(folder, variant, template=PLAIN_TEMPLATE, special=()):
    """`special`: further ids whose characters are special tokens."""
    folder = pathlib.Path(folder)
    for path in (VARIANTS / variant).iterdir():
        shutil.copy(path, folder)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, content in [(i, CHARACTERS[i]) for i in special] + [(END_ID, END_TOKEN)]],
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [],
                  "vocab": {spelling: i for i, spelling in enumerate(SPELLINGS)}},
    })
    write_json(folder / "tokenizer_config.json", {"eos_token": END_TOKEN})
    (folder / "chat_template.jinja").write_text(template)
    return folder
