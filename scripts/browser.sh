#!/usr/bin/env bash
# Installs Debian's Chromium on a machine of CI, so that the tests open the dashboard's page there.
# Called by `make test`. Elsewhere nothing is installed: without a browser these tests are skipped,
# and say so.
set -euo pipefail
. "$(dirname "$0")/apt.sh"
for name in chromium chromium-browser chrome; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing Chromium, which opens the dashboard's page"
  apt_install chromium 2>/dev/null ||
    echo "Chromium cannot be installed here; the tests of the page are skipped"
fi
