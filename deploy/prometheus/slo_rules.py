#!/usr/bin/env python3
"""Writes slo.rules.yml: recording rules and burn-rate alerts of the service level objectives.

With other objectives, or other thresholds:

    ./slo_rules.py --ttft 1:0.99 --tpot 0.1:0.95 >slo.rules.yml

A threshold has to be a bound of the histogram's buckets (docs/metrics.md says where they are), else it
cannot be measured. Windows and factors are those of the SRE workbook for a period of 30 days.
"""
import argparse
import sys

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
EVENT_WINDOWS = ("1h", "6h", "1d", "3d")
# Alert, severity, and per pair: long window, short window, burn rate, least events in the long one. Without
# the least number one slow request in a quiet hour would page.
ALERTS = (
    ("LynxSLOBurnPage", "critical", (("1h", "5m", 14.4, 50), ("6h", "30m", 6, 50))),
    ("LynxSLOBurnTicket", "warning", (("1d", "2h", 3, 200), ("3d", "6h", 1, 200))),
)
FASTEST = max(pair[2] for _, _, pairs in ALERTS for pair in pairs)


def number(value):
    return f"{value:.10g}"


def bucket(metric, threshold):
    """Requests within the threshold. Prometheus 3 writes the bound 2 as 2.0."""
    text = number(threshold)
    le = f'le=~"{text}|{text}\\\\.0"' if float(text).is_integer() else f'le="{text}"'
    return f"{metric}_bucket{{{le}}}"


class Slo:
    def __init__(self, name, objective, good, total, by="namespace, model_name"):
        self.name, self.objective, self.good, self.total, self.by = name, objective, good, total, by
        if FASTEST * self.budget() >= 1:
            sys.exit(f"{name}: an error ratio is at most 1, so a burn rate of {FASTEST} is never reached with the "
                     f"objective {objective}; it has to be above {number(1 - 1 / FASTEST)}")
        if objective >= 1:
            sys.exit(f"{name}: an objective of {objective} leaves no budget")

    def budget(self):
        return float(number(1 - self.objective))

    def rules(self):
        label = f'labels: {{slo: "{self.name}"}}'
        for window in WINDOWS:
            yield (f"lynx:slo_error:ratio_rate{window}",
                   f"1 - sum by ({self.by}) (rate({self.good}[{window}])) / "
                   f"(sum by ({self.by}) (rate({self.total}[{window}])) > 0)", label)
        for window in EVENT_WINDOWS:
            yield (f"lynx:slo_events:increase{window}",
                   f"sum by ({self.by}) (increase({self.total}[{window}]))", label)
        yield ("lynx:slo_burn:rate1h",
               f'lynx:slo_error:ratio_rate1h{{slo="{self.name}"}} / {number(self.budget())}', label)
        yield ("lynx:slo_budget:left_at_rate3d",
               f'1 - lynx:slo_error:ratio_rate3d{{slo="{self.name}"}} / {number(self.budget())}', label)

    def condition(self, pairs):
        of = f'{{slo="{self.name}"}}'
        return "\n              or ".join(
            f"(lynx:slo_error:ratio_rate{long}{of} > {number(rate * self.budget())}"
            f"\n               and lynx:slo_error:ratio_rate{short}{of} > {number(rate * self.budget())}"
            f"\n               and lynx:slo_events:increase{long}{of} > {events})"
            for long, short, rate, events in pairs)


def write(slos, out):
    out.write("# Written by slo_rules.py; change that, or its arguments.\ngroups:\n")
    for slo in slos:
        out.write(f"  - name: lynx-slo-{slo.name}\n    interval: 30s\n    rules:\n")
        for record, expression, labels in slo.rules():
            out.write(f"      - record: {record}\n        expr: >-\n          {expression}\n        {labels}\n")
    out.write("  - name: lynx-slo-alerts\n    interval: 30s\n    rules:\n")
    for alert, severity, pairs in ALERTS:
        for slo in slos:
            out.write(
                f"      - alert: {alert}\n        expr: |-\n              {slo.condition(pairs)}\n"
                f"        labels: {{severity: {severity}, slo: {slo.name}}}\n"
                f"        annotations:\n"
                f'          summary: "{slo.name}: {{{{ $value | humanizePercentage }}}} of the requests miss it, '
                f'the objective is {number(100 * slo.objective)} %"\n'
                f"          runbook_url: docs/operations/runbooks.md#{alert.lower()}\n")


def threshold(text):
    seconds, _, objective = text.partition(":")
    return float(seconds), float(objective)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--availability", type=float, default=0.995, help="share of requests that succeed")
    parser.add_argument("--ttft", type=threshold, default="2:0.99", metavar="SECONDS:SHARE",
                        help="time to the first token of streams")
    parser.add_argument("--tpot", type=threshold, default="0.05:0.99", metavar="SECONDS:SHARE",
                        help="mean time per further token of a choice")
    parser.add_argument("--quality", type=float, default=0.99,
                        help="share of the compared decode steps within the quality budget")
    options = parser.parse_args()
    ttft, tpot = "lynx_router_time_to_first_token_seconds", "lynx_router_time_per_output_token_seconds"
    write([
        # What was refused counts as bad: shedding is an outage for the caller.
        Slo("availability", options.availability,
            'lynx_router_requests_total{outcome=~"ok|client_error|cancelled"}', "lynx_router_requests_total"),
        Slo("ttft", options.ttft[1], bucket(ttft, options.ttft[0]), f"{ttft}_count"),
        Slo("tpot", options.tpot[1], bucket(tpot, options.tpot[0]), f"{tpot}_count"),
        Slo("quality", options.quality, 'lynx_quality_samples_total{result="ok"}',
            'lynx_quality_samples_total{result=~"ok|breach"}', by="namespace"),
    ], sys.stdout)


if __name__ == "__main__":
    main()
