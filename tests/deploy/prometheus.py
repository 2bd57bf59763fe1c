"""A real Prometheus that scrapes a cluster of real processes every second."""
import contextlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.parse

from cluster import ROOT, fetch, wait_for

RULES = ROOT / "deploy" / "prometheus"
NAMESPACE = "lynx-test"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Prometheus:
    def __init__(self, folder, cluster, more=""):
        """`more`: further scrape configs."""
        self.folder = folder
        self.cluster = cluster
        self.port = free_port()
        self.targets = folder / "targets.json"
        self.write_targets()
        for name in ("slo.rules.yml", "alerts.yml"):
            rules = re.sub(r"interval: \d+s", "interval: 1s", (RULES / name).read_text())
            # Alerts whose cause a test brings about are told at once.
            rules = re.sub(r"(alert: (?:LynxNoReadyNodes|LynxTargetDown)\n.*\n +for: )\dm", r"\g<1>1s", rules)
            (folder / name).write_text(rules)
        config = (RULES / "prometheus.yml").read_text()
        for pattern, by in ((r"_interval: \d+s", "_interval: 1s"), (r"targets\.yml", "targets.json")):
            config, changes = re.subn(pattern, by, config)
            assert changes, pattern
        (folder / "prometheus.yml").write_text(config + more)
        self.log = open(folder / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_for(self.is_ready, 30, "ready Prometheus")

    def is_ready(self):
        assert self.process.poll() is None, (self.folder / "prometheus.log").read_text()
        with contextlib.suppress(OSError):
            return fetch(f"http://127.0.0.1:{self.port}/-/ready")[0] == 200

    def write_targets(self):
        """As Kubernetes would label them. Replaced whole: Prometheus reads it whenever it changes."""
        targets = [{"targets": [process.http],
                    "labels": {"namespace": NAMESPACE, "component": process.name.split("-")[0], "pod": process.name}}
                   for process in self.cluster.processes()]
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(targets))
        os.replace(new, self.targets)

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        status, text = fetch(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}")
        answer = json.loads(text)
        assert status == 200 and answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expression):
        """[(labels, value)] of an instant query, now."""
        return [(series["metric"], float(series["value"][1]))
                for series in self.ask("query", query=expression)["result"]]

    def wait_scraped(self):
        """Every process that runs now has been scraped after this call, and twice in all."""
        since = time.time()
        names = {process.http for process in self.cluster.processes()}

        def scraped():
            fresh = {labels["instance"] for labels, value in self.query(f'timestamp(up{{job="lynx"}} == 1) > {since}')}
            twice = {labels["instance"] for labels, value in self.query('count_over_time(lynx_build_info[8s]) > 1')}
            return names <= fresh & twice

        wait_for(scraped, 30, "scrape of every process")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
