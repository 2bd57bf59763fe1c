"""Rules and alerts, without a cluster."""
import re
import subprocess

import pytest

import queries
from cluster import ROOT
from prometheus import RULES

PROMTOOL = ROOT / "tests" / "deploy" / "promtool"


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, cwd=PROMTOOL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_its_rules_are_valid():
    promtool("check", "config", str(RULES / "prometheus.yml"))


@pytest.mark.parametrize("name", sorted(path.name for path in PROMTOOL.glob("*_test.yml")))
def test_alerts_fire_and_keep_silent(name):
    promtool("test", "rules", name)


def test_every_alert_is_tried_firing_and_without_data():
    tried = "".join(path.read_text() for path in PROMTOOL.glob("*_test.yml"))
    for alert in {rule["alert"] for rule in queries.all_rules() if "alert" in rule}:
        named = re.findall(rf"alertname: {alert}\b.*(?:\n +exp_alerts:\n)?", tried)
        assert any("exp_alerts:\n" in one for one in named), f"{alert} never fires"
        assert any("exp_alerts:\n" not in one for one in named), f"{alert} is never silent"


def generated(folder, program, *arguments):
    return subprocess.run([ROOT / "deploy" / folder / program, *arguments], capture_output=True, text=True)


def test_generated_files_are_what_their_programs_write():
    for folder, program, name in (("prometheus", "slo_rules.py", "slo.rules.yml"),
                                  ("grafana", "make_dashboard.py", "lynx-slo.json")):
        assert generated(folder, program).stdout == (ROOT / "deploy" / folder / name).read_text(), program


def test_an_objective_that_could_never_page_is_refused():
    for arguments in (("--tpot", "0.05:0.93"), ("--availability", "1")):
        done = generated("prometheus", "slo_rules.py", *arguments)
        assert done.returncode != 0 and "objective" in done.stderr, done


def anchors(path):
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", path.read_text(), re.M)}


def test_every_alert_has_a_runbook_and_the_other_way_round():
    alerts = {rule["alert"]: rule["runbook_url"] for rule in queries.all_rules() if "alert" in rule}
    for alert, url in alerts.items():
        page, anchor = url.split("#")
        assert anchor == alert.lower() and anchor in anchors(ROOT / page), url
    page = (ROOT / "docs/operations/runbooks.md").read_text()
    assert set(re.findall(r"^#+ (Lynx\w+)$", page, re.M)) == set(alerts)


def test_no_panel_is_bound_to_a_data_source():
    for panel in queries.panels():
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]


def test_thresholds_are_bounds_of_the_buckets():
    header = (ROOT / "common/telemetry/buckets.h").read_text()
    for of, name in (("time_to_first_token", "kTtftSeconds"), ("time_per_output_token", "kInterTokenSeconds")):
        bounds = re.search(rf"{name}\[\] = {{([^}}]*)}}", header).group(1)
        used = {le.split("|")[0] for rule in queries.rules("slo.rules.yml")
                for le in re.findall(rf'{of}_seconds_bucket{{le=~?"([^"]*)"', rule["expr"])}
        assert len(used) == 1 and {float(le) for le in used} <= {float(b) for b in bounds.split(",")}, (of, used)
