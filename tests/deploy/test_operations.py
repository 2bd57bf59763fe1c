"""docs/operations: figures are what the programs print, links lead somewhere."""
import re
import subprocess

import pytest

from cluster import BIN, ROOT
from test_rules import anchors

PAGES = sorted((ROOT / "docs/operations").glob("*.md")) + sorted((ROOT / "deploy").glob("**/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_panels_that_pages_name_are_on_the_dashboard():
    titles = re.findall(r'"title": "([^"]*)"', (ROOT / "deploy/grafana/lynx-slo.json").read_text())
    for page in PAGES:
        text = re.sub(r"\*\*.*?\*\*", "", page.read_text(), flags=re.S)
        for name in re.findall(r"(?<![*\w])\*([^*\n]+)\*(?!\*)", text):
            assert any(title.startswith(name) for title in titles), (page.name, name)


def test_worked_examples_are_what_inspect_prints():
    blocks = re.findall(r"```\n\$ lynx (.*)\n((?:.*\n)*?)```", (ROOT / "docs/operations/sizing.md").read_text())
    assert len(blocks) == 2
    for arguments, shown in blocks:
        printed = subprocess.run([BIN / "lynx", *arguments.split()], capture_output=True, text=True).stdout.splitlines()
        for line in shown.splitlines():
            assert line in printed, line
