#!/usr/bin/env bash
# Creates the virtual environment and installs the locked dependencies. Called by make; safe to run
# again. Needs Python >= 3.11 (python3.11 … python3.14 or python3) and, for Spark, Java >= 17, which
# it installs by itself where it may.
set -euo pipefail
. "$(dirname "$0")/apt.sh"
venv=${1:-.venv}

python=
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
     "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "Headwater needs Python 3.11 or newer; none was found." >&2
  echo "  Debian/Ubuntu: sudo apt-get install python3 python3-venv     macOS: brew install python" >&2
  exit 1
fi

if [ ! -x "$venv/bin/python" ]; then
  echo "Creating $venv with $("$python" --version)"
  if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    version=$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
      echo "Installing python$version-venv (Debian and Ubuntu ship it apart from Python)"
      apt_install "python$version-venv"
      "$python" -m venv "$venv"
    else
      echo "Python's venv module is missing. Install it, then run make again:" >&2
      echo "  sudo apt-get install python$version-venv" >&2
      exit 1
    fi
  fi
fi

has_java() {  # looks where Spark will look: JAVA_HOME, then the PATH
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p') || true
  [ "${version:-0}" -ge 17 ]
}
if ! has_java && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing Java, which Spark runs on"
  apt_install openjdk-17-jre-headless 2>/dev/null ||
    apt_install default-jre-headless  # where 17 is no longer offered
fi
if ! has_java; then
  how="sudo apt-get install openjdk-17-jre-headless"
  if [ "$(uname)" = Darwin ]; then
    how='brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"'
  fi
  where=${JAVA_HOME:+, and JAVA_HOME ($JAVA_HOME) is none}
  echo "Spark needs Java 17 or newer$where; install it, then run make again: $how" >&2
  exit 1
fi

echo "Installing the locked dependencies"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
# the lock is complete; without --no-deps pip would ask for packages that it leaves out on purpose
lock=(--require-hashes --no-deps --requirement)
# uv, which the lock names too, takes a third of the time; it does not know the settings of pip
if ! { awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements.lock >"$venv/uv.lock" &&
       "${pip[@]}" install "${lock[@]}" "$venv/uv.lock" &&
       "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" \
         "${lock[@]}" requirements.lock; } 2>"$venv/uv.log"; then
  "${pip[@]}" install "${lock[@]}" requirements.lock
fi
"${pip[@]}" install --no-deps --no-build-isolation --editable .
touch "$venv/.ready"
