#!/bin/sh
# Install what the tests use and pip does not bring: Chromium, Prometheus, Slurm and libfaketime of Debian.
#
# Does so as root on a Debian with apt, and only what is missing. Elsewhere it says what is
# missing and why, and succeeds: the tests that need it skip with the reason. No service is started.
set -u

missing=
# Programs, and after a colon the package where it has another name.
for program in chromium prometheus slurmctld slurmd sbatch:slurm-client munged:munge faketime; do
    command -v "${program%:*}" >/dev/null 2>&1 || missing="$missing ${program#*:}"
done
[ -n "$missing" ] || exit 0

skip() {
    echo "not installed:$missing ($1); the tests that need it will skip" >&2
    exit 0
}

[ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || skip "no Debian with apt"
[ "$(id -u)" -eq 0 ] || skip "not root; mend with: sudo make test-programs"

# The packages of Prometheus and Slurm start them as services unless the machine's policy forbids that.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" || skip "cannot write $policy"
    trap 'rm -f "$policy"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # one word a package
apt-get update -qq &&
    apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=60 $missing >/dev/null ||
    skip "apt-get failed, see above"
