#!/usr/bin/env bash
# Builds and runs every test. Installs what is missing (Debian packages, Python packages in .venv).
#
# usage: ./test.sh [--long] [--stage NAME]...
#   --stage  release  build with warnings, unit, integration and golden tests
#            asan     unit and integration tests under AddressSanitizer and UBSan
#            tsan     tests of what runs on several threads, under ThreadSanitizer
#            process  the real binaries, driven from outside
#            deploy   what deploy/ ships, against the real binaries and programs
#   --long   the long forms: more seeds, more rounds
set -euo pipefail
cd "$(dirname "$0")"

usage() { sed -n '2,/^set/p' test.sh | grep '^#' | cut -c3-; }

# Minutes each stage may take in its short form, on two cores, with nothing cached.
declare -A cap=([release]=30 [asan]=40 [tsan]=15 [process]=20 [deploy]=8)
stages=()
export LYNX_LONG=0
while [ $# -gt 0 ]; do
  case "$1" in
    --long) LYNX_LONG=1 ;;
    --stage)
      [ -n "${cap[${2:-?}]:-}" ] || { echo "no stage '${2-}'" >&2; exit 2; }
      stages+=("$2"); shift ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[ ${#stages[@]} -gt 0 ] || stages=(release asan tsan process deploy)

source tests/tools/setup.sh
lynx_install test
# Warnings are errors in CI, in the one build that everything goes through.
strict=OFF
[ -z "${LYNX_CI:-}" ] || strict=ON

case_timeout=120
program_timeout=300
[ "$LYNX_LONG" = 0 ] || { case_timeout=3600; program_timeout=7200; }

build() {  # preset, target, warnings as errors
  cmake --preset "$1" -DLYNX_BUILD_TESTS=ON -DLYNX_WARNINGS_AS_ERRORS="${3:-OFF}" \
    -DLYNX_CASE_TIMEOUT=$case_timeout -DLYNX_PROGRAM_TIMEOUT=$program_timeout >/dev/null &&
    lynx_build "$1" "$2"
}
run_tests() {  # preset, label expression
  ctest --preset "$1" -L "$2" --no-tests=error -j "$(nproc)"
}

stage_release() { build release all $strict && run_tests release 'unit|integration|golden|fault'; }
stage_asan() { build asan sanitized_tests && run_tests asan 'unit|integration|golden|fault'; }
stage_tsan() { build tsan threaded_tests && run_tests tsan threads; }
stage_process() {
  build release all $strict
  lynx_venv
  .venv/bin/python -m pytest -q -p no:cacheprovider tests/process
}
stage_deploy() {
  build release all $strict
  lynx_venv
  .venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy
}
passed=0
failed=0
worker=
watchdog=
end_stage() {
  [ -z "$worker" ] || kill -TERM -- "-$worker" 2>/dev/null || true
  [ -z "$watchdog" ] || kill -TERM -- "-$watchdog" 2>/dev/null || true
  worker=
  watchdog=
}
trap end_stage EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for stage in "${stages[@]}"; do
  printf '\n== %s\n' "$stage"
  start=$SECONDS
  limit=$((cap[$stage] * 60))
  [ "$LYNX_LONG" = 0 ] || limit=$((limit * 10))
  # Process groups of their own, so that the cap and Ctrl-C end whatever the stage started.
  set -m
  (set -e; "stage_$stage") &
  worker=$!
  (sleep "$limit" && echo "stage $stage is over its cap of $limit s" && kill -TERM -- "-$worker") &
  watchdog=$!
  set +m
  if wait "$worker"; then result=passed; passed=$((passed + 1)); else result=FAILED; failed=$((failed + 1)); fi
  end_stage
  printf '== %s %s in %d s\n' "$stage" "$result" $((SECONDS - start))
done
echo
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
