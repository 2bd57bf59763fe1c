"""Compares chat templates with Jinja itself.

    LYNX_BIN_DIR=build/release/bin python -m pytest tests/process/test_chat_template_vs_jinja2.py

Every template of tests/common/text/testdata/templates with every conversation, and every snippet of
tests/tools/text_templates.py, must give the same text; what Jinja cannot render must be an error.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import text_templates  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("LYNX_BIN_DIR", ROOT / "build" / "release" / "bin"))


def run():
    named = list(text_templates.requests())
    lines = "".join(json.dumps(request) + "\n" for _, request in named)
    done = subprocess.run([BIN_DIR / "chat_template_probe"], input=lines.encode(),
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(named)
    texts = errors = 0
    wrong = []
    for (name, request), answer in zip(named, answers):
        want = text_templates.render(request)
        if "text" in want:
            texts += 1
            equal = answer.get("text") == want["text"]
        else:
            errors += 1
            equal = "error" in answer
            raised = want["error"].removeprefix("TemplateError: ")
            if raised != want["error"]:  # raise_exception(): the message itself.
                equal = answer.get("error") == raised
        if not equal:
            wrong.append(f"{name!r}\n  got  {answer}\n  want {want}")
    print(f"{texts} texts and {errors} errors compared, {len(wrong)} differ")
    return wrong


def test_templates_equal_jinja():
    wrong = run()
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    differences = run()
    print("\n".join(differences))
    sys.exit(1 if differences else 0)
