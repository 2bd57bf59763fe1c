#!/usr/bin/env bash
# From a fresh Debian 12 to streamed answers: installs what is missing, builds, starts one router, one
# prefill and one decode node that remaps experts (Lynx), asks three questions, shows what moved and
# what remapping saves, here and on layers as large as a real model's, and stops everything.
#
# usage: ./demo.sh [--keep] [--port N]
#   --keep    leave the cluster running until Ctrl-C
#   --port N  port of the router (default 8080)
set -euo pipefail
cd "$(dirname "$0")"

usage() { sed -n '2,/^set/p' demo.sh | grep '^#' | cut -c3-; }

keep=0
port=8080
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=1 ;;
    --port) port="${2-}"; shift $(($# > 1)) ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ "$port" =~ ^[0-9]+$ ]] || { echo "--port needs a number" >&2; exit 2; }

source tests/tools/setup.sh
lynx_install build
[ -f build/release/build.ninja ] || cmake --preset release >/dev/null
echo "building (a few minutes the first time)"
lynx_build release lynx lynx-router lynx-prefill lynx-decode

bin=build/release/bin
work=$(mktemp -d)
up=
stop() {
  if [ -n "$up" ] && kill -0 "$up" 2>/dev/null; then
    kill -TERM "$up"
    wait "$up" || true
  fi
  rm -rf "$work"
}
trap stop EXIT
explain() { grep -E '"level":"error"|^lynx' "$work/log" || tail -20 "$work/log"; } >&2

# The programs default to exact; Lynx is switched on here, in plain sight.
echo 'lynx up --model models/lynx-tiny-moe --lynx-policy lynx'
"$bin/lynx" up --model models/lynx-tiny-moe --lynx-policy lynx --port "$port" \
  --announce "$work/cluster" 2>"$work/log" &
up=$!
until [ -s "$work/cluster" ]; do
  if ! kill -0 "$up" 2>/dev/null; then
    explain
    exit 1
  fi
  sleep 0.1
done
url=$(sed -n 's/^router=//p' "$work/cluster")

for question in "What is 58+27?" "Sort: 42 7 19 88" "What day comes after Friday?"; do
  printf '\n> %s\n' "$question"
  "$bin/lynx" chat --url "$url" --message "$question" --stats
done

printf '\nKV hand-off from prefill to decode:\n'
decode=$(sed -n 's/^decode-0=//p' "$work/cluster")
curl -fsS "$decode/metrics" | awk '
  /^lynx_kv_transfers_total\{/ && /direction="recv"/ && /result="ok"/ && $2 > 0 {
    match($0, /transport="[^"]*"/); name = substr($0, RSTART + 11, RLENGTH - 12); transfers = $2 }
  /^lynx_kv_transfer_bytes_total\{/ && /direction="recv"/ && $2 > 0 { bytes = $2 }
  END {
    if (transfers == 0) { print "  nothing moved"; exit 1 }
    printf "  %d hand-offs over UCX (%s), %d bytes of KV\n", transfers, name, bytes }'

# Sixteen answers at once, of different kinds; $1 is added to each request.
prompts=('What is 58+27?' 'Sort: 42 7 19 88' 'What day comes after Friday?' 'static int __init '
  'The history of the city began' 'def main(argv):' '#include <stdio.h>' '1, 2, 3, 4,')
ask_sixteen() {
  local pids=() pid i
  for i in $(seq 16); do
    curl -fsS "$url/v1/completions" -H 'Content-Type: application/json' -o /dev/null -d '{
      "model": "lynx-tiny-moe", "prompt": "'"${prompts[i % 8]}"'", "max_tokens": 256,
      "ignore_eos": true, "seed": '"$i$1"'}' &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
}
# One row of the table, from the difference of two pages of metrics.
compare() {
  awk -v policy="$1" '
    /^lynx_moe_layer_plans_total/ { plans += FNR == NR ? -$2 : $2 }
    /^lynx_moe_layer_active_experts_total.*"before"/ { before += FNR == NR ? -$2 : $2 }
    /^lynx_moe_layer_active_experts_total.*"after"/ { after += FNR == NR ? -$2 : $2 }
    /^lynx_moe_expert_weight_read_bytes_total/ { bytes += FNR == NR ? -$2 : $2 }
    /^lynx_node_output_tokens_total/ { tokens += FNR == NR ? -$2 : $2 }
    END { printf "  %-7s %8.1f %8.1f %10.0f KiB\n", policy, before / plans, after / plans, bytes / tokens / 1024 }' \
    "$work/before" "$work/after"
}
printf '\nExact against Lynx, 16 answers at once (64 experts a layer, a token uses 8):\n'
printf '  policy   experts a layer    expert weights\n'
printf '           wanted   loaded    read a token\n'
for policy in exact lynx; do
  curl -fsS "$decode/metrics" >"$work/before"
  ask_sixteen "$([ "$policy" = exact ] && echo ', "lynx": {"policy": "exact"}')"
  curl -fsS "$decode/metrics" >"$work/after"
  compare "$policy"
done
printf '  wanted: what exact routing of the same batches would load\n'

# The demo model fits into caches; layers of a real model's size show what the bytes are in time.
needed=4 # GB: 2.1 of weights and 1.1 to measure bandwidth with
free=$({ cat /proc/meminfo && cat /sys/fs/cgroup/memory.max || true; } 2>/dev/null | awk '
  /^MemAvailable:/ { free = $2 * 1024 }
  NF == 1 && $1 != "max" && $1 < free { free = $1 }
  END { printf "%.1f", free / 1e9 }')
printf '\nThe same with 2 layers as large as those of OLMoE-1B-7B, read from memory and not from caches:\n'
if awk "BEGIN { exit $free >= $needed }"; then
  printf '  skipped: it needs %d GB of free memory, and %s GB are free\n' "$needed" "$free"
else
  "$bin/lynx" bench decode --shape olmoe-1b-7b --layers 2 --batch 16 --context 128 \
    --policy exact,lynx --rounds 5 --steps 3 --read-buffer 1GiB >"$work/bench"
  awk '
    function row(name) {
      printf "  %-7s %12.1f %12.2f GB %8.0f ms %9.0f %11.0f %%\n", name, $11, $7 / 1000, $4, $6, $9 }
    BEGIN {
      print "  policy   experts a layer   read a step      time   tokens/s   of memory bandwidth" }
    NF == 12 && $1 == "exact" { row("exact") }
    NF == 12 && $1 ~ /^lynx:/ { row("lynx") }
    / against exact/ {
      printf "  round by round: %.2f of the bytes in %.2f of the time, %.2f times the tokens/s\n",
        $(NF - 3), $(NF - 7), 1 / $(NF - 7)
      compared = 1 }
    END { exit !compared }' "$work/bench"
fi

if [ "$keep" = 1 ]; then
  printf '\nrunning at %s; Ctrl-C stops it\n' "$url"
  trap 'stop; exit 0' INT TERM
  wait "$up" || { explain; exit 1; }
  exit
fi
kill -TERM "$up"
wait "$up" || { echo "the cluster did not stop cleanly" >&2; tail -20 "$work/log" >&2; exit 1; }
up=
printf '\nstopped\n'
