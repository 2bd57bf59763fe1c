"""What the shipped dashboard, rules and alerts ask of Prometheus."""
import json
import re

from cluster import ROOT
from prometheus import NAMESPACE, RULES

DASHBOARD = ROOT / "deploy" / "grafana" / "lynx-slo.json"
# What Grafana puts in the place of its variables.
VARIABLES = {"$namespace": NAMESPACE, "$model": ".*", "$pod": ".*", "$__rate_interval": "10s", "$__range": "1m"}


def substitute(text):
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$_" not in text and "${" not in text, text
    return text


def panels():
    """Those with queries, of the shipped file."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def panel_queries():
    """[(title, legend, query)]"""
    return [(panel["title"], target["legendFormat"], substitute(target["expr"]))
            for panel in panels() for target in panel["targets"]]


def rules(name):
    """[{alert or record, expr, runbook_url}] of a rules file, as Prometheus's own formatter needs no YAML here."""
    found = []
    for block in re.split(r"\n      - (?=alert:|record:)", (RULES / name).read_text())[1:]:
        kind, title = re.match(r"(alert|record): (\S+)", block).groups()
        expression = re.search(r"expr: (?:[>|]-\n)?(.*?)\n        (?:for|labels|annotations):", block, re.S).group(1)
        url = re.search(r"runbook_url: (\S+)", block)
        found.append({kind: title, "expr": " ".join(expression.split()), "runbook_url": url and url.group(1)})
    return found


def all_rules():
    return rules("slo.rules.yml") + rules("alerts.yml")


def selectors(query):
    """The selectors of our own series in a query, without those of rules' results."""
    bare = re.sub(r'"[^"]*"', lambda m: m[0].replace("{", "").replace("}", ""), query)
    return set(re.findall(r"\b(?:lynx|process)_\w+(?:\{[^}]*\})?", bare))
