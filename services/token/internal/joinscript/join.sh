#!/bin/sh
# KubeBYON: makes this Linux machine a worker node of one cluster.
#
#   curl -fsSL --retry 10 "<address>/node/join?token=<id.secret>" | sh -
#   curl -fsSL --retry 10 "<address>/node/join?token=<id.secret>" | sh -s -- --help
#
# It is safe to run again: what is in place stays, what is missing is repaired. Nothing on the machine changes before
# step 4. All of it is one function, called on the last line in a form that is no command until its last character,
# so that a download cut short runs nothing.
kubebyon_join() {
	set -u
	umask 022
	LC_ALL=C
	export LC_ALL
	PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	export PATH

	# parameters: begin
	api_server=''
	api_host=''
	ca_pem=''
	token=''
	cluster_name=''
	cluster_id=''
	k8s_version=''
	cluster_dns=''
	cluster_domain=''
	mirror_url=''
	mirror_files=''
	# parameters: end

	sandbox_image=registry.k8s.io/pause:3.10.1
	cni_plugins_version=v1.9.0 # only where neither the mirror nor a package has them

	state=/var/lib/kubebyon
	marker=$state/node    # cluster_id, ca_sha256 and node of the cluster this machine belongs to
	manifest=$state/files # one path a line: what this script wrote or installed
	kubeconfig=/etc/kubernetes/kubelet.conf
	bootstrap=/etc/kubernetes/bootstrap-kubelet.conf
	ca_file=/etc/kubernetes/pki/ca.crt
	dropins=/etc/kubernetes/kubelet.conf.d
	kubelet_config=/var/lib/kubelet/config.yaml
	client_cert=/var/lib/kubelet/pki/kubelet-client-current.pem
	supervisor=/usr/local/sbin/kubebyon-node
	log=/var/log/kubebyon-join.log
	lock=/run/kubebyon-join.lock

	steps=10
	step_no=0
	step_title='Read the options'
	work=''
	locked=''
	tried=''

	# ---- words ------------------------------------------------------------------------------------------------

	say() { printf '%s\n' "$*"; }
	note() { printf '        %s\n' "$*"; }
	warn() { printf '        note: %s\n' "$*"; }

	step() {
		step_no=$((step_no + 1))
		step_title=$1
		printf '[%2d/%d] %s\n' "$step_no" "$steps" "$1"
	}

	# die CAUSE ACTION: the only way to fail. Never call it inside $(…) or a pipe: it would end that alone.
	die() {
		{
			printf '\nThis node has NOT joined the cluster.\n'
			printf '  step:   [%d/%d] %s\n' "$step_no" "$steps" "$step_title"
			printf '  cause:  %s\n' "$1"
			printf '  action: %s\n' "$2"
		} >&2
		exit 1
	}

	finish() {
		if [ -n "$work" ]; then rm -rf "$work"; fi
		if [ -n "$locked" ]; then rm -rf "$lock"; fi
	}

	interrupted() {
		printf '\nInterrupted in step [%d/%d] %s. Running the same command again is safe.\n' "$step_no" "$steps" "$step_title" >&2
		exit 130
	}

	usage() {
		cat <<-EOF
			Makes this machine a worker node of the cluster ${cluster_name:-(not given)}.

			  --node-name NAME   the node's name in the cluster (default: the host name)
			  --node-ip ADDRESS  the address other nodes reach this machine at (default: the one that reaches the API)
			  --force-join       leave another cluster first, and take over a node name that already exists
			  --reset-only       leave the cluster: stop kubelet, remove what this script installed, say what remains
			  --help             this text

			Settings of kubelet go into $dropins/NN-name.conf (KubeletConfiguration, merged in order).
		EOF
	}

	# ---- small tools ------------------------------------------------------------------------------------------

	have() { command -v "$1" >/dev/null 2>&1; }
	pause() { sleep 0.2 2>/dev/null || sleep 1; }
	sha_of() { sha256sum <"$1" | sed 's/ .*//'; }
	last_log() { tail -n 4 "$log" 2>/dev/null | tr '\n' ' '; }
	started_by_systemd() { [ "$init" = systemd ]; }

	own() { grep -qxF "$1" "$manifest" 2>/dev/null || printf '%s\n' "$1" >>"$manifest"; }
	owned() { grep -qxF "$1" "$manifest" 2>/dev/null; }

	# put FILE MODE: standard input becomes FILE, whole or not at all. $changed says whether it differs from before.
	# A file of somebody else's is kept beside it as FILE.before-kubebyon.
	put() {
		put_new=$1.kubebyon-new
		if ! { mkdir -p "${1%/*}" && (umask 077 && cat >"$put_new") && chmod "$2" "$put_new"; }; then
			die "cannot write $1" "check that the disk is neither full nor read-only, then run the command again"
		fi
		changed=1
		if [ -f "$1" ]; then
			if [ "$(sha_of "$1")" = "$(sha_of "$put_new")" ]; then
				changed=0
			elif ! owned "$1" && [ ! -e "$1.before-kubebyon" ]; then
				cp -p "$1" "$1.before-kubebyon" || die "cannot back up $1" "check the disk, then run the command again"
				note "kept the earlier $1 as $1.before-kubebyon"
			fi
		fi
		if [ $changed = 1 ]; then
			mv -f "$put_new" "$1" || die "cannot write $1" "check the disk, then run the command again"
		else
			rm -f "$put_new"
			chmod "$2" "$1"
		fi
		own "$1"
	}

	# put_bin SOURCE DESTINATION: replaces a binary, also one that is running.
	put_bin() {
		if ! { mkdir -p "${2%/*}" && cp "$1" "$2.kubebyon-new" && chmod 755 "$2.kubebyon-new" && mv -f "$2.kubebyon-new" "$2"; }; then
			die "cannot write $2" "check that the disk is neither full nor read-only, then run the command again"
		fi
		own "$2"
		if have restorecon; then restorecon "$2" >>"$log" 2>&1; fi
	}

	# ---- the cluster's API ------------------------------------------------------------------------------------

	# api AUTH PATH (AUTH: token | cert | none) leaves curl's exit status in $api_rc, the HTTP status in $api_code, this
	# machine's address on that connection in $api_local, the body in $work/body. Only the cluster's own CA is trusted:
	# an empty --capath, because curl would add the system's roots to --cacert. The token goes in over standard
	# input, where no process list shows it.
	api() {
		api_rc=0
		: >"$work/headers"
		: >"$work/body"
		case $1 in
		cert) api_auth="cert = \"$client_cert\"
key = \"$client_cert\"" ;;
		token) api_auth="header = \"Authorization: Bearer $token\"" ;;
		*) api_auth='' ;;
		esac
		api_out=$(
			curl -q -sS --noproxy '*' --cacert "$work/ca.crt" --capath "$work/no-other-roots" --connect-timeout 10 --max-time 30 \
				-H 'Accept: application/json' -D "$work/headers" -o "$work/body" -w '%{http_code} %{local_ip}' \
				-K - "$api_server$2" 2>"$work/err" <<-EOF
					$api_auth
				EOF
		) || api_rc=$?
		api_code=${api_out%% *}
		api_local=${api_out#* }
	}

	# clock_skew: seconds this clock is ahead of the Date in $work/headers, in $skew; empty where it cannot be told.
	clock_skew() {
		skew=''
		skew_date=$(sed -n 's/^[Dd]ate: *//p' "$work/headers" | tr -d '\r' | tail -n 1)
		if [ -z "$skew_date" ]; then return 0; fi
		skew_there=$(date -u -d "$skew_date" +%s 2>/dev/null) || return 0
		skew=$(($(date -u +%s) - skew_there))
	}

	explain_unreachable() {
		why=$(head -n 1 "$work/err")
		case $api_rc in
		5 | 6) die "the name ${api_host%:*} cannot be resolved" "check /etc/resolv.conf and the name's DNS record, or create the cluster with an IP address as its host" ;;
		7)
			# Newer versions of curl keep the reason to themselves, unless asked; this request carries no token.
			curl -q -sv --noproxy '*' --cacert "$work/ca.crt" --capath "$work/no-other-roots" --connect-timeout 10 --max-time 15 -o /dev/null "$api_server/version" 2>"$work/err"
			case $why$(grep -i 'connect.*fail\|refused\|route\|unreachable' "$work/err") in
			*refused*) die "$api_host refused the connection: nothing listens there, or a firewall rejects it" "check in the console that the cluster is ready, and that its port is open to this machine" ;;
			*) die "there is no route to $api_host ($why)" "check this machine's network and routes: ping or curl $api_server/version" ;;
			esac
			;;
		28) die "$api_host did not answer within 10 seconds: most often a firewall or security group drops the packets" "open that TCP port from this machine to the cluster's host, then run the command again" ;;
		35 | 51 | 60 | 77 | 83 | 90 | 91)
			case $why in
			*expired* | *'not yet valid'*)
				if [ -n "$mirror_url" ]; then
					curl -q -s -o /dev/null -D "$work/headers" --connect-timeout 5 --max-time 10 "$mirror_url/" 2>/dev/null
					clock_skew
				else
					skew=''
				fi
				if [ -n "$skew" ]; then skew=" (this clock is $skew s ahead of the server's)"; fi
				die "TLS: the certificate of $api_host is not valid at this machine's time, $(date -u '+%Y-%m-%d %H:%M:%S') UTC$skew" "set the clock (timedatectl set-ntp true, or chronyd/ntpd), then run the command again; if the clock is right, the cluster's certificate has expired and its operator must renew it"
				;;
			*'subject name'* | *'does not match'* | *'not match'*)
				die "TLS: the certificate of $api_host is for another name or address ($why)" "the cluster's host must be listed in its certificate: its owner corrects the cluster's host in the console and makes a new join command"
				;;
			*)
				die "TLS: what answers at $api_host does not hold a certificate of this cluster's CA ($why)" "either something between here and there intercepts TLS, or another cluster now has that address: make a new join command in the console; certificate checks are never skipped"
				;;
			esac
			;;
		*) die "cannot talk to $api_host: curl exit $api_rc ${why}" "try: curl -v --cacert <the cluster's CA> $api_server/version" ;;
		esac
	}

	# ---- where files come from --------------------------------------------------------------------------------

	mirror_has() {
		mirror_sha=$(printf '%s\n' "$mirror_files" | sed -n "s|^\\([0-9a-f]*\\) [0-9]* $1\$|\\1|p")
		[ -n "$mirror_sha" ]
	}

	# fetch URL FILE: false with curl's words in $fetch_why. What begins with TLS stays there, whatever redirects it.
	fetch() {
		case $1 in https:*) fetch_by='=https' ;; *) fetch_by='=http,https' ;; esac
		if curl -q -fsSL --proto "$fetch_by" --connect-timeout 10 --retry 2 --speed-limit 1024 --speed-time 30 -o "$2" "$1" 2>"$work/err"; then return 0; fi
		fetch_why=$(tail -n 1 "$work/err")
		return 1
	}

	# mirror_get NAME FILE: false where the mirror lacks it or cannot be reached. A wrong checksum ends the run.
	mirror_get() {
		mirror_has "$1" || return 1
		if ! fetch "$mirror_url/$1" "$2"; then
			tried="$tried mirror: $fetch_why;"
			warn "the mirror does not hand out $1 ($fetch_why)"
			return 1
		fi
		if [ "$(sha_of "$2")" != "$mirror_sha" ]; then
			rm -f "$2"
			die "$mirror_url/$1 does not have the SHA-256 that this script was made with" "the mirror's files changed after the join command was made: make a new one in the console. If it happens again, something alters the download"
		fi
	}

	# from_web URL FILE: like fetch, checked against the publisher's URL.sha256.
	from_web() {
		if fetch "$1.sha256" "$work/sum" && fetch "$1" "$2"; then
			web_sum=$(sed 's/ .*//' "$work/sum" | head -n 1)
			if [ "$(sha_of "$2")" = "$web_sum" ]; then return 0; fi
			die "$1 does not have the SHA-256 published beside it" "something alters the download: check proxies between here and there"
		fi
		tried="$tried $1: $fetch_why;"
		return 1
	}

	# packages NAME…: from the distribution. False with the reason added to $tried; the full text is in $log.
	packages() {
		case $family in
		debian)
			if [ -z "${apt_updated:-}" ]; then
				note "apt-get update"
				apt-get -q -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 -o Acquire::Retries=1 update >>"$log" 2>&1
				apt_updated=1
			fi
			note "apt-get install $*"
			DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 \
				-o Dpkg::Options::=--force-confold -o Acquire::http::Timeout=15 "$@" >>"$log" 2>&1 && packaged "$@" && return 0
			;;
		rhel)
			note "$rpm_tool install $*"
			"$rpm_tool" -y -q install "$@" >>"$log" 2>&1 && packaged "$@" && return 0
			;;
		*)
			tried="$tried packages: this script knows no package manager for $distro;"
			return 1
			;;
		esac
		tried="$tried packages: $(last_log);"
		return 1
	}

	packaged() {
		for p in "$@"; do
			grep -qxF "${p%%=*}" "$state/packages" 2>/dev/null || printf '%s\n' "${p%%=*}" >>"$state/packages"
		done
	}

	# ---- leaving ----------------------------------------------------------------------------------------------

	# leave_tool prints the program that undoes all this. It stays on the machine, because a token may have expired, or
	# its cluster be gone, when the machine is to leave.
	leave_tool() {
		cat <<'LEAVE'
#!/bin/sh
# Takes this machine out of its cluster; written by KubeBYON's join script.
#   kubebyon-leave              stop kubelet, remove what the join script installed, say what remains
#   kubebyon-leave membership   leave only: what is installed stays, for another cluster
kubebyon_leave() {
	set -u
	LC_ALL=C
	export LC_ALL
	PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	export PATH
	state=/var/lib/kubebyon
	marker=$state/node
	manifest=$state/files
	kubeconfig=/etc/kubernetes/kubelet.conf
	dropins=/etc/kubernetes/kubelet.conf.d
	supervisor=/usr/local/sbin/kubebyon-node
	remains=''

	note() { printf '        %s\n' "$*"; }
	have() { command -v "$1" >/dev/null 2>&1; }
	owned() { grep -qxF "$1" "$manifest" 2>/dev/null; }
	systemd() { [ -d /run/systemd/system ] && have systemctl; }

	# leave undoes a membership, KubeBYON's or another tool's, as far as it is known what belongs to one.
	leave() {
		note "stopping kubelet"
		if systemd; then
			systemctl disable --now kubelet.service >/dev/null 2>&1
			for u in k3s k3s-agent rke2-server rke2-agent k0sworker k0scontroller; do
				if systemctl cat "$u.service" >/dev/null 2>&1; then
					note "stopping $u"
					systemctl disable --now "$u.service" >/dev/null 2>&1
				fi
			done
		fi
		if [ -x "$supervisor" ]; then "$supervisor" stop kubelet; fi
		if have k3s-killall.sh; then k3s-killall.sh >/dev/null 2>&1; fi
		if have ctr && ctr version >/dev/null 2>&1; then
			note "removing the pods' containers"
			for c in $(ctr -n k8s.io tasks ls -q 2>/dev/null); do ctr -n k8s.io tasks rm -f "$c" >/dev/null 2>&1; done
			for c in $(ctr -n k8s.io containers ls -q 2>/dev/null); do ctr -n k8s.io containers rm "$c" >/dev/null 2>&1; done
			for c in $(ctr -n k8s.io sandboxes ls -q 2>/dev/null); do ctr -n k8s.io sandboxes rm "$c" >/dev/null 2>&1; done
		fi
		sed -n 's|^[^ ]* \(/var/lib/kubelet/[^ ]*\) .*|\1|p' /proc/mounts | sort -r | while read -r m; do
			umount "$m" 2>/dev/null || umount -l "$m" 2>/dev/null
		done
		if have ip; then
			for n in /run/netns/cni-*; do
				if [ -e "$n" ]; then ip netns del "${n##*/}" 2>/dev/null; fi
			done
			for l in cni0 flannel.1 kube-ipvs0; do ip link del "$l" 2>/dev/null; done
		fi
		for t in iptables ip6tables; do
			if have "$t-save" && "$t-save" 2>/dev/null | grep -q -e KUBE- -e FLANNEL- -e CNI-; then
				note "removing the cluster's $t rules"
				"$t-save" 2>/dev/null | grep -v -e KUBE- -e FLANNEL- -e CNI- | "$t-restore" 2>/dev/null
			fi
		done
		rm -f "$kubeconfig" /etc/kubernetes/bootstrap-kubelet.conf /etc/kubernetes/pki/ca.crt /etc/cni/net.d/10-flannel.conflist
		# The first file there wins: one that a former pod network left would cut off the pods of the next cluster.
		for f in /etc/cni/net.d/*.conf /etc/cni/net.d/*.conflist; do
			case $f in
			*podman* | *'*'*) ;;
			*) mv -f "$f" "$f.left-cluster" 2>/dev/null && note "put aside $f (now $f.left-cluster)" ;;
			esac
		done
		rm -rf /var/lib/cni /run/flannel
		if grep -q ' /var/lib/kubelet/' /proc/mounts; then
			remains="$remains
  /var/lib/kubelet: something is still mounted below it"
			rm -rf /var/lib/kubelet/pki /var/lib/kubelet/config.yaml
		elif [ -d /var/lib/kubelet ]; then
			find /var/lib/kubelet -xdev -mindepth 1 -delete 2>/dev/null
		fi
		rm -f "$marker"
	}

	# uninstall removes the files in the manifest and puts back what stood there before.
	uninstall() {
		if [ -s "$manifest" ]; then
			if [ -x "$supervisor" ]; then
				note "stopping containerd"
				"$supervisor" stop containerd
				rmdir /run/kubebyon 2>/dev/null
			elif systemd && { owned /etc/systemd/system/containerd.service || owned /usr/local/bin/containerd; }; then
				note "stopping containerd"
				systemctl disable --now containerd.service >/dev/null 2>&1
			fi
			while read -r f; do
				rm -f "$f"
				if [ -e "$f.before-kubebyon" ]; then mv -f "$f.before-kubebyon" "$f"; fi
			done <"$manifest"
			if systemd; then
				systemctl daemon-reload
				if systemctl is-active -q containerd.service; then systemctl restart containerd.service; fi
			fi
		fi
		if [ -s "$state/packages" ]; then
			remains="$remains
  packages: $(tr '\n' ' ' <"$state/packages")"
		fi
		rm -rf "$state"
	}

	if [ "$(id -u)" != 0 ]; then
		echo "kubebyon-leave must run as root" >&2
		exit 1
	fi
	case ${1:-} in
	membership)
		leave
		exit 0
		;;
	'') ;;
	*)
		echo "usage: kubebyon-leave [membership]" >&2
		exit 2
		;;
	esac
	if [ ! -e "$kubeconfig" ] && [ ! -e "$marker" ] && [ ! -e "$manifest" ]; then
		echo 'Nothing to leave: this machine belongs to no cluster and nothing of KubeBYON is installed'
		exit 0
	fi
	left=$(sed -n 's/^node=//p' "$marker" 2>/dev/null)
	printf '[ 1/2] Leave the cluster\n'
	leave
	printf '[ 2/2] Remove what was installed\n'
	uninstall
	if systemd && systemctl is-active -q kubelet.service; then
		echo "kubelet still runs. Stop it (systemctl stop kubelet), then run this again" >&2
		exit 1
	fi
	printf 'This machine has left the cluster. What remains:\n'
	printf '  the Node object in the cluster: kubectl delete node %s\n' "${left:-<this node>}"
	if [ -d "$dropins" ]; then printf '  %s: your own kubelet settings\n' "$dropins"; fi
	if [ -d /var/lib/containerd ]; then printf '  /var/lib/containerd: downloaded images\n'; fi
	if [ -d /opt/cni/bin ]; then printf '  /opt/cni/bin, /etc/cni/net.d: whatever a pod network put there itself\n'; fi
	printf '  /var/log/kubebyon-join.log: the log; kernel modules and sysctls stay set until the next reboot%s\n' "$remains"
	exit 0
}
{ kubebyon_leave "$@"; }
LEAVE
	}

	# ---- options ----------------------------------------------------------------------------------------------

	node_name=''
	node_ip=''
	force=''
	only_reset=''
	while [ $# -gt 0 ]; do
		case $1 in
		--node-name | --node-ip)
			if [ $# -lt 2 ]; then die "$1 needs a value" "run with --help to see the options"; fi
			if [ "$1" = --node-name ]; then node_name=$2; else node_ip=$2; fi
			shift
			;;
		--node-name=*) node_name=${1#*=} ;;
		--node-ip=*) node_ip=${1#*=} ;;
		--force-join) force=1 ;;
		--reset-only) only_reset=1 ;;
		-h | --help)
			usage
			exit 0
			;;
		*) die "unknown option $1" "run with --help to see the options" ;;
		esac
		shift
	done

	# ---- 1: the machine ---------------------------------------------------------------------------------------

	if [ "$(id -u)" != 0 ]; then
		die "this script must run as root" "run it again as root: … | sudo sh -"
	fi
	init=other
	if [ -d /run/systemd/system ] && have systemctl; then init=systemd; fi
	trap finish EXIT
	trap interrupted INT TERM HUP
	if ! mkdir "$lock" 2>/dev/null; then
		lock_pid=$(cat "$lock/pid" 2>/dev/null)
		if [ -n "$lock_pid" ] && [ -d "/proc/$lock_pid" ]; then
			die "the same script is already running here (process $lock_pid)" "wait for it to end"
		fi
		rm -rf "$lock"
		mkdir "$lock" 2>/dev/null || die "cannot take the lock $lock" "check that /run can be written to"
	fi
	locked=1
	printf '%s\n' "$$" >"$lock/pid"

	work=$(mktemp -d "${TMPDIR:-/tmp}/kubebyon.XXXXXX") || die "no temporary directory can be made" "check that ${TMPDIR:-/tmp} can be written to"
	leave_tool >"$work/leave"
	if [ -n "$only_reset" ]; then
		sh "$work/leave"
		exit $?
	fi

	if [ -z "$token" ] || [ -z "$api_server" ]; then
		die "this is the script's source, made for no cluster" "use the join command that the console shows"
	fi
	say "Joining the cluster $cluster_name ($cluster_id), Kubernetes $k8s_version"
	step 'Check this machine'

	if [ "$(uname -s)" != Linux ]; then die "this is $(uname -s)" "use a Linux machine"; fi
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) die "the processor is $(uname -m)" "use an amd64 or arm64 machine" ;;
	esac
	for c in curl sha256sum tar gzip sed grep mktemp mount tail sort find; do
		have "$c" || die "the command $c is missing" "install it with this distribution's package manager, then run the command again"
	done
	mkdir "$work/no-other-roots"
	cat >"$work/ca.crt" <<-EOF
		$ca_pem
	EOF
	ca_sha=$(sha_of "$work/ca.crt")

	distro=unknown
	distro_like=''
	distro_version=''
	for f in /etc/os-release /usr/lib/os-release; do
		if [ -r "$f" ]; then
			distro=$(sed -n 's/^ID=//p' "$f" | tr -d "\"'" | head -n 1)
			distro_like=$(sed -n 's/^ID_LIKE=//p' "$f" | tr -d "\"'" | head -n 1)
			distro_version=$(sed -n 's/^VERSION_ID=//p' "$f" | tr -d "\"'" | head -n 1)
			break
		fi
	done
	family=other
	case " $distro $distro_like " in
	*' debian '* | *' ubuntu '*) family=debian ;;
	*' rhel '* | *' centos '* | *' rocky '* | *' almalinux '* | *' fedora '* | *' amzn '* | *' ol '*) family=rhel ;;
	esac
	rpm_tool=yum
	if have dnf; then rpm_tool=dnf; fi
	note "$distro $distro_version ($family family), $arch, Linux $(uname -r), init: $init"
	if [ $family = other ]; then
		warn "$distro is not one of Debian, Ubuntu or the RHEL family: what is missing can only come from the operator's mirror"
	fi

	mem_mb=$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 1024))
	if [ "$mem_mb" -lt 900 ]; then warn "only $mem_mb MiB of memory: kubelet and the system pods need about 1 GiB"; fi
	if [ "$(wc -l </proc/swaps)" -gt 1 ]; then note "swap is on: kubelet is told to accept it (failSwapOn: false); pods do not use it"; fi
	free_kb=$(df -Pk /var 2>/dev/null | sed 1d | while read -r _ _ _ free _; do printf '%s' "$free"; done)
	if [ -n "$free_kb" ] && [ "$free_kb" -lt 3000000 ]; then warn "only $((free_kb / 1024)) MiB are free below /var: images may not fit"; fi

	k8s_minor=${k8s_version#v*.}
	k8s_minor=${k8s_minor%%.*}
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		for c in cpu memory pids; do
			grep -qw "$c" /sys/fs/cgroup/cgroup.controllers ||
				die "the kernel offers no $c cgroup" "boot with it (memory: cgroup_enable=memory cgroup_memory=1 on the kernel's command line), then run the command again"
		done
	else
		if ! grep -q '^memory.*1$' /proc/cgroups 2>/dev/null; then
			die "the kernel offers no memory cgroup" "boot with cgroup_enable=memory on the kernel's command line, then run the command again"
		fi
		if [ "$k8s_minor" -ge 35 ] && ! cat "$dropins"/*.conf 2>/dev/null | grep -Eq '^[ "]*failCgroupV1"?: *false'; then
			die "this machine uses cgroup v1, which kubelet $k8s_version refuses" "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1 on the kernel's command line), or accept version 1 with: mkdir -p $dropins; printf 'apiVersion: kubelet.config.k8s.io/v1beta1\\nkind: KubeletConfiguration\\nfailCgroupV1: false\\n' > $dropins/10-cgroup-v1.conf"
		fi
		note "cgroup v1, accepted by a setting in $dropins"
	fi

	# Membership: none, same (of this very cluster) or other; control planes are never touched.
	if [ -e /etc/kubernetes/manifests/kube-apiserver.yaml ]; then
		die "this machine is the control plane of another cluster" "use another machine; or first take it out of service yourself (kubeadm reset)"
	fi
	membership=none
	other_what=''
	own_name=''
	if [ -f "$marker" ]; then
		own_name=$(sed -n 's/^node=//p' "$marker")
		if grep -qxF "cluster_id=$cluster_id" "$marker" && grep -qxF "ca_sha256=$ca_sha" "$marker"; then
			membership=same
		elif [ -f "$kubeconfig" ]; then
			membership=other
			other_what="node $own_name of the KubeBYON cluster $(sed -n 's/^cluster_id=//p' "$marker")"
		else
			membership=leftover
		fi
	elif [ -f "$kubeconfig" ]; then
		membership=other
		other_what="a node of $(sed -n 's/^ *server: *//p' "$kubeconfig" | head -n 1) ($kubeconfig)"
	fi
	if [ "$membership" = none ]; then
		for f in /etc/rancher/k3s:k3s /var/lib/rancher/k3s/agent:k3s /var/lib/rancher/rke2/agent:RKE2 /var/snap/microk8s/current:MicroK8s /var/lib/k0s/kubelet:k0s; do
			if [ -e "${f%%:*}" ]; then
				membership=other
				other_what="a ${f#*:} node (${f%%:*})"
			fi
		done
	fi
	if [ "$membership" = none ] && cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':280A [0-9A-F]*:0000 0A '; then
		membership=other
		other_what="running a kubelet: something listens on port 10250"
	fi
	if [ "$membership" = other ]; then
		if [ -z "$force" ]; then
			die "this machine is already $other_what" "if it may leave that cluster, run the command again with --force-join at its end: … | sh -s -- --force-join"
		fi
		note "this machine is already $other_what: it will leave (--force-join)"
	fi

	if [ -n "$node_ip" ]; then
		case $node_ip in
		*[!0-9a-fA-F.:]*) die "--node-ip '$node_ip' is not an IP address" "give one of this machine's own addresses" ;;
		esac
	fi
	if [ "$membership" = same ] && [ -n "$own_name" ]; then
		if [ -n "$node_name" ] && [ "$node_name" != "$own_name" ]; then
			die "this machine is already the node $own_name of this cluster" "to rename it, leave first: … | sh -s -- --reset-only"
		fi
		node_name=$own_name
	fi
	if [ -z "$node_name" ]; then node_name=$(uname -n | tr 'ABCDEFGHIJKLMNOPQRSTUVWXYZ' 'abcdefghijklmnopqrstuvwxyz'); fi
	case $node_name in
	*[!a-z0-9.-]*) plain='' ;; # a line break too, which grep would take for two names
	*) plain=1 ;;
	esac
	if [ -z "$plain" ] || [ ${#node_name} -gt 63 ] || ! printf '%s\n' "$node_name" | grep -Eqx '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'; then
		die "'$node_name' cannot be a node's name (at most 63 of a-z, 0-9, '-' and '.', letters or digits at the ends)" "give another one: … | sh -s -- --node-name worker-1"
	fi
	case $node_name in
	localhost | localhost.*) die "the host name is $node_name" "set the host name, or give one: … | sh -s -- --node-name worker-1" ;;
	esac

	# ---- 2: the API -------------------------------------------------------------------------------------------

	step "Reach the cluster's API at $api_server"
	api none /version
	if [ "$api_rc" != 0 ]; then explain_unreachable; fi
	clock_skew
	if [ -n "$skew" ] && { [ "$skew" -gt 60 ] || [ "$skew" -lt -60 ]; }; then
		warn "this clock is $skew s ahead of the cluster's: certificates may seem invalid; switch NTP on"
	fi
	if [ -z "$node_ip" ]; then node_ip=$api_local; fi
	note "it holds a certificate of this cluster's CA; this machine's address towards it is $api_local"

	# ---- 3: the name ------------------------------------------------------------------------------------------

	step "Check the node's name $node_name"
	need_bootstrap=1
	if [ "$membership" = same ] && [ -s "$kubeconfig" ] && [ -s "$client_cert" ]; then
		api cert "/api/v1/nodes/$node_name"
		case $api_code in
		200 | 404)
			need_bootstrap=''
			if [ "$api_code" = 200 ]; then
				note "this machine has already joined as $node_name: checking what is missing"
			else
				note "this machine's certificate is valid but the node is gone from the cluster: kubelet registers it again"
			fi
			;;
		*) note "this machine's certificate is no longer accepted (HTTP $api_code): asking for a new one" ;;
		esac
	fi
	if [ -n "$need_bootstrap" ]; then
		api token "/api/v1/nodes/$node_name"
		if [ "$api_rc" != 0 ]; then explain_unreachable; fi
		case $api_code in
		404) note "the name is free" ;;
		200)
			if [ "$membership" = same ] && [ "$own_name" = "$node_name" ]; then
				note "this machine is that node"
			elif [ -n "$force" ]; then
				note "a node of that name exists: taking it over (--force-join)"
			else
				hint=''
				there_id=$(sed -n 's/.*"machineID": *"\([^"]*\)".*/\1/p' "$work/body" | head -n 1)
				if [ -n "$there_id" ] && [ "$there_id" = "$(cat /etc/machine-id 2>/dev/null)" ]; then
					hint=' (it has the machine id of this machine: an earlier registration, or a clone)'
				fi
				die "the cluster already has a node named $node_name$hint" "give this one another name (… | sh -s -- --node-name other-name), delete the old node (kubectl delete node $node_name), or take it over with --force-join"
			fi
			;;
		401) die "the cluster does not accept the join token: it has expired or was revoked" "make a new join command in the console, and run that" ;;
		403) warn "the token may not read nodes: the cluster cannot be asked whether the name is taken" ;;
		*) die "the API answered HTTP $api_code to a question about the node's name" "wait until the console shows the cluster as ready, then run the command again" ;;
		esac
	fi

	# ---- 4: the kernel ----------------------------------------------------------------------------------------

	step 'Prepare the kernel'
	mkdir -p "$state" /var/log /etc/kubernetes "$dropins" || die "cannot create $state" "check that the disk is neither full nor read-only"
	: >"$log" 2>/dev/null || die "cannot write $log" "check that the disk is neither full nor read-only"
	if [ "$membership" = other ] || [ "$membership" = leftover ]; then
		sh "$work/leave" membership
		membership=none
	fi
	put /usr/local/sbin/kubebyon-leave 755 <"$work/leave"
	put "$marker" 600 <<-EOF
		cluster_id=$cluster_id
		ca_sha256=$ca_sha
		node=$node_name
	EOF
	for m in overlay br_netfilter nf_conntrack vxlan; do modprobe "$m" >>"$log" 2>&1; done
	grep -qw overlay /proc/filesystems ||
		die "the kernel has no overlay file system, and modprobe overlay failed: $(last_log)" "install the distribution's full kernel (e.g. linux-modules-extra), reboot if it was just updated, then run the command again"
	[ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] ||
		die "the kernel has no br_netfilter, and modprobe br_netfilter failed: $(last_log)" "install the distribution's full kernel (e.g. kernel-modules-extra), reboot if it was just updated, then run the command again"
	put /etc/modules-load.d/kubebyon.conf 644 <<-EOF
		overlay
		br_netfilter
		nf_conntrack
		vxlan
	EOF
	put /etc/sysctl.d/99-kubebyon.conf 644 <<-EOF
		net.ipv4.ip_forward = 1
		net.bridge.bridge-nf-call-iptables = 1
		net.bridge.bridge-nf-call-ip6tables = 1
	EOF
	for f in net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables net/bridge/bridge-nf-call-ip6tables; do
		if [ "$(cat "/proc/sys/$f" 2>/dev/null)" != 1 ]; then
			(echo 1 >"/proc/sys/$f") 2>>"$log"
		fi
		if [ "$(cat "/proc/sys/$f" 2>/dev/null)" != 1 ] && [ "$f" != net/bridge/bridge-nf-call-ip6tables ]; then
			die "/proc/sys/$f cannot be set to 1" "in a container, give it a writable /proc/sys/net; otherwise look for a security module that forbids it"
		fi
	done
	note "overlay, br_netfilter, ip_forward: in place, and kept over reboots"
	if started_by_systemd; then
		for u in firewalld ufw; do
			if systemctl is-active -q "$u" 2>/dev/null; then
				warn "$u is active: nodes need TCP 10250 (kubelet) and UDP 8472 (flannel's VXLAN) open between them"
			fi
		done
	fi

	# ---- 5: the container runtime -----------------------------------------------------------------------------

	step 'Get the container runtime'
	tmp=$state/tmp
	rm -rf "$tmp"
	mkdir -p "$tmp"
	runtime_works() {
		containerd --version >/dev/null 2>&1 && runc --version >/dev/null 2>&1 && have ctr && have containerd-shim-runc-v2
	}
	# unpack ARCHIVE FOLDER: its files, whatever folder they stand in there.
	unpack() {
		rm -rf "$tmp/unpacked"
		mkdir -p "$tmp/unpacked"
		tar -xzf "$1" -C "$tmp/unpacked" || die "cannot unpack ${1##*/}" "check the space below /var, then run the command again"
		find "$tmp/unpacked" -type f >"$tmp/list"
		while read -r f; do
			case ${f##*/} in
			LICENSE* | README*) ;;
			*) put_bin "$f" "$2/${f##*/}" ;;
			esac
		done <"$tmp/list"
		rm -rf "$tmp/unpacked"
	}
	if runtime_works; then
		note "present: $(containerd --version | sed 's/^\([^ ]*\) [^ ]* \([^ ]*\).*/\1 \2/')"
	else
		tried=''
		if mirror_get "containerd-linux-$arch.tgz" "$tmp/containerd.tgz"; then
			unpack "$tmp/containerd.tgz" /usr/local/bin
			note "from the mirror: $(containerd --version 2>&1 | sed 's/^\([^ ]*\) [^ ]* \([^ ]*\).*/\1 \2/')"
		elif packages containerd runc; then
			note "from $distro's packages"
		elif [ $family = rhel ] && {
			docker_os=centos
			case $distro in fedora | rhel) docker_os=$distro ;; esac
			put /etc/yum.repos.d/kubebyon-docker-ce.repo 644 <<-EOF
				[kubebyon-docker-ce]
				name=Docker CE stable, for containerd.io
				baseurl=https://download.docker.com/linux/$docker_os/\$releasever/\$basearch/stable
				enabled=1
				gpgcheck=1
				gpgkey=https://download.docker.com/linux/$docker_os/gpg
			EOF
			packages containerd.io
		}; then
			note "containerd.io from Docker's repository"
		else
			die "no source for containerd and runc:$tried" "install containerd and runc yourself, or ask the operator to put containerd-linux-$arch.tgz into the mirror; details in $log"
		fi
		runtime_works || die "containerd or runc does not run: $({ containerd --version && runc --version; } 2>&1 | tail -n 1)" "install what it misses (often libseccomp2), then run the command again"
	fi
	missing=''
	for c in iptables conntrack; do
		if ! have "$c"; then missing="$missing $c"; fi
	done
	if [ -n "$missing" ]; then
		case $family in
		debian) missing=$(printf '%s' "$missing" | tr '\n' ' ') ;;
		rhel) missing=$(printf '%s' "$missing" | sed 's/conntrack/conntrack-tools/;s/iptables/iptables-nft/') ;;
		esac
		# shellcheck disable=SC2086 # a list of names
		packages $missing || warn "could not install$missing: pods with host ports or masquerading need iptables ($log)"
	fi

	# ---- 6: kubelet and the network plugins -------------------------------------------------------------------

	step "Get kubelet $k8s_version and the CNI plugins"
	kubelet=''
	for f in /usr/local/bin/kubelet "$(command -v kubelet)"; do
		if [ -n "$f" ] && [ "$("$f" --version 2>/dev/null)" = "Kubernetes $k8s_version" ]; then
			kubelet=$f
			break
		fi
	done
	k8s_short=${k8s_version%.*}
	# kubernetes_repository: pkgs.k8s.io, its packages checked against its own signing key.
	kubernetes_repository() {
		repo=https://pkgs.k8s.io/core:/stable:/$k8s_short
		case $family in
		debian)
			if ! fetch "$repo/deb/Release.key" "$tmp/k8s.asc"; then
				tried="$tried pkgs.k8s.io: $fetch_why;"
				return 1
			fi
			put /etc/apt/keyrings/kubebyon-kubernetes.asc 644 <"$tmp/k8s.asc"
			put /etc/apt/sources.list.d/kubebyon-kubernetes.list 644 <<-EOF
				deb [signed-by=/etc/apt/keyrings/kubebyon-kubernetes.asc] $repo/deb/ /
			EOF
			apt_updated=''
			packages "kubelet=${k8s_version#v}-*" kubernetes-cni && apt-mark hold kubelet >>"$log" 2>&1
			;;
		rhel)
			put /etc/yum.repos.d/kubebyon-kubernetes.repo 644 <<-EOF
				[kubebyon-kubernetes]
				name=Kubernetes $k8s_short
				baseurl=$repo/rpm/
				enabled=1
				gpgcheck=1
				gpgkey=$repo/rpm/repodata/repomd.xml.key
			EOF
			packages "kubelet-${k8s_version#v}" kubernetes-cni
			;;
		*) return 1 ;;
		esac
	}
	kubelet_new=''
	if [ -n "$kubelet" ]; then
		note "present: $kubelet"
	else
		kubelet_new=1
		tried=''
		if mirror_get "kubelet-$k8s_version-linux-$arch" "$tmp/kubelet"; then
			kubelet=/usr/local/bin/kubelet
			put_bin "$tmp/kubelet" $kubelet
			note "from the mirror: $kubelet"
		elif kubernetes_repository && have kubelet; then
			kubelet=$(command -v kubelet)
			note "from pkgs.k8s.io: $kubelet"
		elif from_web "https://dl.k8s.io/release/$k8s_version/bin/linux/$arch/kubelet" "$tmp/kubelet"; then
			kubelet=/usr/local/bin/kubelet
			put_bin "$tmp/kubelet" $kubelet
			note "from dl.k8s.io, checksum verified: $kubelet"
		else
			die "no source for kubelet $k8s_version:$tried" "give this machine access to pkgs.k8s.io or dl.k8s.io, or ask the operator to put kubelet-$k8s_version-linux-$arch into the mirror; details in $log"
		fi
		"$kubelet" --version >/dev/null 2>&1 || die "$kubelet does not run: $("$kubelet" --version 2>&1 | tail -n 1)" "look whether its folder is mounted noexec; then run the command again"
		rm -f "$tmp/kubelet"
	fi

	plugins_missing() {
		plugin_list=''
		for p in loopback bridge host-local portmap; do
			if [ ! -x "/opt/cni/bin/$p" ]; then plugin_list="$plugin_list $p"; fi
		done
		[ -n "$plugin_list" ]
	}
	if plugins_missing; then
		tried=''
		# A distribution puts them elsewhere: a pod network looks in /opt/cni/bin.
		copy_plugins() {
			for d in /usr/lib/cni /usr/libexec/cni; do
				for p in "$d"/*; do
					if [ -x "$p" ] && [ ! -e "/opt/cni/bin/${p##*/}" ]; then put_bin "$p" "/opt/cni/bin/${p##*/}"; fi
				done
			done
		}
		copy_plugins
		if ! plugins_missing; then note "CNI plugins: copied from this machine's own"; fi
		if plugins_missing && mirror_get "cni-plugins-linux-$arch.tgz" "$tmp/cni.tgz"; then
			unpack "$tmp/cni.tgz" /opt/cni/bin
			note "CNI plugins from the mirror"
		fi
		if plugins_missing && packages containernetworking-plugins; then
			copy_plugins
			note "CNI plugins from $distro's packages"
		fi
		if plugins_missing && from_web "https://github.com/containernetworking/plugins/releases/download/$cni_plugins_version/cni-plugins-linux-$arch-$cni_plugins_version.tgz" "$tmp/cni.tgz"; then
			unpack "$tmp/cni.tgz" /opt/cni/bin
			note "CNI plugins $cni_plugins_version from their release, checksum verified"
		fi
		if plugins_missing; then
			die "no source for the CNI plugins$plugin_list:$tried" "install them into /opt/cni/bin, or ask the operator to put cni-plugins-linux-$arch.tgz into the mirror; details in $log"
		fi
	else
		note "CNI plugins: present in /opt/cni/bin"
	fi

	# ---- 7: containerd ----------------------------------------------------------------------------------------

	step 'Configure and start containerd'
	if started_by_systemd; then
		cgroup_driver=systemd
		systemd_cgroup=true
	else
		cgroup_driver=cgroupfs
		systemd_cgroup=false
		cat >"$work/supervisor" <<'SUPERVISOR'
