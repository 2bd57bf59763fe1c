"""The pages that list metrics and options say what the programs really have."""
import re
import subprocess

from cluster import BIN, ROOT, fetch


def families(process):
    """{(name, type, its labels)} of what a process serves."""
    status, text = fetch(process.url("/metrics"))
    assert status == 200, (process.name, status, text)
    found = set()
    for name, kind, lines in re.findall(r"^# TYPE (\w+) (\w+)\n((?:[^#].*\n)+)", text, re.M):
        labels = set(re.findall(r'[{,](\w+)="', re.sub(r'"(?:[^"\\]|\\.)*"', '""', lines))) - {"le"}
        found.add((name, kind, tuple(sorted(labels))))
    return found


def test_every_metric_is_on_the_page_and_the_other_way_round(cluster):
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    listed = {(name, kind, tuple(sorted(re.findall(r"\w+", labels))), role)
              for name, kind, labels, roles in rows for role in roles.split(", ")}
    for process in cluster.processes():
        role = process.name.split("-")[0]
        served = families(process)
        on_page = {(name, kind, labels) for name, kind, labels, of in listed if of == role}
        assert served == on_page, (process.name, "not on the page", sorted(served - on_page),
                                   "not served", sorted(on_page - served))


def test_every_option_is_on_the_page_and_the_other_way_round():
    page = (ROOT / "docs/configuration.md").read_text()
    for program in ("lynx-router", "lynx-prefill", "lynx-decode", "lynx up", "lynx chat", "lynx loadtest", "lynx plan",
                    "lynx inspect", "lynx keygen", "lynx top"):
        section = page.split(f"\n## {program}\n")[1].split("\n## ")[0]
        listed = set(re.findall(r"^\| `([A-Za-z0-9-]+)` \|", section, re.M))
        words = program.split()
        shown = subprocess.run([str(BIN / words[0]), *words[1:], "--help"], capture_output=True, text=True, check=True)
        flags = set(re.findall(r"^  (?:-h,)?--([A-Za-z0-9-]+)", shown.stdout, re.M)) - {"help", "version", "config"}
        assert flags == listed, program


def test_every_row_of_the_failure_model_names_tests_that_exist():
    page = (ROOT / "docs/failure-model.md").read_text()
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*_test.cc")))
    exist = {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", sources, re.M)}
    exist |= {f"{path.name}::{name}" for path in (ROOT / "tests/process").rglob("test_*.py")
              for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    events = page.split("\n## Events\n")[1].split("\n## ")[0]
    rows = [row for row in events.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        assert re.search(r"`[\w.]+(?:::|\.)\w+`", row.split("|")[-2]), row
    named = set(re.findall(r"`(\w+Test\.\w+|test_\w+\.py::\w+)`", page))
    assert named <= exist, sorted(named - exist)
    assert len(named) > 30
