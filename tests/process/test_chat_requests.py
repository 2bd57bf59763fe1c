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


def write_model(folder, template):
    """The demo model, without weights and with another template; the tokens that templates may name."""
    folder.mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(MODEL / file, folder)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return {key: config[key] for key in text_templates.TOKENS if config.get(key)}


class Router:
    """A router without nodes: all that rendering and tokenizing take."""

    def __init__(self, folder, template):
        self.tokens = write_model(folder / "model", template)
        self.process = Process(
            folder, "router", "lynx-router", "--model", folder / "model", "--served-model-name", NAME,
            "--listen", "127.0.0.1:0", "--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2")

    def __enter__(self):
        self.process.wait_announced()
        return self

    def __exit__(self, *_):
        assert self.process.stop() == 0

    def post(self, path, **body):
        status, text = fetch(self.process.url(path), data=json.dumps({"model": NAME, **body}).encode())
        return status, json.loads(text)

    def prompt(self, **request):
        """(status, the prompt's text or the error) of a chat request."""
        status, answer = self.post("/tokenize", **request)
        if status != 200:
            return status, answer["error"]
        return status, self.post("/detokenize", tokens=answer["tokens"])[1]["prompt"]


@pytest.mark.parametrize("name,template", text_templates.templates().items(),
                         ids=text_templates.templates())
def test_prompts_are_those_that_jinja_renders(name, template, tmp_path, monkeypatch):
    monkeypatch.setitem(
        text_templates.environment().globals, "strftime_now",
        lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form))
    texts = 0
    with Router(tmp_path, template) as router:
        for conversation, messages in CONVERSATIONS.items():
            for extra in EXTRAS:
                want = jinja(template, router.tokens, messages, extra)
                status, answer = router.prompt(messages=as_client_writes(messages), **extra)
                if "error" in want:
                    assert (status, answer["param"]) == (400, "messages"), (conversation, want, answer)
                    raised = want["error"].removeprefix("TemplateError: ")
                    if raised != want["error"]:
                        assert answer["message"].endswith(raised)
                    continue
                assert status == 200, (conversation, want, answer)
                texts += 1
                # As the tokenizer normalises it.
                assert answer == unicodedata.normalize("NFC", want["text"]), conversation
    assert texts > 0


# TOK-6: each of these broke a server at its start or at its first request.
FEATURES = """\
{%- set ns = namespace(last='', count=0) -%}
{%- for message in messages[::-1] -%}
  {%- set ns.count = ns.count + 1 -%}
  {%- if message.role == 'user' -%}{%- set ns.last = message.content -%}{%- endif -%}
{%- endfor -%}
{{ ns.count }} {{ ns.last[::-1] }} {{ strftime_now('%Y-%m-%d') }}
{{ messages | selectattr('role', 'equalto', 'assistant') | map(attribute='content') | join('|') }}
{{ (messages | first).content.split(' ')[-1] }} {{ tools | tojson(ensure_ascii=False, indent=4) }}
{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}
{%- if messages[0].content == 'refuse' %}{{ raise_exception('Not "' ~ messages[0].content ~ '" here.') }}{% endif %}
"""


def test_features_that_embedded_engines_lacked_give_the_text_of_jinja(tmp_path, monkeypatch):
    monkeypatch.setitem(
        text_templates.environment().globals, "strftime_now",
        lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form))
    messages = [{"role": "user", "content": "one two <drei> \u00fc"}, {"role": "assistant", "content": "four"},
                {"role": "user", "content": "five"}]
    extra = {"tools": text_templates.TOOLS}
    with Router(tmp_path, FEATURES) as router:
        want = jinja(FEATURES, router.tokens, messages, extra)
        assert router.prompt(messages=messages, **extra) == (200, want["text"])
        status, error = router.prompt(messages=[{"role": "user", "content": "refuse"}], **extra)
        assert (status, error["param"]) == (400, "messages")
        assert error["message"].endswith('Not "refuse" here.')
        assert router.prompt(messages=messages, **extra)[0] == 200


@pytest.mark.parametrize("template,complaint", {
    "a\n{% if messages %}\nb": "'endif'",
    "a\nb\n{{ messages | }}": "line 3",
    "a\n{% strange %}": "line 2, column 4: tag 'strange'",
    "a\n\n{{ messages | tojson(strange=1) }}": "line 3, column 15: filter 'tojson' with argument 'strange'",
    "{{ strange_now('%Y') }}": "line 1, column 15: function 'strange_now'",
}.items())
def test_a_template_that_cannot_be_served_is_named_at_the_start(template, complaint, tmp_path):
    router = Router(tmp_path, template).process
    assert router.process.wait(30) == 1
    assert "tokenizer_config.json: chat_template: " in router.log()
    assert complaint in router.log()
