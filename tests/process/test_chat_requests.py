"""The router gives chat templates all that a request carries for them: judged by Jinja on the same request."""
import datetime
import json
import pathlib
import shutil
import sys
import unicodedata

import pytest

from cluster import MODEL, Process, fetch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import text_templates  # noqa: E402

NAME = "lynx-tiny-moe"
# With what the API refuses by itself left out.
CONVERSATIONS = {name: messages for name, messages in text_templates.CONVERSATIONS.items()
                 if name not in ("bad-role", "nulls", "empty", "parts", "parts-system")}
EXTRAS = [
    {},
    {"tools": text_templates.TOOLS},
    {"tools": text_templates.TOOLS, "tool_choice": "auto",
     "chat_template_kwargs": {"enable_thinking": False, "thinking": True, "date_string": "today",
                              "reasoning_effort": "high"},
     "documents": [{"title": "t", "text": "One."}, {"title": "u", "text": "Two\n"}]},
]


def as_client_writes(messages):
    """OpenAI's form: the arguments of calls are JSON text."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return messages


def as_template_reads(messages, arguments_as_text):
    messages = as_client_writes(messages) if arguments_as_text else json.loads(json.dumps(messages))
    for message in messages:  # Two names of one thing.
        if "reasoning_content" in message:
            message.setdefault("reasoning", message["reasoning_content"])
    return messages


def jinja(template, tokens, messages, extra):
    """What Jinja makes of the request: {"text"} or {"error"}."""
    def render(arguments_as_text):
        return text_templates.render({
            "template": template, "messages": as_template_reads(messages, arguments_as_text),
            "tools": extra.get("tools"), "add_generation_prompt": True,
            "variables": {**tokens, **extra.get("chat_template_kwargs", {}),
                          "documents": extra.get("documents")}})

    rendered = render(False)
    # A template that puts the arguments into a text wants them as such.
    return render(True) if "can only concatenate str" in rendered.get("error", "") else rendered


@pytest.mark.parametrize("name,template", text_templates.templates().items(),
                         ids=text_templates.templates())
def test_prompts_are_those_that_jinja_renders(name, template, tmp_path, monkeypatch):
    monkeypatch.setitem(
        text_templates.environment().globals, "strftime_now",
        lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form))
    model = tmp_path / "model"
    model.mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(MODEL / file, model)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    tokens = {key: config[key] for key in text_templates.TOKENS if config.get(key)}
    router = Process(tmp_path, "router", "lynx-router", "--model", model, "--served-model-name", NAME,
                     "--listen", "127.0.0.1:0", "--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2")
    try:
        router.wait_announced()

        def post(path, **body):
            status, text = fetch(router.url(path), data=json.dumps({"model": NAME, **body}).encode())
            return status, json.loads(text)

        texts = 0
        for conversation, messages in CONVERSATIONS.items():
            for extra in EXTRAS:
                want = jinja(template, tokens, messages, extra)
                status, answer = post("/tokenize", messages=as_client_writes(messages), **extra)
                if "error" in want:
                    assert status == 400, (conversation, want, answer)
                    assert answer["error"]["param"] == "messages"
                    raised = want["error"].removeprefix("TemplateError: ")
                    if raised != want["error"]:
                        assert answer["error"]["message"].endswith(raised)
                    continue
                assert status == 200, (conversation, want, answer)
                texts += 1
                # As the tokenizer normalises it.
                text = unicodedata.normalize("NFC", want["text"])
                assert post("/detokenize", tokens=answer["tokens"])[1]["prompt"] == text, conversation
        assert texts > 0
    finally:
        assert router.stop() == 0
