#!/usr/bin/env python3
"""Writes lynx-slo.json, the dashboard of a cluster: ./make_dashboard.py >lynx-slo.json

Panels are listed below, row by row. In queries S stands for the selector of what routers measure (namespace, model)
and P for that of single processes (namespace, pod). Ratios divide by `(... > 0)`, so that an idle cluster shows
"no data" and not NaN.
"""
import json
import re

SELECTORS = {
    "S": 'namespace=~"$namespace",model_name=~"$model"',
    "R": 'namespace=~"$namespace"',
    "P": 'namespace=~"$namespace",pod=~"$pod"',
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
EACH = "by (namespace, pod, instance)"
POD = "{{pod}} {{instance}}"


def fill(query):
    """`metric{P}` and `metric{P,more="x"}` with the selectors spelled out."""
    return re.sub(r"\{([SRP])([,}])", lambda m: "{" + SELECTORS[m[1]] + m[2], query)


def quantile(q, metric, by="", where="S"):
    """Without observations the function gives NaN, which the comparison drops."""
    return f"histogram_quantile({q}, sum by (le{by}) (rate({metric}_bucket{{{where}}}[$__rate_interval]))) >= 0"


def quantiles(metric, qs=(0.5, 0.95, 0.99)):
    return [(quantile(q, metric), f"p{q * 100:.0f}") for q in qs]


def target(slo):
    return (f'max(lynx_router_slo_target_seconds{{S,slo="{slo}"}}) > 0', "target")


def attained(slo):
    met = f'sum(increase(lynx_router_slo_requests_total{{S,slo="{slo}",result="met"}}[$__range]))'
    return f'{met} / (sum(increase(lynx_router_slo_requests_total{{S,slo="{slo}"}}[$__range])) > 0)'


def rate(metric, by="", where="P"):
    return f"sum{' by (' + by + ')' if by else ''} (rate({metric}{{{where}}}[$__rate_interval]))"


# Panel: title, kind, unit, queries [(query, legend)], and what else it is given: thresholds [(value, colour)],
# `stack`, `note`.
def panel(title, kind, unit, *queries, thresholds=(), stack=False, note="", width=6, low=None, high=None):
    return dict(title=title, kind=kind, unit=unit, queries=queries, thresholds=thresholds, stack=stack, note=note,
                width=width, low=low, high=high)


BUDGET = [(None, "red"), (0, "orange"), (0.25, "green")]
SHARE = [(None, "red"), (0.97, "orange"), (0.99, "green")]

ROWS = [
    ("Service level objectives", [
        panel("Error budget left at the rate of 3 days", "gauge", "percentunit",
              ('lynx:slo_budget:left_at_rate3d{namespace=~"$namespace"}', "{{slo}} {{model_name}}"), thresholds=BUDGET,
              low=0, high=1, note="1: nothing is lost; below 0 the objective of 30 days is missed at this rate."),
        panel("Burn rate, 1 h", "timeseries", "none",
              ('lynx:slo_burn:rate1h{namespace=~"$namespace"}', "{{slo}} {{model_name}}"),
              thresholds=[(None, "green"), (1, "yellow"), (6, "orange"), (14.4, "red")],
              note="1 uses the budget up in 30 days. 14.4 for an hour, or 6 for six hours, pages."),
        panel("Kept the TTFT target", "stat", "percentunit", (attained("ttft"), "ttft"), thresholds=SHARE, width=3,
              note="Of the target that the router is given with --slo-ttft; no data without one."),
        panel("Kept the TPOT target", "stat", "percentunit", (attained("tpot"), "tpot"), thresholds=SHARE, width=3,
              note="Of the target that the router is given with --slo-tpot; no data without one."),
        panel("Answered within all targets", "stat", "percentunit", (attained("all"), "all"), width=3,
              thresholds=[(None, "red"), (0.9, "orange"), (0.95, "green")],
              note="Refused and failed requests count as missed."),
        panel("Firing alerts", "stat", "short",
              ('count(ALERTS{alertstate="firing",alertname=~"Lynx.*"}) or vector(0)', "firing"),
              thresholds=[(None, "green"), (1, "red")], width=3),
    ]),
    ("What clients see", [
        panel("Time to first token", "timeseries", "s", *quantiles("lynx_router_time_to_first_token_seconds"),
              target("ttft")),
        panel("Inter-token latency", "timeseries", "s", *quantiles("lynx_router_inter_token_latency_seconds")),
        panel("Time per output token, of a whole answer", "timeseries", "s",
              *quantiles("lynx_router_time_per_output_token_seconds"), target("tpot")),
        panel("Whole requests", "timeseries", "s", *quantiles("lynx_router_request_duration_seconds")),
        panel("Time to first token, distribution", "heatmap", "s",
              ("sum by (le) (increase(lynx_router_time_to_first_token_seconds_bucket{S}[$__rate_interval]))", "{{le}}")),
        panel("Where the time to the first token goes (mean)", "timeseries", "s",
              ('sum by (stage) (rate(lynx_router_stage_duration_seconds_sum{R,stage=~'
               '"tokenize|queue|given_up|reserve|prefill"}[$__rate_interval])) / ignoring (stage) group_left () '
               '(sum(rate(lynx_router_stage_duration_seconds_count{R,stage="prefill"}[$__rate_interval])) > 0)',
               "{{stage}}"), stack=True, note="The stages of a sequence add up to its time to the first token."),
        panel("From the first token to the second (mean)", "timeseries", "s",
              ('sum by (stage) (rate(lynx_router_stage_duration_seconds_sum{R,stage=~"kv_transfer|decode_wait"}'
               '[$__rate_interval])) / ignoring (stage) group_left () (sum(rate('
               'lynx_router_stage_duration_seconds_count{R,stage="decode_wait"}[$__rate_interval])) > 0)', "{{stage}}"),
              stack=True, note="kv_transfer: what of the hand-off follows the first token; the rest overlaps prefill."),
        panel("Stop of work after a client left, p99", "timeseries", "s",
              (quantile(0.99, "lynx_router_release_duration_seconds", where="R"), "p99")),
    ]),
    ("Traffic", [
        panel("Requests by outcome", "timeseries", "reqps", (rate("lynx_router_requests_total", "outcome", "S"), "{{outcome}}")),
        panel("Error ratio", "timeseries", "percentunit",
              ('sum(rate(lynx_router_requests_total{S,outcome=~"server_error|stream_error|rejected"}[$__rate_interval])) / '
               '(sum(rate(lynx_router_requests_total{S}[$__rate_interval])) > 0)', "failed or refused"),
              thresholds=[(None, "green"), (0.01, "red")]),
        panel("Refusals by reason", "timeseries", "reqps", (rate("lynx_router_rejections_total", "reason", "R"), "{{reason}}")),
        panel("Attempts begun anew", "timeseries", "reqps",
              (rate("lynx_router_retries_total", "stage, reason", "R"), "{{stage}} {{reason}}")),
        panel("Answers that lost their nodes", "timeseries", "reqps",
              (rate("lynx_router_failovers_total", "result", "R"), "{{result}}")),
        panel("Tokens", "timeseries", "short", (rate("lynx_router_prompt_tokens_total", "", "S"), "prompt tokens/s"),
              (rate("lynx_router_output_tokens_total", "", "S"), "output tokens/s"),
              (rate("lynx_router_goodput_tokens_total", "", "S"), "of answers within all targets")),
        panel("Queued and in flight", "timeseries", "short", ("sum(lynx_router_queued_requests{R})", "queued"),
              ("sum(lynx_router_inflight_requests{S})", "requests in flight"),
              ("sum(lynx_router_inflight_sequences{R})", "sequences on nodes")),
        panel("Where prompts are computed", "timeseries", "reqps",
              (rate("lynx_router_routing_decisions_total", "decision", "R"), "{{decision}}")),
        panel("Time in the queue, p95", "timeseries", "s",
              (quantile(0.95, "lynx_router_queue_duration_seconds", where="R"), "p95")),
    ]),
    ("Prefill and decode", [
        panel("Ready nodes", "stat", "short", ('max by (role) (lynx_router_nodes{R,state="ready"})', "{{role}}"),
              thresholds=[(None, "red"), (1, "green")]),
        panel("Nodes by state", "timeseries", "short", ("max by (role, state) (lynx_router_nodes{R})", "{{role}} {{state}}")),
        panel("Sequences running", "timeseries", "short", (f"sum {EACH} (lynx_node_running_requests{{P}})", POD)),
        panel("Sequences waiting for room", "timeseries", "short", (f"sum {EACH} (lynx_node_waiting_requests{{P}})", POD)),
        panel("Batch, p50", "timeseries", "short", (quantile(0.5, "lynx_node_batch_size", ", phase", "P"), "{{phase}}")),
        panel("Time of a step, p99", "timeseries", "s",
              (quantile(0.99, "lynx_node_step_duration_seconds", ", phase", "P"), "{{phase}}")),
        panel("Seconds since the last step of busy nodes", "timeseries", "s",
              ("(time() - lynx_node_last_step_timestamp_seconds{P}) and on (job, instance) "
               "(sum by (job, instance) (lynx_node_running_requests{P}) > 0)", POD),
              thresholds=[(None, "green"), (60, "red")]),
        panel("Sampled tokens per second", "timeseries", "short",
              (f"sum {EACH} (rate(lynx_node_output_tokens_total{{P}}[$__rate_interval]))", POD)),
        panel("KV memory in use", "timeseries", "percentunit", (f"max {EACH} (lynx_kv_usage_ratio{{P}})", POD),
              thresholds=[(None, "green"), (0.85, "orange"), (0.95, "red")]),
        panel("KV blocks by state", "timeseries", "short", ("sum by (state) (lynx_kv_blocks{P})", "{{state}}"), stack=True),
        panel("Prompt tokens by where their KV came from", "timeseries", "short",
              (rate("lynx_node_prompt_tokens_total", "source"), "{{source}}")),
        panel("Preemptions", "timeseries", "ops", (f"sum {EACH} (rate(lynx_node_preemptions_total{{P}}[$__rate_interval]))", POD)),
        panel("Prompts found in the prefix cache", "timeseries", "percentunit",
              ('sum(rate(lynx_node_prompt_tokens_total{P,source="cached"}[$__rate_interval])) / '
               '(sum(rate(lynx_node_prompt_tokens_total{P,source=~"cached|computed"}[$__rate_interval])) > 0)',
               "share of prefill's tokens")),
        panel("Ranks of a node", "timeseries", "short", (f"max {EACH} (lynx_node_ranks{{P}})", POD),
              note="All of them alive: a node ends with any of its ranks."),
        panel("Fullest rank over the mean, experts", "timeseries", "none",
              (f"max {EACH[:-1]}, stage) (lynx_moe_rank_imbalance_ratio{{P}})", POD + " {{stage}}"),
              note="1: every rank has as many experts to read; a step waits for the one with most."),
    ]),
    ("KV hand-off", [
        panel("Bytes per second", "timeseries", "Bps",
              (rate("lynx_kv_transfer_bytes_total", "direction, transport"), "{{direction}} {{transport}}")),
        panel("Time of a hand-off, p99", "timeseries", "s",
              (quantile(0.99, "lynx_kv_transfer_duration_seconds", ", direction", "P"), "{{direction}}")),
        panel("Rate of a hand-off, p50", "timeseries", "Bps",
              (quantile(0.5, "lynx_kv_transfer_throughput_bytes_per_second", ", direction", "P"), "{{direction}}")),
        panel("Hand-offs by result", "timeseries", "ops", (rate("lynx_kv_transfers_total", "result"), "{{result}}")),
        panel("Failure ratio", "timeseries", "percentunit",
              ('sum by (direction) (rate(lynx_kv_transfers_total{P,result!~"ok|aborted"}[$__rate_interval])) / '
               '(sum by (direction) (rate(lynx_kv_transfers_total{P}[$__rate_interval])) > 0)', "{{direction}}"),
              thresholds=[(None, "green"), (0.01, "red")]),
        panel("Oldest under way", "timeseries", "s",
              ("max by (direction) (lynx_kv_transfer_oldest_pending_seconds{P})", "{{direction}}"),
              thresholds=[(None, "green"), (30, "red")]),
        panel("Under way", "timeseries", "bytes", ("sum by (direction) (lynx_kv_transfer_pending_bytes{P})", "{{direction}}"),
              ("sum(lynx_kv_transfer_quarantined_bytes{P})", "quarantined")),
        panel("Given up and dropped", "timeseries", "ops",
              (rate("lynx_kv_transfer_leases_expired_total"), "leases expired"),
              (rate("lynx_kv_transfer_dropped_total"), "messages dropped"),
              (rate("lynx_kv_transfer_prefix_mismatches_total"), "prefix mismatches")),
    ]),
    ("Lynx: experts", [
        panel("Distinct experts of a layer in a step, before and after", "timeseries", "short",
              ("sum by (stage) (rate(lynx_moe_active_experts_sum{P}[$__rate_interval])) / "
               "(sum by (stage) (rate(lynx_moe_active_experts_count{P}[$__rate_interval])) > 0)", "{{stage}}"),
              note="Of all phases; before: what exact routing of the same rows would read."),
        panel("Fewer experts", "stat", "percentunit",
              ('1 - sum(rate(lynx_moe_active_experts_sum{P,stage="after"}[$__range])) / '
               '(sum(rate(lynx_moe_active_experts_sum{P,stage="before"}[$__range])) > 0)', "fewer"), width=3),
        panel("Expert bytes left unread", "stat", "percentunit",
              ("sum(rate(lynx_moe_expert_weight_saved_bytes_total{P}[$__range])) / "
               "((sum(rate(lynx_moe_expert_weight_saved_bytes_total{P}[$__range])) + "
               "sum(rate(lynx_moe_expert_weight_read_bytes_total{P}[$__range]))) > 0)", "saved"), width=3),
        panel("Expert bytes", "timeseries", "Bps", (rate("lynx_moe_expert_weight_read_bytes_total"), "read"),
              (rate("lynx_moe_expert_weight_saved_bytes_total"), "saved")),
        panel("Remapped assignments", "timeseries", "percentunit",
              (rate("lynx_moe_remapped_assignments_total", "phase") + " / (" + rate("lynx_moe_assignments_total", "phase") +
               " > 0)", "{{phase}}"), note="Prefill has to be 0."),
        *[panel(f"Experts by layer, {stage}", "layers", "short",
                ('label_replace(sum by (layer) (rate(lynx_moe_layer_active_experts_total{P,stage="' + stage +
                 '"}[$__rate_interval])) / (sum by (layer) (rate(lynx_moe_layer_plans_total{P}[$__rate_interval])) > 0), '
                 '"layer", "0$1", "layer", "(.)")', "layer {{layer}}")) for stage in ("before", "after")],
        panel("Plans left exact, by reason", "timeseries", "ops", (rate("lynx_moe_bypass_total", "reason"), "{{reason}}"),
              stack=True),
        panel("Time to make a plan, p99", "timeseries", "s", (quantile(0.99, "lynx_moe_plan_duration_seconds", where="P"), "p99")),
        panel("Policy", "table", "none", ("max by (pod, instance, policy, parameters) (lynx_moe_policy_info{P})", "")),
    ]),
    ("Lynx: quality", [
        panel("KL of compared tokens", "timeseries", "none", (quantile(0.5, "lynx_quality_kl_divergence_nats", where="P"), "p50"),
              (quantile(0.99, "lynx_quality_kl_divergence_nats", where="P"), "p99"),
              ("sum(rate(lynx_quality_kl_divergence_nats_sum{P}[$__rate_interval])) / "
               "(sum(rate(lynx_quality_kl_divergence_nats_count{P}[$__rate_interval])) > 0)", "mean"),
              note="KL(exact || policy) in nats; the guard's budget is --lynx-guard-kl, of the mean."),
        panel("Likeliest token the same", "timeseries", "percentunit",
              ('sum(rate(lynx_quality_top1_total{P,agree="true"}[$__rate_interval])) / '
               '(sum(rate(lynx_quality_top1_total{P}[$__rate_interval])) > 0)', "agreement")),
        panel("Gate mass kept by the worst row", "timeseries", "percentunit",
              (quantile(0.05, "lynx_moe_kept_gate_mass_ratio", where="P"), "p5"),
              (quantile(0.5, "lynx_moe_kept_gate_mass_ratio", where="P"), "p50")),
        panel("Guard", "state-timeline", "none", (f"max {EACH[:-1]}, state) (lynx_quality_guard_state{{P}} == 1)",
                                                  POD + " {{state}}")),
        panel("Guard trips", "timeseries", "short",
              ("sum by (reason) (increase(lynx_quality_guard_trips_total{P}[$__rate_interval]))", "{{reason}}"),
              thresholds=[(None, "green"), (1, "red")]),
        panel("Compared steps", "timeseries", "ops", (rate("lynx_quality_samples_total", "result"), "{{result}}")),
        panel("Rung of the policy auto", "timeseries", "short", (f"max {EACH} (lynx_moe_auto_rung{{P}})", POD)),
    ]),
    ("Processes and control plane", [
        panel("CPU", "timeseries", "short", (f"sum {EACH} (rate(process_cpu_seconds_total{{P}}[$__rate_interval]))", POD),
              note="Cores in use."),
        panel("Resident memory", "timeseries", "bytes", (f"sum {EACH} (process_resident_memory_bytes{{P}})", POD)),
        panel("File descriptors in use", "timeseries", "percentunit",
              (f"max {EACH} (process_open_fds{{P}} / process_max_fds{{P}})", POD),
              thresholds=[(None, "green"), (0.8, "red")]),
        panel("HTTP connections", "timeseries", "short", ("sum by (server) (lynx_http_connections{P})", "{{server}}")),
        panel("Longest silence of a node", "timeseries", "s",
              ("max by (role) (lynx_control_heartbeat_age_seconds{P})", "{{role}}")),
        panel("Control messages not delivered", "timeseries", "ops",
              (rate("lynx_control_messages_dropped_total", "reason"), "{{reason}}")),
        panel("What runs", "table", "none", ("max by (component, version, isa, pod) (lynx_build_info{P})", "")),
        panel("GPU utilisation (DCGM)", "timeseries", "percent", ("DCGM_FI_DEV_GPU_UTIL{R}", "{{gpu}} {{Hostname}}"),
              note="No data without the DCGM exporter."),
    ]),
]


def grafana(spec, number, x, y, height):
    kind = "heatmap" if spec["kind"] == "layers" else spec["kind"]
    instant = kind in ("stat", "gauge", "table")
    targets = []
    for i, (query, legend) in enumerate(spec["queries"]):
        one = {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": fill(query), "legendFormat": legend or "__auto",
               "instant": instant, "range": not instant}
        if spec["kind"] == "heatmap" or kind == "table":
            one["format"] = kind
        targets.append(one)
    custom = {}
    if kind == "timeseries":
        custom = {"fillOpacity": 30 if spec["stack"] else 0, "showPoints": "never",
                  "stacking": {"mode": "normal" if spec["stack"] else "none"}}
        if spec["thresholds"]:
            custom["thresholdsStyle"] = {"mode": "line"}
    elif kind == "state-timeline":
        custom = {"fillOpacity": 70}
    steps = [{"value": value, "color": colour} for value, colour in spec["thresholds"] or [(None, "green")]]
    defaults = {"unit": spec["unit"], "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}}
    for bound, key in (("min", "low"), ("max", "high")):
        if spec[key] is not None:
            defaults[bound] = spec[key]
    overrides = []
    if any(legend == "target" for _, legend in spec["queries"]):
        overrides = [{"matcher": {"id": "byName", "options": "target"}, "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}}]}]
    options = {
        "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "heatmap": {"calculate": False, "yAxis": {"unit": spec["unit"]}, "cellGap": 1,
                    "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}, "tooltip": {"show": True}},
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}},
        "gauge": {"reduceOptions": {"calcs": ["lastNotNull"]}},
    }.get(kind, {})
    result = {"id": number, "title": spec["title"], "type": kind, "datasource": DATASOURCE,
              "gridPos": {"x": x, "y": y, "w": spec["width"], "h": height},
              "fieldConfig": {"defaults": defaults, "overrides": overrides}, "options": options, "targets": targets}
    if spec["note"]:
        result["description"] = spec["note"]
    return result


def variable(name, query):
    return {"name": name, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1,
            "current": {"text": ["All"], "value": ["$__all"]}}


def dashboard():
    panels, y, height = [], 0, 7
    for title, specs in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        x = 0
        for spec in specs:
            if x + spec["width"] > 24:
                x, y = 0, y + height
            panels.append(grafana(spec, len(panels) + 1, x, y, height))
            x += spec["width"]
        y += height
    return {
        "uid": "lynx-slo", "title": "Lynx", "tags": ["lynx"], "schemaVersion": 39, "version": 1, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "editable": True, "graphTooltip": 1,
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source", "current": {}},
            # Each of metrics that an idle cluster has.
            variable("namespace", "label_values(lynx_build_info, namespace)"),
            variable("model", 'label_values(lynx_router_requests_total{namespace=~"$namespace"}, model_name)'),
            variable("pod", 'label_values(lynx_build_info{namespace=~"$namespace"}, pod)'),
        ]},
        "annotations": {"list": []}, "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
