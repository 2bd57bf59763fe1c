# Sourced by demo.sh and test.sh: installs what is missing on a Debian 12 machine.
#   lynx_install build|test       packages of the system
#   lynx_build PRESET TARGET...   builds with what was configured
#   lynx_venv                     Python packages of the process and deploy tests, in .venv
# Asks the package manager only when something is missing.

# A compiler cache filled by one checkout serves another.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
# Needed for results that used a precompiled header.
export CCACHE_SLOPPINESS=pch_defines,time_macros

LYNX_BUILD_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config curl
  libabsl-dev libprotobuf-dev protobuf-compiler libucx-dev libzmq3-dev cppzmq-dev
  prometheus-cpp-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libboost1.81-dev
  libgloo-dev libssl-dev libpcre2-dev libicu-dev libxxhash-dev libgtest-dev libgmock-dev
)
LYNX_TEST_PACKAGES=(python3-venv prometheus haproxy nginx-light procps gnuplot-nox ucx-utils iproute2 nftables libfaketime)

lynx_install() {
  local wanted=("${LYNX_BUILD_PACKAGES[@]}") missing=() package
  if [ "$1" = test ]; then wanted+=("${LYNX_TEST_PACKAGES[@]}"); fi
  for package in "${wanted[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing ${missing[*]}"
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get -q update >/dev/null
  # A fresh machine may be busy with upgrades of its own: wait for its lock.
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
}

lynx_build() {
  local preset=$1 quiet=()
  shift
  # On a terminal Ninja shows progress in one line; elsewhere only what went wrong.
  [ -t 1 ] || quiet=(-- --quiet)
  # Two Ninjas in one folder would damage each other's work.
  flock "build/$preset" cmake --build --preset "$preset" --target "$@" "${quiet[@]}"
}

lynx_venv() {
  local stamp=.venv/requirements.txt wanted=(tests/process/requirements.txt tests/deploy/requirements.txt)
  cat "${wanted[@]}" | cmp -s - "$stamp" && return 0
  # The system's interpreter: another one on PATH may lack what its venv module needs.
  /usr/bin/python3 -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check "${wanted[@]/#/--requirement=}"
  cat "${wanted[@]}" >"$stamp"
}
