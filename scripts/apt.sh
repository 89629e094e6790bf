# Installs Debian packages; sourced by the scripts beside it. Two runs that start at one moment
# install one after the other: apt fails at once where another process holds its locks.
apt_install() {
  local DEBIAN_FRONTEND=noninteractive
  export DEBIAN_FRONTEND
  (
    if command -v flock >/dev/null 2>&1; then
      exec 9>/tmp/headwater-apt.lock
      flock 9
    fi
    apt-get update -qq 9>&- || true # another program may be updating the lists
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" 9>&-
  ) >/dev/null
}
