#!/bin/sh
# Installs the Debian packages that building, testing and the development host need. Quick when all are there.
# Not as root it prints the one command to run and fails.
set -eu

if ! command -v apt-get >/dev/null 2>&1; then
	echo "prerequisites: this is not a Debian or Ubuntu machine: install the counterparts of the packages in $0 yourself" >&2
	exit 0
fi
want="git curl ca-certificates make
	postgresql
	containerd runc containernetworking-plugins iptables nftables conntrack ipset ethtool kmod iproute2 socat
	mmdebstrap systemd-container zstd
	chromium haproxy
	shellcheck dash busybox-static mksh"
missing=
for package in $want; do
	case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
	installed) ;;
	*) missing="$missing $package" ;;
	esac
done
# A PostgreSQL server of any packaging will do.
if ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
	missing=$(echo "$missing" | sed 's/ postgresql\b//')
fi
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "prerequisites: run this once, then try again: sudo apt-get install -y --no-install-recommends$missing" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Nothing that gets installed here may start a service of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi
apt-get update -q
# shellcheck disable=SC2086 # a list of package names
apt-get install -y -q --no-install-recommends $missing
