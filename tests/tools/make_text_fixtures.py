"""Writes the fixtures in tests/common/text/testdata: tokenizers.json, small tokenizers with what
Hugging Face `tokenizers` makes of some strings, and chat_templates.json, what Jinja makes of chat
templates. Needs `tokenizers` and `jinja2`; run from anywhere.

    python tests/tools/make_text_fixtures.py [tokenizers] [templates]
"""

import json
import sys

import text_templates
import tokenizers
from text_tokenizers import ROOT, build

TEXTS = [
    "",
    " ",
    "Hello, world! It's 12345 o'clock; we'LL see.",
    "  two  spaces\tand\r\nlines \n\n end   ",
    "e\u0301 \u00e9 cafe\u0301! caf\u00e9! re\u0301sume\u0301 r\u00e9sum\u00e9",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \u00bd \uff08\u5168\u89d2\uff09 \ufb01 \u2460",
    "日本語とカタカナ 中文，한국어. Привет مرحبا שלום",
    "👩\u200d👩\u200d👧\u200d👦🎉 a\u0308\u0323 \u180e \u2003x \u00a0y \u0000\u0007\u001b",
    "word words a word, <x><y><x> <mask> x <rstrip>  y  <both>  z a b",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|> <|begin_of_text|><|eot_id|><s>x</s> <｜User｜>",
    "def f(x):\n    return x**2  # 1,000.50--3--4\n",
    "1234567 ١٢٣ ⅷ ² 12a34",
    "....,, , a,b. c",
    "▁ ▁x x▁y",
]


def write(name, content):
    path = ROOT / "tests" / "common" / "text" / "testdata" / name
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


def write_tokenizers():
    built, demo = build()
    entries = []
    for name, text in [("demo", demo), *built.items()]:
        tokenizer = tokenizers.Tokenizer.from_str(text)
        cases = []
        for case in TEXTS:
            plain = tokenizer.encode(case, add_special_tokens=False).ids
            cases.append(
                {
                    "text": case,
                    "ids": plain,
                    "ids_with_special": tokenizer.encode(case, add_special_tokens=True).ids,
                    "decoded": tokenizer.decode(plain, skip_special_tokens=False),
                    "decoded_skip": tokenizer.decode(plain, skip_special_tokens=True),
                }
            )
        entry = {"name": name, "cases": cases}
        if name != "demo":  # That one is read from models/.
            entry["tokenizer"] = json.loads(text)
        entries.append(entry)
    write("tokenizers.json", entries)


def write_templates():
    cases = []
    for name, request in text_templates.requests():
        is_snippet = name == request["template"]
        # The comparison of processes covers the other combinations.
        if not is_snippet:
            with_tools = request["variables"] == text_templates.VARIABLES[0]
            if (not request["add_generation_prompt"] or not request["variables"]
                    or with_tools != (request["tools"] is not None)):
                continue
        case = {**request, **text_templates.render(request)}
        if "error" in case:  # The wording is Jinja's own, except for raise_exception().
            raised = case["error"].startswith("TemplateError: ")
            case["error"] = case["error"].removeprefix("TemplateError: ") if raised else ""
        case["name"] = name
        if is_snippet:
            for shared in ["messages", "tools", "variables"]:
                del case[shared]
        else:
            case["template"] = name.split("/")[0]
            case["messages"] = name.split("/")[1]
            case["tools"] = request["tools"] is not None
        cases.append(case)
    snippet = next(r for n, r in text_templates.requests() if n == r["template"])
    write("chat_templates.json", {
        "tools": text_templates.TOOLS, "conversations": text_templates.CONVERSATIONS,
        "snippet": {key: snippet[key] for key in ["messages", "tools", "variables"]},
        "cases": cases})


def main():
    wanted = sys.argv[1:] or ["tokenizers", "templates"]
    if "tokenizers" in wanted:
        write_tokenizers()
    if "templates" in wanted:
        write_templates()


if __name__ == "__main__":
    main()