#!/bin/sh
# Keeps containerd and kubelet running on a machine without systemd; written by KubeBYON's join script.
# kubebyon-node start|stop|restart|status [containerd|kubelet]
run=/run/kubebyon
mkdir -p "$run"
alive() { # the supervisor of $1, and not a process that was given its number later
	p=$(cat "$run/$1.pid" 2>/dev/null) # and a dead one that nobody reaps has no command line
	[ -r "/proc/${p:-none}/cmdline" ] && tr '\0' ' ' <"/proc/$p/cmdline" | grep -q "kubebyon-node supervise $1"
}
start() {
	alive "$1" && return 0
	if command -v setsid >/dev/null 2>&1; then
		setsid "$0" supervise "$1" </dev/null >>"/var/log/$1.log" 2>&1 &
	else
		nohup "$0" supervise "$1" </dev/null >>"/var/log/$1.log" 2>&1 &
	fi
}
stop() {
	alive "$1" || return 0
	p=$(cat "$run/$1.pid")
	kill "$p"
	n=0
	while alive "$1" && [ $n -lt 150 ]; do
		sleep 0.2 2>/dev/null || sleep 1
		n=$((n + 1))
	done
	if alive "$1"; then kill -9 "$(cat "$run/$1.child")" "$p"; fi
	rm -f "$run/$1.pid" "$run/$1.child"
}
supervise() {
	echo $$ >"$run/$1.pid"
	child=
	trap 'trap - TERM; [ -n "$child" ] && kill "$child" && wait "$child"; exit 0' TERM
	while :; do
		if [ "$(wc -c <"/var/log/$1.log")" -gt 50000000 ]; then
			tail -n 10000 "/var/log/$1.log" >"/var/log/$1.log.1"
			: >"/var/log/$1.log"
		fi
		case $1 in
		containerd) containerd & ;;
		kubelet) /bin/sh /var/lib/kubebyon/kubelet.sh & ;;
		esac
		child=$!
		echo "$child" >"$run/$1.child"
		wait "$child"
		echo "kubebyon-node: $1 ended with status $?, starting it again in 2 s"
		sleep 2
	done
}
case ${1:-} in
start | restart)
	grep -q ' / / .* shared:' /proc/self/mountinfo || mount --make-rshared /
	for s in ${2:-containerd kubelet}; do
		[ "$1" = restart ] && stop "$s"
		start "$s"
	done
	;;
