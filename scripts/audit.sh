#!/usr/bin/env bash
# Compares requirements.lock with the known vulnerabilities. Needs the network; `make check` does not
# run it. The tool has an environment of its own, so that .venv stays what the lock says. Ends with 0
# if every package was looked up and none is known to be vulnerable, 1 if one is, 2 if one could not be
# looked up: pip-audit itself calls that "no known vulnerabilities".
set -u
python=$1
place=build/audit
tool=$place/bin/pip-audit
if [ ! -x "$tool" ]; then
  { "$python" -m venv "$place" && "$place/bin/pip" install --quiet pip-audit; } >/dev/null 2>&1 || {
    rm -rf "$place"; echo "audit: pip-audit cannot be fetched: no network?"; exit 2; }
fi
said=$("$tool" --requirement requirements.lock --require-hashes --disable-pip \
  --progress-spinner off --timeout 20 2>&1)
status=$?
skipped=$(grep -c "could not be audited" <<<"$said")
if grep -qE "^Found [0-9]+ known vulnerabilit" <<<"$said"; then
  echo "$said"; exit 1
elif [ "$status" -ne 0 ]; then
  echo "audit: the service of known vulnerabilities cannot be reached"; exit 2
elif [ "$skipped" -gt 0 ]; then
  echo "audit: $skipped packages could not be looked up, so nothing is known of them"; exit 2
fi
echo "audit: no known vulnerabilities"
