#!/usr/bin/env python3
"""Writes prometheusrule.yaml, the rules of deploy/prometheus for the Prometheus operator:

    ./make_rules.py >prometheusrule.yaml
"""
import pathlib

RULES = pathlib.Path(__file__).resolve().parents[3] / "prometheus"

print("# Written by make_rules.py from deploy/prometheus.")
print("apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: lynx}\nspec:\n  groups:")
for name in ("slo.rules.yml", "alerts.yml"):
    groups = (RULES / name).read_text().split("groups:\n", 1)[1]
    print("".join("  " + line for line in groups.splitlines(keepends=True)), end="")