stop) for s in ${2:-kubelet containerd}; do stop "$s"; done ;;
status)
	code=0
	for s in ${2:-containerd kubelet}; do
		if alive "$s"; then echo "$s: running"; else
			echo "$s: stopped"
			code=1
		fi
	done
	exit $code
	;;
supervise) supervise "$2" ;;
*)
	echo "usage: kubebyon-node start|stop|restart|status [containerd|kubelet]" >&2
	exit 2
	;;
esac
SUPERVISOR
		put "$supervisor" 755 <"$work/supervisor"
	fi

	# wanted: containerd's full configuration on standard input, ours on standard output. Only keys that kubelet and
	# pods depend on are set; everything else stays as the machine's owner has it. Other plugins have a bin_dir too.
	wanted() {
		sed -e "/^ *disabled_plugins *=/s/[\"']\\(io\\.containerd\\.grpc\\.v1\\.\\)\\{0,1\\}cri[\"'] *,\\{0,1\\} *//g" \
			-e "s/^\\( *SystemdCgroup *=\\).*/\\1 $systemd_cgroup/" \
			-e "s#^\\( *sandbox_image *= *\\)\\([\"']\\)\\(registry\\.k8s\\.io\\|k8s\\.gcr\\.io\\)/[^\"']*[\"']#\\1\\2$sandbox_image\\2#" \
			-e "s#^\\( *sandbox *= *\\)\\([\"']\\)\\(registry\\.k8s\\.io\\|k8s\\.gcr\\.io\\)/[^\"']*[\"']#\\1\\2$sandbox_image\\2#" \
			-e "/\\.cni\\] *\$/,/^ *\\[/s#^\\( *bin_dir *= *\\)\\([\"']\\)/[^\"']*[\"']#\\1\\2/opt/cni/bin\\2#" \
			-e "/\\.cni\\] *\$/,/^ *\\[/{/\\/opt\\/cni\\/bin/!s#^\\( *bin_dirs *= *\\[\\)\\([\"']\\).*#\\1\\2/opt/cni/bin\\2]#;}" \
			-e "/\\.cni\\] *\$/,/^ *\\[/s#^\\( *conf_dir *= *\\)\\([\"']\\).*#\\1\\2/etc/cni/net.d\\2#" \
			-e "s/^\\( *restrict_oom_score_adj *=\\).*/\\1 $restrict_oom/"
	}
	# Without CAP_SYS_RESOURCE (nested machines) runc cannot lower oom_score_adj and every container would fail.
	restrict_oom=false
	if ! (echo -999 >/proc/self/oom_score_adj) 2>/dev/null; then
		restrict_oom=true
		note "this machine may not lower oom_score_adj: containerd is told so"
	fi
	toml=/etc/containerd/config.toml
	restart_containerd=''
	if [ -s "$toml" ] && containerd --config "$toml" config dump >"$work/now.toml" 2>>"$log"; then
		wanted <"$work/now.toml" >"$work/want.toml"
		if [ "$(sha_of "$work/now.toml")" != "$(sha_of "$work/want.toml")" ]; then
			sed 's/^imports *=.*/imports = []/' "$work/want.toml" >"$work/flat.toml"
			put "$toml" 644 <"$work/flat.toml"
			restart_containerd=$changed
			note "kept the settings of $toml and changed what kubelet needs (CRI on, SystemdCgroup = $systemd_cgroup)"
		else
			note "$toml is as kubelet needs it"
		fi
	else
		if [ -s "$toml" ]; then warn "containerd does not accept the present $toml: replacing it"; fi
		containerd config default >"$work/now.toml" 2>>"$log" || die "containerd does not print its default configuration: $(last_log)" "reinstall containerd, then run the command again"
		wanted <"$work/now.toml" >"$work/want.toml"
		put "$toml" 644 <"$work/want.toml"
		restart_containerd=$changed
		note "wrote $toml"
	fi
	# What containerd will really do decides what kubelet is told.
	containerd --config "$toml" config dump >"$work/now.toml" 2>>"$log" || die "containerd does not accept $toml: $(last_log)" "repair that file (the earlier one, if any, is $toml.before-kubebyon), then run the command again"
	if ! grep -q "^ *SystemdCgroup *= *$systemd_cgroup" "$work/now.toml"; then
		if grep -q '^ *SystemdCgroup *= *true' "$work/now.toml"; then cgroup_driver=systemd; else cgroup_driver=cgroupfs; fi
		warn "containerd's runc runtime uses the $cgroup_driver cgroup driver: kubelet follows"
	fi

	containerd_answers() { [ -S /run/containerd/containerd.sock ] && ctr --connect-timeout 2s version >/dev/null 2>&1; }
	if started_by_systemd; then
		if ! systemctl cat containerd.service >/dev/null 2>&1; then
			put /etc/systemd/system/containerd.service 644 <<-EOF
				[Unit]
				Description=containerd container runtime (installed by KubeBYON)
				Documentation=https://containerd.io
				After=network.target local-fs.target

				[Service]
				ExecStart=$(command -v containerd)
				Type=notify
				Delegate=yes
				KillMode=process
				Restart=always
				RestartSec=5
				LimitNPROC=infinity
				LimitCORE=infinity
				TasksMax=infinity
				OOMScoreAdjust=$(if [ $restrict_oom = true ]; then echo 0; else echo -999; fi)

				[Install]
				WantedBy=multi-user.target
			EOF
			systemctl daemon-reload
		fi
		systemctl enable containerd.service >>"$log" 2>&1
		if [ "$restart_containerd" = 1 ]; then
			systemctl restart containerd.service >>"$log" 2>&1
		else
			systemctl start containerd.service >>"$log" 2>&1
		fi
	elif containerd_answers && [ "$restart_containerd" != 1 ]; then
		:
	elif containerd_answers && ! "$supervisor" status containerd >/dev/null; then
		die "containerd runs with an older configuration and was not started by this script" "restart containerd the way this machine starts it, then run the command again"
	else
		"$supervisor" restart containerd
	fi
	n=0
	until containerd_answers; do
		n=$((n + 1))
		if [ $n -gt 150 ]; then
			if started_by_systemd; then why=$(journalctl -u containerd -n 5 -o cat --no-pager 2>&1); else why=$(tail -n 5 /var/log/containerd.log); fi
			die "containerd does not answer: $(printf '%s' "$why" | tr '\n' ' ')" "look at its log (journalctl -u containerd, or /var/log/containerd.log), then run the command again"
		fi
		pause
	done
	if ctr plugins ls 2>/dev/null | grep -E '(io\.containerd\.grpc\.v1 +cri|io\.containerd\.cri\.v1) .*error' >/dev/null; then
		die "containerd's CRI plugin did not start" "look for 'failed to load plugin' in its log (journalctl -u containerd, or /var/log/containerd.log), then run the command again"
	fi
	note "containerd answers; cgroup driver: $cgroup_driver"

	# ---- 8: images --------------------------------------------------------------------------------------------

	step "Import the mirror's images"
	printf '%s\n' "$mirror_files" | sed -n "s|^\\([0-9a-f]*\\) [0-9]* \\(images/.*-linux-$arch\\.tar\\)\$|\\1 \\2|p" >"$work/images"
	mkdir -p "$state/images"
	ctr -n k8s.io images ls -q >"$work/present" 2>/dev/null
	images_new=0
	images_there=0
	while read -r sha name; do
		record=$state/images/$sha # the names that this archive gave
		if [ -s "$record" ] && ! grep -vxFf "$work/present" "$record" >/dev/null; then
			images_there=$((images_there + 1))
			continue
		fi
		mirror_get "$name" "$tmp/image.tar" || continue
		if ctr -n k8s.io images import "$tmp/image.tar" >"$work/imported" 2>&1; then
			cat "$work/imported" >>"$log"
			tar -xOf "$tmp/image.tar" manifest.json 2>/dev/null | sed -n 's/.*"RepoTags": *\[\([^]]*\)\].*/\1/p' | tr -d '" ' | tr ',' '\n' >"$record"
			images_new=$((images_new + 1))
		else
			warn "containerd did not take $name: $(tail -n 1 "$work/imported")"
		fi
		rm -f "$tmp/image.tar"
	done <"$work/images"
	note "$images_new imported, $images_there already there; others are pulled from their registries when a pod needs them"

	# ---- 9: kubelet -------------------------------------------------------------------------------------------

	step 'Configure and start kubelet'
	resolv=/etc/resolv.conf
	if [ -s /run/systemd/resolve/resolv.conf ] && grep -q '^nameserver *127\.0\.0\.53' /etc/resolv.conf 2>/dev/null; then
		resolv=/run/systemd/resolve/resolv.conf # systemd-resolved's stub would be the pod itself, seen from a pod
	elif [ -s "$resolv" ] && grep -q '^nameserver' "$resolv" && ! grep '^nameserver' "$resolv" | grep -qv '^nameserver *\(127\.\|::1\)'; then
		warn "$resolv names only this machine itself: pods that use it, CoreDNS among them, would ask themselves. Set resolvConf in $dropins to a file with real servers"
	elif [ ! -e "$resolv" ]; then
		resolv=''
	fi
	restart_kubelet=$kubelet_new
	put "$ca_file" 644 <"$work/ca.crt"
	if [ $changed = 1 ]; then restart_kubelet=1; fi
	put "$kubelet_config" 644 <<-EOF
		# Written by KubeBYON's join script. Your own settings go into $dropins/NN-name.conf.
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		authentication:
		  anonymous:
		    enabled: false
		  webhook:
		    enabled: true
		  x509:
		    clientCAFile: $ca_file
		authorization:
		  mode: Webhook
		cgroupDriver: $cgroup_driver
		clusterDNS:
		- $cluster_dns
		clusterDomain: $cluster_domain
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		failSwapOn: false
		resolvConf: "$resolv"
		rotateCertificates: true
	EOF
	if [ $changed = 1 ]; then restart_kubelet=1; fi
	if have restorecon; then restorecon -R /etc/kubernetes "$state" /var/lib/kubelet >>"$log" 2>&1; fi
	flags="--config=$kubelet_config --config-dir=$dropins --bootstrap-kubeconfig=$bootstrap --kubeconfig=$kubeconfig --cert-dir=/var/lib/kubelet/pki --hostname-override=$node_name --node-ip=$node_ip"
	if started_by_systemd; then
		put /etc/systemd/system/kubelet.service 644 <<-EOF
			[Unit]
			Description=Kubernetes kubelet (installed by KubeBYON)
			Documentation=https://kubernetes.io/docs/
			Wants=network-online.target containerd.service
			After=network-online.target containerd.service
			StartLimitIntervalSec=0

			[Service]
			EnvironmentFile=-/etc/default/kubelet
			EnvironmentFile=-/etc/sysconfig/kubelet
			ExecStart=$kubelet $flags \$KUBELET_EXTRA_ARGS
			Restart=always
			RestartSec=2
			KillMode=process
			CPUAccounting=true
			MemoryAccounting=true

			[Install]
			WantedBy=multi-user.target
		EOF
		if [ $changed = 1 ]; then restart_kubelet=1; fi
		for d in /etc/systemd/system /run/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
			# kubeadm's drop-in would put its own command line in the place of ours.
			if ls "$d"/kubelet.service.d/*.conf >/dev/null 2>&1; then
				put /etc/systemd/system/kubelet.service.d/99-kubebyon.conf 644 <<-EOF
					[Service]
					ExecStart=
					ExecStart=$kubelet $flags \$KUBELET_EXTRA_ARGS
				EOF
				if [ $changed = 1 ]; then restart_kubelet=1; fi
				break
			fi
		done
	else
		put "$state/kubelet.sh" 755 <<-EOF
			#!/bin/sh
			# The kubelet that kubebyon-node keeps running; extra flags: KUBELET_EXTRA_ARGS in /etc/default/kubelet.
			if [ -r /etc/default/kubelet ]; then . /etc/default/kubelet; fi
			exec $kubelet $flags \${KUBELET_EXTRA_ARGS:-}
		EOF
		if [ $changed = 1 ]; then restart_kubelet=1; fi
	fi
	if [ -n "$need_bootstrap" ]; then
		rm -f "$kubeconfig" /var/lib/kubelet/pki/kubelet-client-*
		put "$bootstrap" 600 <<-EOF
			apiVersion: v1
			kind: Config
			clusters:
			- name: kubebyon
			  cluster:
			    server: $api_server
			    certificate-authority-data: $(base64 <"$work/ca.crt" | tr -d '\n')
			users:
			- name: bootstrap
			  user:
			    token: $token
			contexts:
			- name: bootstrap
			  context:
			    cluster: kubebyon
			    user: bootstrap
			current-context: bootstrap
		EOF
		restart_kubelet=1
	elif ! grep -qF "server: $api_server" "$kubeconfig"; then
		# Written in place: it is kubelet's file, and leaving removes it rather than putting an earlier one back.
		sed "s|^\\( *server:\\).*|\\1 $api_server|" "$kubeconfig" >"$work/kubeconfig"
		cat "$work/kubeconfig" >"$kubeconfig" || die "cannot write $kubeconfig" "check the disk, then run the command again"
		note "the API's address changed: $kubeconfig now says $api_server"
		restart_kubelet=1
	fi
	kubelet_since=$(date '+%Y-%m-%d %H:%M:%S')
	kubelet_log_from=1
	if started_by_systemd; then
		systemctl daemon-reload
		systemctl enable kubelet.service >>"$log" 2>&1
		if [ -n "$restart_kubelet" ]; then
			systemctl restart kubelet.service >>"$log" 2>&1 || die "systemd does not start kubelet: $(last_log)" "look at: systemctl status kubelet; journalctl -u kubelet"
		else
			systemctl start kubelet.service >>"$log" 2>&1
		fi
		note "kubelet.service is enabled and started"
	else
		if [ -e /var/log/kubelet.log ]; then kubelet_log_from=$(($(wc -l </var/log/kubelet.log) + 1)); fi
		if [ -n "$restart_kubelet" ]; then "$supervisor" restart kubelet; else "$supervisor" start kubelet; fi
		note "kubelet runs in the background and is started again when it ends (log: /var/log/kubelet.log)"
		warn "there is no systemd here: let the machine's start-up run '$supervisor start'"
	fi

	# ---- 10: the node -----------------------------------------------------------------------------------------

	step "Wait for the node $node_name to appear in the cluster"
	kubelet_log() {
		if started_by_systemd; then
			journalctl -u kubelet --since "$kubelet_since" -o cat --no-pager 2>/dev/null
		else
			tail -n "+$kubelet_log_from" /var/log/kubelet.log 2>/dev/null
		fi
	}
	# diagnose: a known cause in kubelet's log, in $cause and $action; false where there is none.
	diagnose() {
		kubelet_log | tail -n 400 >"$work/kubelet.log"
		cause=''
		seen() { grep -Eq "$1" "$work/kubelet.log"; }
		if seen 'not to run on a host using cgroup v1|cgroup v1 .*(not supported|unsupported)'; then
			cause='kubelet refuses cgroup v1'
			action="boot with cgroup v2, or set failCgroupV1: false in $dropins/10-cgroup-v1.conf, then run the command again"
		elif seen 'failed to load kubelet config|strict decoding error|failed to merge kubelet configs|invalid configuration:'; then
			cause="kubelet does not accept its configuration: $(grep -E 'strict decoding|merge|invalid configuration|failed to load' "$work/kubelet.log" | tail -n 1)"
			action="correct the files in $dropins, then run the command again"
		elif seen 'bootstrap.*[Uu]nauthorized|certificate signing request.*[Uu]nauthorized'; then
			cause='the cluster no longer accepts the join token'
			action='make a new join command in the console, and run that'
		elif seen 'cannot create certificate signing request.*forbidden|certificatesigningrequests.* is forbidden'; then
			cause='the token may not ask for a node certificate: the cluster lacks the role binding for system:bootstrappers'
			action="tell the cluster's operator: its set-up for joining nodes is incomplete"
		elif seen 'x509: certificate has expired or is not yet valid'; then
			cause="a certificate is not valid at this machine's time, $(date -u '+%Y-%m-%d %H:%M:%S') UTC"
			action='set the clock (NTP), then run the command again'
		elif seen 'x509: certificate signed by unknown authority'; then
			cause="kubelet met a certificate that is not of this cluster's CA"
			action='make a new join command in the console, and run that'
		elif seen 'unknown service runtime\.v1|validate CRI v1 runtime API|validate service connection'; then
			cause="containerd does not offer the CRI that kubelet needs: $(containerd --version | sed 's/ [0-9a-f]\{20,\}$//')"
			action='update containerd to 1.6 or later and see that CRI is enabled, then run the command again'
		elif seen 'listen tcp.*:10250: bind: address already in use|address already in use'; then
			cause='another program holds port 10250'
			action='find it with: ss -ltnp sport = :10250; stop it, then run the command again'
		elif seen 'failed to validate nodeIP|node IP: .* not found'; then
			cause="$node_ip is not an address of this machine"
			action='give one that is: … | sh -s -- --node-ip ADDRESS'
		elif seen 'no space left on device'; then
			cause='the disk is full'
			action='free space below /var, then run the command again'
		elif seen 'misconfiguration: kubelet cgroup driver|cgroup driver .* different'; then
			cause="kubelet and containerd use different cgroup drivers"
			action="remove cgroupDriver from the files in $dropins, then run the command again"
		elif seen 'Failed to start ContainerManager|failed to run Kubelet|command failed'; then
			cause="kubelet ends: $(grep -E 'Failed to start ContainerManager|failed to run Kubelet|command failed' "$work/kubelet.log" | tail -n 1 | cut -c 1-400)"
			action='remove that cause, then run the command again'
		fi
		[ -n "$cause" ]
	}
	deadline=$(($(date +%s) + 180))
	look=$(($(date +%s) + 4))
	suspected=''
	found=''
	while [ -z "$found" ]; do
		if [ -s "$client_cert" ]; then
			api cert "/api/v1/nodes/$node_name"
			if [ "$api_code" = 200 ]; then
				found=1
				break
			fi
		fi
		now=$(date +%s)
		if [ "$now" -ge "$look" ]; then
			look=$((now + 4))
			# Seen twice: kubelet is started again after a failure, and the next time may go well.
			if ! diagnose; then
				suspected=''
			elif [ -z "$suspected" ]; then
				suspected=1
				continue
			else
				{
					printf '\nThe last lines of kubelet:\n'
					tail -n 6 "$work/kubelet.log" | cut -c 1-300
				} >&2
				die "$cause" "$action"
			fi
			look=$((now + 10))
			if [ ! -s "$client_cert" ]; then
				note "kubelet has asked the cluster for its certificate and waits for it"
			else
				note "kubelet has its certificate; the node is not there yet (HTTP $api_code)"
			fi
		fi
		if [ "$now" -ge "$deadline" ]; then
			kubelet_log | tail -n 8 | cut -c 1-300 >&2
			if [ ! -s "$client_cert" ]; then
				die "the cluster has not issued this node's certificate within 180 s" "its owner looks at: kubectl get csr; a request that is Pending must be approved (kubectl certificate approve NAME). Then run the command again"
			fi
			die "the node has not appeared within 180 s; the lines above are kubelet's last" "look at kubelet's log (journalctl -u kubelet, or /var/log/kubelet.log), then run the command again"
		fi
		pause
	done
	rm -f "$bootstrap"
	rm -rf "$tmp"
	note "$node_name is registered; it becomes Ready when the cluster's pod network runs on it"
	note "to take this machine out of the cluster one day: kubebyon-leave"
	say 'This node has joined the cluster'
}
{ kubebyon_join "$@" </dev/null; }
