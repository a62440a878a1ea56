package joinscript

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A rehearsal runs the whole script as root of a throw-away machine: this one's files under an overlay, its own
// processes, mounts and network. The tenant's API and the mirror are small servers here; containerd, kubelet and the
// package managers are stubs that record how they are called. What they stand for is run for real in deploy/e2e.
type rehearsal struct {
	Shell     []string
	Args      []string
	OSRelease string   // contents; Debian 12 by default
	Systemd   bool     // a stub systemctl, and /run/systemd/system
	Present   string   // programs that are installed already, blank-separated
	Mirror    string   // files the mirror holds: kubelet containerd cni image
	Web       string   // what pkgs.k8s.io, dl.k8s.io and GitHub hold: key kubelet cni
	Packages  string   // what the package manager can install: containerd kubelet cni containerd.io
	Fault     string   // what is wrong, see the handler and the stubs
	Before    string   // sh, run before
	Runs      int      // 1 by default
	Between   string   // sh, run between two runs
	Last      []string // arguments of the last run, where they differ
	After     string   // sh, run after; its output is the result's After
	Version2  bool     // the stub containerd has the configuration of version 2.4
	CutStep   int      // above 0: run prefixes of the script first, none of which may do anything
}

type rehearsed struct {
	Runs    []outcomeJSON
	Calls   string   // one line a call of a stub
	Changed []string // files of the machine that the runs made, changed or removed; /run and /tmp with what is left there
	After   string
	Err     string
}

type outcomeJSON struct {
	Stdout, Stderr string
	Code           int
}

const rehearsalVariable = "KUBEBYON_JOINSCRIPT_REHEARSAL"

// What containerd 1.6 and 2.4 print for "config default".
//
//go:embed testdata/containerd-1.6.toml
var containerdDefault string

//go:embed testdata/containerd-2.4.toml
var containerd2Default string

func rehearse(t *testing.T, r rehearsal) rehearsed {
	t.Helper()
	if r.Shell == nil {
		r.Shell = []string{"dash"}
	}
	if r.OSRelease == "" {
		r.OSRelease = "ID=debian\nVERSION_ID=\"12\"\n"
	}
	if r.Runs == 0 {
		r.Runs = 1
	}
	spec, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), rehearsalVariable+"="+string(spec))
	cmd.Dir = t.TempDir()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("the rehearsal did not run (it needs namespaces and overlayfs): %v\n%s%s", err, stdout.String(), stderr.String())
	}
	var got rehearsed
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s%s", err, stdout.String(), stderr.String())
	}
	if got.Err != "" {
		t.Fatal(got.Err)
	}
	for _, o := range got.Runs {
		if strings.Contains(o.Stdout+o.Stderr, "0123456789abcdef") {
			t.Errorf("the script prints the token:\n%s%s", o.Stdout, o.Stderr)
		}
	}
	if strings.Contains(got.Calls, "0123456789abcdef") {
		t.Errorf("the token is on a command line:\n%s", got.Calls)
	}
	return got
}

// rehearsalMain is the process inside the namespaces.
func rehearsalMain(spec string) int {
	var r rehearsal
	var out rehearsed
	err := json.Unmarshal([]byte(spec), &r)
	if err == nil {
		err = r.play(&out)
	}
	if err != nil {
		out.Err = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// stage makes the throw-away machine and gives its root.
func (r rehearsal) stage() (string, error) {
	base, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root := filepath.Join(base, "root")
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", base, "tmpfs", 0, "") },
	}
	for _, d := range []string{"upper", "work", "root"} {
		steps = append(steps, func() error { return os.Mkdir(filepath.Join(base, d), 0o755) })
	}
	steps = append(steps,
		func() error {
			return unix.Mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+base+"/upper,workdir="+base+"/work")
		},
		func() error { return unix.Mount("proc", root+"/proc", "proc", 0, "") },
		func() error { return unix.Mount("/sys", root+"/sys", "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Mount("/dev", root+"/dev", "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Mount("tmpfs", root+"/run", "tmpfs", 0, "") },
		func() error { return unix.Mount("tmpfs", root+"/tmp", "tmpfs", 0, "") },
		func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() },
	)
	for _, step := range steps {
		if err := step(); err != nil {
			return "", fmt.Errorf("stage: %w", err)
		}
	}
	for _, p := range []string{
		"etc/kubernetes", "etc/containerd", "etc/cni", "etc/rancher", "etc/systemd/system", "opt/cni", "var/lib/kubelet", "var/lib/kubebyon", "var/lib/cni", "var/lib/rancher", "usr/lib/cni",
		"usr/libexec/cni", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc", "usr/bin/runc", "usr/bin/kubelet", "usr/local/bin", "usr/local/sbin", "etc/os-release",
		"usr/lib/systemd/system/containerd.service", "lib/systemd/system/containerd.service", "etc/sysctl.d/99-kubebyon.conf", "usr/bin/dnf", "usr/bin/yum",
	} {
		if err := os.RemoveAll(filepath.Join(root, p)); err != nil {
			return "", err
		}
	}
	return root, nil
}

const record = "#!/bin/dash\necho \"${0##*/} $*\" >>/calls\n"

// programs are the stubs that come from the mirror, a package or are there before.
func (r rehearsal) programs(clientPEM string) map[string]string {
	kubelet := record + `[ "$1" = --version ] && { echo "Kubernetes v1.37.2"; exit; }
echo "kubelet: bootstrap file mode $(stat -c %a /etc/kubernetes/bootstrap-kubelet.conf 2>/dev/null)" >>/calls
mkdir -p /var/lib/kubelet/pki
`
	switch r.Fault {
	case "kubelet-config":
		kubelet += "echo 'E1201 run.go:72] \"command failed\" err=\"failed to load kubelet config file: strict decoding error: unknown field foo\"' >&2; exit 1\n"
	case "kubelet-dies":
		kubelet += "echo 'E1201 run.go:72] \"command failed\" err=\"failed to run Kubelet: validate service connection: validate CRI v1 runtime API for endpoint\"' >&2; exit 1\n"
	case "no-approval":
		kubelet += "exec sleep 1000\n"
	default:
		kubelet += `cat >/var/lib/kubelet/pki/kubelet-client-current.pem <<'EOF'
` + clientPEM + `EOF
cp /etc/kubernetes/bootstrap-kubelet.conf /tmp/used 2>/dev/null
[ -e /etc/kubernetes/kubelet.conf ] || (umask 077; sed '/token:/d' /tmp/used >/etc/kubernetes/kubelet.conf)
: >/tmp/registered
rm -f /tmp/used
exec sleep 1000
`
	}
	return map[string]string{
		"kubelet": kubelet,
		"containerd": record + `case "$*" in
--version) echo "containerd github.com/containerd/containerd 1.6.20 0123" ;;
"config default") cat /stub/default.toml ;;
*"config dump") cat /etc/containerd/config.toml ;;
"") : >/tmp/containerd-runs; exec sleep 1000 ;;
esac
`,
		"containerd-shim-runc-v2": record,
		"runc":                    record,
		"ctr": record + `case "$*" in
*version) [ -e /tmp/containerd-runs ] ;;
*"images ls -q") cat /tmp/images 2>/dev/null ;;
*"images import"*) echo registry.k8s.io/pause:3.10.1 >>/tmp/images ;;
*"plugins ls") echo "io.containerd.grpc.v1  cri  linux/amd64  ok" ;;
esac
exit $?
`,
	}
}

var cniPlugins = []string{"loopback", "bridge", "host-local", "portmap"}

func (r rehearsal) play(out *rehearsed) error {
	root, err := r.stage()
	if err != nil {
		return err
	}
	ca, err := newAuthority("kubernetes")
	if err != nil {
		return err
	}
	other, err := newAuthority("kubernetes")
	if err != nil {
		return err
	}
	clientCert, clientKey, err := ca.issue(x509.Certificate{Subject: pkix.Name{CommonName: "system:node:worker", Organization: []string{"system:nodes"}}})
	if err != nil {
		return err
	}
	serving := x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	signer := ca
	switch r.Fault {
	case "other-ca":
		signer = other
	case "system-ca": // one that the whole machine trusts, and the tenant's CA did not sign
		signer = other
	case "expired":
		serving.NotBefore, serving.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour)
	case "not-yet":
		serving.NotBefore, serving.NotAfter = time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour)
	case "wrong-name":
		serving.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)}
	}
	certPEM, keyPEM, err := signer.issue(serving)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		return err
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r.api(root), TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}, ReadHeaderTimeout: 5 * time.Second}
	if r.Fault == "refused" {
		api.Close()
	} else {
		go server.ServeTLS(api, "", "")
	}

	programs := r.programs(clientCert + clientKey)
	put := func(path, text string, mode os.FileMode) {
		if err == nil {
			path = filepath.Join(root, path)
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte(text), mode)
			}
		}
	}
	for name, text := range programs {
		put("stub/bin/"+name, text, 0o755)
	}
	for _, name := range strings.Fields(r.Present) {
		put("usr/bin/"+name, programs[name], 0o755)
	}
	for _, name := range cniPlugins {
		put("stub/cni/"+name, record, 0o755)
	}
	if r.Version2 {
		containerdDefault = containerd2Default
	}
	put("stub/default.toml", containerdDefault, 0o644)
	put("etc/os-release", r.OSRelease, 0o644)
	put("etc/resolv.conf", "nameserver 192.0.2.53\n", 0o644)
	put("etc/hostname", "worker\n", 0o644)
	if r.Fault != "cgroup-v1" {
		put("etc/kubernetes/kubelet.conf.d/10-test.conf", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n", 0o644)
	}
	if r.Fault == "system-ca" {
		put("etc/ssl/certs/ca-certificates.crt", other.pem, 0o644)
		put("etc/pki/tls/certs/ca-bundle.crt", other.pem, 0o644)
		put("etc/ssl/certs/other.pem", other.pem, 0o644)
	}
	for _, tool := range []string{"apt-get", "dnf", "yum"} {
		put("usr/local/bin/"+tool, record+`for a; do
case " $PACKAGES " in *" ${a%%=*} "*) ;; *) case $a in containerd | kubelet* | containerd.io | containernetworking-plugins) echo "E: Unable to locate package $a" >&2; exit 100 ;; esac ;; esac
case $a in
containerd | containerd.io) cp /stub/bin/containerd* /stub/bin/ctr /stub/bin/runc /usr/bin/ ;;
kubelet*) cp /stub/bin/kubelet /usr/bin/ ;;
kubernetes-cni) mkdir -p /opt/cni/bin; cp /stub/cni/* /opt/cni/bin/ ;;
containernetworking-plugins) mkdir -p /usr/lib/cni; cp /stub/cni/* /usr/lib/cni/ ;;
esac
done
exit 0
`, 0o755)
	}
	for _, tool := range []string{"apt-mark", "modprobe"} {
		put("usr/local/bin/"+tool, record, 0o755)
	}
	put("usr/local/bin/curl", record+`url=; out=; prev=
for a; do
case $a in https://pkgs.k8s.io/* | https://dl.k8s.io/* | https://github.com/*) url=$a ;; esac
[ "$prev" = -o ] && out=$a
prev=$a
done
[ -z "$url" ] && exec /usr/bin/curl "$@"
[ -e "/stub/web/${url##*/}" ] && cp "/stub/web/${url##*/}" "$out" && exit 0
echo "curl: (6) Could not resolve host" >&2
exit 6
`, 0o755)
	for _, w := range strings.Fields(r.Web) {
		switch w {
		case "key":
			put("stub/web/Release.key", "a key\n", 0o644)
		case "kubelet":
			put("stub/web/kubelet", programs["kubelet"], 0o644)
			put("stub/web/kubelet.sha256", sum(programs["kubelet"]), 0o644)
		case "cni":
			tgz := cniArchive()
			put("stub/web/cni-plugins-linux-amd64-v1.9.0.tgz", tgz, 0o644)
			put("stub/web/cni-plugins-linux-amd64-v1.9.0.tgz.sha256", sum(tgz)+"  cni-plugins-linux-amd64-v1.9.0.tgz\n", 0o644)
		case "wrong-kubelet":
			put("stub/web/kubelet", programs["kubelet"], 0o644)
			put("stub/web/kubelet.sha256", sum("something else"), 0o644)
		}
	}
	if r.Systemd {
		put("run/systemd/system/.keep", "", 0o644)
		put("usr/local/bin/systemctl", record+`case "$*" in
"cat containerd.service") [ -e /etc/systemd/system/containerd.service ] || [ -e /usr/bin/containerd ] ;;
"cat "*) exit 1 ;;
*is-active*) exit 3 ;;
"restart kubelet.service" | "start kubelet.service")
	[ "$1" = start ] && [ -e /tmp/kubelet.journal ] && exit 0
	setsid sh -c "$(sed -n 's/^ExecStart=//p' /etc/systemd/system/kubelet.service | sed 's/\$KUBELET_EXTRA_ARGS//')" >/tmp/kubelet.journal 2>&1 </dev/null & ;;
*"start containerd.service") : >/tmp/containerd-runs ;;
esac
`, 0o755)
		put("usr/local/bin/journalctl", "#!/bin/dash\ncat /tmp/kubelet.journal\n", 0o755)
	}
	if err != nil {
		return err
	}
	// containerd's socket; the stub ctr decides whether anything answers behind it.
	if err := os.MkdirAll(root+"/run/containerd", 0o755); err != nil {
		return err
	}
	if err := os.Chdir(root + "/run/containerd"); err != nil { // a socket's path is short
		return err
	}
	socket, err := net.Listen("unix", "containerd.sock")
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := unix.Sethostname([]byte("worker")); err != nil {
		return err
	}

	files := map[string]string{}
	for _, m := range strings.Fields(r.Mirror) {
		switch m {
		case "kubelet":
			files["kubelet-v1.37.2-linux-amd64"] = programs["kubelet"]
		case "containerd":
			files["containerd-linux-amd64.tgz"] = archive(true, map[string]string{
				"bin/containerd": programs["containerd"], "bin/ctr": programs["ctr"], "bin/runc": programs["runc"], "bin/containerd-shim-runc-v2": programs["containerd-shim-runc-v2"],
			})
		case "cni":
			files["cni-plugins-linux-amd64.tgz"] = cniArchive()
		case "image":
			files["images/pause-linux-amd64.tar"] = archive(false, map[string]string{"manifest.json": `[{"Config":"c.json","RepoTags":["registry.k8s.io/pause:3.10.1"],"Layers":["l.tar"]}]`})
		}
	}
	mirror, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p := Params{
		APIServer: "https://" + api.Addr().String(), CAPEM: ca.pem, Token: testToken, ClusterName: "Shop", ClusterID: "cl_shop", KubernetesVersion: "v1.37.2",
		ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local", MirrorURL: "http://" + mirror.Addr().String() + "/node/mirror",
	}
	if r.Fault == "no-dns" {
		p.APIServer = "https://api.invalid:6443"
	}
	mux := http.NewServeMux()
	for name, text := range files {
		p.MirrorFiles = append(p.MirrorFiles, MirrorFile{Name: name, SHA256: sum(text), Size: int64(len(text))})
		mux.HandleFunc("/node/mirror/"+name, func(w http.ResponseWriter, _ *http.Request) {
			if r.Fault == "mirror-altered" {
				text += "#"
			}
			if r.Fault == "mirror-gone" {
				http.NotFound(w, nil)
				return
			}
			w.Write([]byte(text))
		})
	}
	go http.Serve(mirror, mux)
	script, err := Render(p)
	if err != nil {
		return err
	}

	inside := func(stdin string, shell []string, args ...string) outcomeJSON {
		cmd := exec.Command(shell[0], append(append(append([]string{}, shell[1:]...), "-s", "--"), args...)...)
		cmd.Dir = "/"
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "PACKAGES=" + r.packages()}
		cmd.Stdin = strings.NewReader(stdin)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.WaitDelay = 5 * time.Second
		err := cmd.Run()
		if errors.Is(err, exec.ErrWaitDelay) {
			stderr.WriteString("\nTEST: something that the script started holds its output open\n")
		} else if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			stderr.WriteString(err.Error())
			return outcomeJSON{stdout.String(), stderr.String(), -1}
		}
		return outcomeJSON{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	}
	if r.Before != "" {
		if o := inside(r.Before, []string{"dash"}); o.Code != 0 {
			return fmt.Errorf("before: %+v", o)
		}
	}
	if r.CutStep > 0 {
		for _, n := range cuts(string(script), r.CutStep) {
			o := inside(string(script[:n]), r.Shell)
			left, err := os.ReadDir(root + "/run")
			if err != nil {
				return err
			}
			if o.Stdout != "" || strings.Contains(o.Stderr, "joined") || len(left) > 1 || exists(root+"/calls") {
				return fmt.Errorf("cut at byte %d of %d, it ran: %+v", n, len(script), o)
			}
		}
		script = bytes.Replace(script, []byte("https://127.0.0.1:"), []byte("https://127.0.0.2:"), 1) // whole, and going no further than step 2
	}
	before, err := snapshot(root)
	if err != nil {
		return err
	}
	for n := range r.Runs {
		args := r.Args
		if n > 0 && r.Between != "" {
			if o := inside(r.Between, []string{"dash"}); o.Code != 0 {
				return fmt.Errorf("between: %+v", o)
			}
		}
		if n == r.Runs-1 && r.Last != nil {
			args = r.Last
		}
		out.Runs = append(out.Runs, inside(string(script), r.Shell, args...))
	}
	after, err := snapshot(root)
	if err != nil {
		return err
	}
	for path, what := range after {
		if before[path] != what {
			out.Changed = append(out.Changed, path)
		}
		delete(before, path)
	}
	out.Changed = append(out.Changed, slices.Collect(maps.Keys(before))...)
	if r.After != "" {
		o := inside(r.After, []string{"dash"})
		out.After = o.Stdout + o.Stderr
	}
	calls, err := os.ReadFile(root + "/calls")
	out.Calls = string(calls)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return err
}

// snapshot gives what differs between this machine and the throw-away one: the overlay's upper folder, /run and /tmp.
func snapshot(root string) (map[string]string, error) {
	all := map[string]string{}
	for _, top := range []string{filepath.Join(filepath.Dir(root), "upper"), root + "/run", root + "/tmp"} {
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if p == top || strings.HasSuffix(p, "upper/calls") || info.IsDir() && strings.HasPrefix(p, filepath.Dir(root)+"/upper") {
				return nil // a folder changes with its files
			}
			all[strings.TrimPrefix(p, filepath.Dir(root))] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (r rehearsal) packages() string {
	var all []string
	for _, p := range strings.Fields(r.Packages) {
		all = append(all, map[string]string{"containerd": "containerd", "kubelet": "kubelet kubelet-1.37.2", "cni": "containernetworking-plugins", "containerd.io": "containerd.io"}[p])
	}
	return strings.Join(all, " ")
}

// api answers what the script asks the tenant's API. The stub kubelet registers by making a file.
func (r rehearsal) api(root string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "" {
			http.Error(w, "a token where none is needed", http.StatusTeapot)
		}
		fmt.Fprint(w, `{"gitVersion":"v1.37.2"}`)
	})
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, req *http.Request) {
		_, err := os.Stat(root + "/tmp/registered")
		status := http.StatusNotFound
		if err == nil {
			status = http.StatusOK
		}
		if len(req.TLS.PeerCertificates) == 0 {
			switch {
			case r.Fault == "bad-token" || req.Header.Get("Authorization") != "Bearer "+testToken:
				status = http.StatusUnauthorized
			case r.Fault == "forbidden":
				status = http.StatusForbidden
			case r.Fault == "duplicate":
				status = http.StatusOK
			case r.Fault == "api-broken":
				status = http.StatusInternalServerError
			}
		}
		w.WriteHeader(status)
		fmt.Fprint(w, `{"kind":"Node","status":{"nodeInfo":{"machineID":"00000000000000000000000000000001"}}}`)
	})
	return mux
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func cniArchive() string {
	files := map[string]string{}
	for _, p := range cniPlugins {
		files["./"+p] = record
	}
	return archive(true, files)
}

func archive(gz bool, files map[string]string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if !gz {
		w = tar.NewWriter(&b)
	}
	for name, text := range files {
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
		w.Write([]byte(text))
	}
	w.Close()
	if gz {
		z.Close()
	}
	return b.String()
}

const (
	joined     = "This node has joined the cluster\n"
	everything = "kubelet containerd cni image"
)

func mustJoin(t *testing.T, o outcomeJSON) {
	t.Helper()
	if o.Code != 0 || !strings.HasSuffix(o.Stdout, "\n"+joined) || o.Stderr != "" {
		t.Fatalf("exit %d\n%s%s", o.Code, o.Stdout, o.Stderr)
	}
}

// TestRehearsalShells: the whole script under every shell, twice.
func TestRehearsalShells(t *testing.T) {
	for _, sh := range shells {
		for _, systemd := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s systemd=%t", strings.Join(sh, " "), systemd), func(t *testing.T) {
				t.Parallel()
				got := rehearse(t, rehearsal{Shell: sh, Systemd: systemd, Mirror: everything, Runs: 2, After: `
ls -l /etc/kubernetes | grep -c bootstrap
grep -rl 0123456789abcdef /etc /var/lib/kubelet /var/lib/kubebyon /var/log /run /tmp 2>/dev/null
cat /proc/sys/net/ipv4/ip_forward /etc/modules-load.d/kubebyon.conf
grep -E 'SystemdCgroup|sandbox_image|bin_dir' /etc/containerd/config.toml
cat /var/lib/kubelet/config.yaml
ls -A /run/kubebyon-join.lock /var/lib/kubebyon/tmp 2>/dev/null
ls /tmp
`})
				mustJoin(t, got.Runs[0])
				mustJoin(t, got.Runs[1])
				if !strings.Contains(got.Runs[1].Stdout, "has already joined as worker") {
					t.Errorf("the second run does not see the first:\n%s", got.Runs[1].Stdout)
				}
				if n := strings.Count(got.Calls, "kubelet --config"); n != 1 {
					t.Errorf("kubelet was started %d times:\n%s", n, got.Calls)
				}
				if !strings.Contains(got.Calls, "bootstrap file mode 600\n") {
					t.Errorf("the bootstrap file's mode: %s", got.Calls)
				}
				name := "after.golden"
				if systemd {
					name = "after-systemd.golden"
				}
				golden(t, name, got.After)
				if sh[0] == "dash" {
					golden(t, strings.Replace(name, "after", "said", 1), variable(got.Runs[0].Stdout))
				}
			})
		}
	}
}

var variableRE = regexp.MustCompile(`127\.0\.0\.1:\d+|Linux [^,]+|.*(cgroup v1, accepted|oom_score_adj|only \d+ MiB|swap is on).*\n`)

// variable takes out of the script's words what differs from run to run and from machine to machine.
func variable(s string) string {
	return variableRE.ReplaceAllStringFunc(s, func(m string) string {
		switch {
		case strings.HasPrefix(m, "127"):
			return "127.0.0.1:PORT"
		case strings.HasPrefix(m, "Linux"):
			return "Linux VERSION"
		}
		return ""
	})
}

// TestRehearsalDistributions: each is known by its os-release, and its own package manager is asked.
func TestRehearsalDistributions(t *testing.T) {
	for _, d := range []struct{ name, release, tool, runtime string }{
		{"debian", "ID=debian\nVERSION_ID=\"13\"\n", "apt-get install", "containerd"},
		{"ubuntu", "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "apt-get install", "containerd"},
		{"rhel", "ID=\"rhel\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.4\"\n", "dnf -y", "containerd.io"},
		{"centos", "ID=\"centos\"\nID_LIKE=\"rhel fedora\"\nVERSION_ID=\"9\"\n", "dnf -y", "containerd.io"},
		{"rocky", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\n", "dnf -y", "containerd.io"},
		{"almalinux", "ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"10.0\"\n", "dnf -y", "containerd.io"},
		{"fedora", "ID=fedora\nVERSION_ID=42\n", "dnf -y", "containerd"},
		{"amzn", "ID=\"amzn\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"2023\"\n", "dnf -y", "containerd"},
		{"ol", "ID=\"ol\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.4\"\n", "dnf -y", "containerd.io"},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			got := rehearse(t, rehearsal{OSRelease: d.release, Systemd: true, Web: "key", Packages: d.runtime + " kubelet cni"})
			mustJoin(t, got.Runs[0])
			family := map[string]string{"apt-get install": "debian family", "dnf -y": "rhel family"}[d.tool]
			if !strings.Contains(got.Runs[0].Stdout, d.name+" ") || !strings.Contains(got.Runs[0].Stdout, family) {
				t.Errorf("the distribution is not named:\n%s", got.Runs[0].Stdout)
			}
			for _, p := range []string{d.runtime, "kubelet"} {
				if !regexp.MustCompile(`(?m)^` + d.tool + `.* ` + regexp.QuoteMeta(p)).MatchString(got.Calls) {
					t.Errorf("no %s … %s:\n%s", d.tool, p, got.Calls)
				}
			}
		})
	}
}

// TestRehearsalSources: mirror before packages before the web, and a clear end where nothing has it.
func TestRehearsalSources(t *testing.T) {
	t.Run("dl.k8s.io", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Packages: "containerd", Web: "kubelet cni"})
		mustJoin(t, got.Runs[0])
		for _, want := range []string{"from dl.k8s.io, checksum verified", "from their release, checksum verified"} {
			if !strings.Contains(got.Runs[0].Stdout, want) {
				t.Errorf("no %q:\n%s", want, got.Runs[0].Stdout)
			}
		}
		// The checksum comes from the same place: a redirect out of TLS would undo both.
		fetched := 0
		for call := range strings.Lines(got.Calls) {
			if strings.Contains(call, " https://dl.k8s.io/") || strings.Contains(call, " https://github.com/") {
				if fetched++; !strings.Contains(call, " --proto =https ") {
					t.Errorf("may be led out of TLS: %s", call)
				}
			}
		}
		if fetched < 4 {
			t.Errorf("%d downloads were seen:\n%s", fetched, got.Calls)
		}
	})
	t.Run("everything present", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Present: "containerd ctr runc containerd-shim-runc-v2 kubelet", Before: "mkdir -p /opt/cni/bin; cp /stub/cni/* /opt/cni/bin/"})
		mustJoin(t, got.Runs[0])
		if strings.Contains(got.Calls, "apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold -o Acquire::http::Timeout=15 containerd") || strings.Contains(got.Runs[0].Stdout, "mirror:") {
			t.Errorf("something was fetched:\n%s", got.Calls)
		}
	})
	t.Run("the mirror lost its files", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Fault: "mirror-gone", Mirror: everything, Packages: "containerd cni", Web: "kubelet"})
		mustJoin(t, got.Runs[0])
	})
	for _, c := range []struct {
		name string
		r    rehearsal
		want []string
	}{
		{"no runtime", rehearsal{Mirror: "kubelet cni"}, []string{"step:   [5/10]", "no source for containerd and runc", "Unable to locate package"}},
		{"no kubelet", rehearsal{Mirror: "containerd cni"}, []string{"step:   [6/10]", "no source for kubelet v1.37.2", "pkgs.k8s.io", "dl.k8s.io", "Could not resolve host"}},
		{"no plugins", rehearsal{Mirror: "containerd kubelet"}, []string{"step:   [6/10]", "no source for the CNI plugins loopback bridge host-local portmap"}},
		{"unknown distribution", rehearsal{OSRelease: "ID=plan9\n"}, []string{"step:   [5/10]", "knows no package manager for plan9"}},
		{"altered mirror", rehearsal{Mirror: everything, Fault: "mirror-altered"}, []string{"step:   [5/10]", "does not have the SHA-256"}},
		{"altered kubelet", rehearsal{Mirror: "containerd cni", Web: "wrong-kubelet"}, []string{"step:   [6/10]", "does not have the SHA-256 published beside it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mustFail(t, rehearse(t, c.r), c.want...)
		})
	}
}

func mustFail(t *testing.T, got rehearsed, want ...string) {
	t.Helper()
	o := got.Runs[len(got.Runs)-1]
	if o.Code != 1 || strings.Contains(o.Stdout, joined) {
		t.Errorf("exit %d\n%s", o.Code, o.Stdout)
	}
	for _, w := range append(want, "This node has NOT joined the cluster.", "  step:   [", "  cause:  ", "  action: ") {
		if !strings.Contains(o.Stderr, w) {
			t.Errorf("no %q in:\n%s%s", w, o.Stdout, o.Stderr)
		}
	}
}

// TestRehearsalRefusals: each ends in step 3 at the latest, with its own cause, and has changed nothing.
func TestRehearsalRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		r    rehearsal
		want []string
	}{
		{"option", rehearsal{Args: []string{"--frobnicate"}}, []string{"unknown option --frobnicate", "--help"}},
		{"option without value", rehearsal{Args: []string{"--node-name"}}, []string{"--node-name needs a value"}},
		{"bad name", rehearsal{Args: []string{"--node-name", "Bad_Name"}}, []string{"[1/10]", "'Bad_Name' cannot be a node's name"}},
		{"long name", rehearsal{Args: []string{"--node-name=" + strings.Repeat("a", 64)}}, []string{"[1/10]", "cannot be a node's name"}},
		{"name injection", rehearsal{Args: []string{"--node-name", "a\nb: c"}}, []string{"[1/10]", "cannot be a node's name"}},
		{"bad address", rehearsal{Args: []string{"--node-ip", "$(id)"}}, []string{"[1/10]", "is not an IP address"}},
		{"refused", rehearsal{Fault: "refused"}, []string{"[2/10]", "refused the connection"}},
		{"no DNS", rehearsal{Fault: "no-dns"}, []string{"[2/10]", "api.invalid cannot be resolved"}},
		{"other CA", rehearsal{Fault: "other-ca"}, []string{"[2/10]", "does not hold a certificate of this cluster's CA"}},
		{"a CA of the system", rehearsal{Fault: "system-ca"}, []string{"[2/10]", "does not hold a certificate of this cluster's CA"}},
		{"~/.curlrc says insecure", rehearsal{Fault: "other-ca", Before: "mkdir -p /root; echo insecure >/root/.curlrc"}, []string{"[2/10]", "does not hold a certificate of this cluster's CA"}},
		{"expired", rehearsal{Fault: "expired"}, []string{"[2/10]", "not valid at this machine's time", "set the clock"}},
		{"not yet valid", rehearsal{Fault: "not-yet"}, []string{"[2/10]", "not valid at this machine's time", "set the clock"}},
		{"another name", rehearsal{Fault: "wrong-name"}, []string{"[2/10]", "for another name or address"}},
		{"token", rehearsal{Fault: "bad-token"}, []string{"[3/10]", "it has expired or was revoked", "make a new join command"}},
		{"API broken", rehearsal{Fault: "api-broken"}, []string{"[3/10]", "HTTP 500"}},
		{"duplicate", rehearsal{Fault: "duplicate"}, []string{"[3/10]", "already has a node named worker", "--node-name", "--force-join"}},
		{"duplicate of a clone", rehearsal{Fault: "duplicate", Before: "echo 00000000000000000000000000000001 >/etc/machine-id"}, []string{"[3/10]", "machine id of this machine"}},
		{"kubeadm node", rehearsal{Before: "mkdir -p /etc/kubernetes; echo '    server: https://10.0.0.1:6443' >/etc/kubernetes/kubelet.conf"}, []string{"[1/10]", "already a node of https://10.0.0.1:6443", "--force-join"}},
		{"control plane", rehearsal{Args: []string{"--force-join"}, Before: "mkdir -p /etc/kubernetes/manifests; : >/etc/kubernetes/manifests/kube-apiserver.yaml"}, []string{"[1/10]", "control plane of another cluster"}},
		{"k3s", rehearsal{Before: "mkdir -p /var/lib/rancher/k3s/agent"}, []string{"[1/10]", "a k3s node", "--force-join"}},
		{"another tenant", rehearsal{Before: "mkdir -p /var/lib/kubebyon; printf 'cluster_id=cl_x\\nca_sha256=1\\nnode=w\\n' >/var/lib/kubebyon/node; : >/etc/kubernetes/kubelet.conf"}, []string{"[1/10]", "node w of the KubeBYON cluster cl_x", "--force-join"}},
		{"already running", rehearsal{Before: "mkdir /run/kubebyon-join.lock; echo 1 >/run/kubebyon-join.lock/pid"}, []string{"already running here"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.r.Mirror = everything
			got := rehearse(t, c.r)
			mustFail(t, got, c.want...)
			if len(got.Changed) > 0 {
				t.Errorf("the machine was changed: %q", got.Changed)
			}
		})
	}
	t.Run("cgroup v1", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			t.Log("this machine has cgroup v2: the refusal of v1 cannot be seen here")
			return
		}
		mustFail(t, rehearse(t, rehearsal{Fault: "cgroup-v1", Mirror: everything}), "[1/10]", "uses cgroup v1", "failCgroupV1: false")
	})
}

// TestRehearsalContainerdSettings: of containerd's own settings and of an owner's, exactly what kubelet needs changes.
func TestRehearsalContainerdSettings(t *testing.T) {
	const owners = `sed -e 's/^disabled_plugins = .*/disabled_plugins = ["cri", "io.containerd.internal.v1.opt"]/' -e 's#"registry.k8s.io/pause:3.6"#"registry.corp.example/pause:3"#' -e 's#"/opt/cni/bin"#"/usr/lib/cni"#' -e 's/max_concurrent_downloads = 3/max_concurrent_downloads = 9/' /stub/default.toml`
	for name, r := range map[string]rehearsal{
		"containerd-1.6":        {},
		"containerd-2.4":        {Version2: true},
		"containerd-1.6-owners": {Before: "mkdir -p /etc/containerd; " + owners + " >/etc/containerd/config.toml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.Systemd, r.Mirror, r.Runs = true, everything, 2
			r.After = "diff -U0 /stub/default.toml /etc/containerd/config.toml | grep '^[-+] ' | grep -v restrict_oom_score_adj"
			if r.Before != "" {
				r.After = owners + " >/tmp/owners.toml; cmp /tmp/owners.toml /etc/containerd/config.toml.before-kubebyon; diff -U0 /tmp/owners.toml /etc/containerd/config.toml | grep '^[-+][^-+]' | grep -v restrict_oom_score_adj"
			}
			got := rehearse(t, r)
			mustJoin(t, got.Runs[0])
			mustJoin(t, got.Runs[1])
			if !strings.Contains(got.Runs[1].Stdout, "config.toml is as kubelet needs it") {
				t.Errorf("the second run changes it again:\n%s", got.Runs[1].Stdout)
			}
			golden(t, name+".golden", got.After)
		})
	}
}

func TestRehearsalHelp(t *testing.T) {
	got := rehearse(t, rehearsal{Args: []string{"--help"}, After: "ls /calls"}).Runs[0]
	if got.Code != 0 || got.Stderr != "" {
		t.Errorf("%+v", got)
	}
	golden(t, "help.golden", got.Stdout)
}

// TestRehearsalKubeletFails: a kubelet that cannot run is explained from its log.
func TestRehearsalKubeletFails(t *testing.T) {
	for _, c := range []struct {
		fault   string
		systemd bool
		want    []string
	}{
		{"kubelet-config", false, []string{"[10/10]", "does not accept its configuration", "unknown field foo"}},
		{"kubelet-dies", true, []string{"[10/10]", "does not offer the CRI", "last lines of kubelet"}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			mustFail(t, rehearse(t, rehearsal{Systemd: c.systemd, Mirror: everything, Fault: c.fault}), c.want...)
		})
	}
}

func TestRehearsalMembership(t *testing.T) {
	t.Run("forbidden to look", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Mirror: everything, Fault: "forbidden"})
		mustJoin(t, got.Runs[0])
		if !strings.Contains(got.Runs[0].Stdout, "cannot be asked whether the name is taken") {
			t.Error(got.Runs[0].Stdout)
		}
	})
	t.Run("take a name over", func(t *testing.T) {
		t.Parallel()
		mustJoin(t, rehearse(t, rehearsal{Mirror: everything, Fault: "duplicate", Args: []string{"--force-join"}}).Runs[0])
	})
	t.Run("leave another cluster", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{
			Mirror: everything, Args: []string{"--force-join", "--node-name=w2", "--node-ip", "127.0.0.1"},
			Before: "mkdir -p /etc/cni/net.d /var/lib/kubelet/pki; echo x >/etc/cni/net.d/10-calico.conflist; echo old >/var/lib/kubelet/pki/kubelet-client-current.pem; echo '    server: https://10.0.0.1:6443' >/etc/kubernetes/kubelet.conf",
			After:  "ls /etc/cni/net.d; grep server /etc/kubernetes/kubelet.conf | grep -c 10.0.0.1; grep node= /var/lib/kubebyon/node",
		})
		mustJoin(t, got.Runs[0])
		if want := "10-calico.conflist.left-cluster\n0\nnode=w2\n"; got.After != want {
			t.Errorf("after: %q", got.After)
		}
	})
	t.Run("what is missing is repaired", func(t *testing.T) {
		t.Parallel()
		lost := "/usr/local/bin/kubelet /etc/sysctl.d/99-kubebyon.conf /opt/cni/bin/bridge /etc/containerd/config.toml /var/lib/kubelet/config.yaml /etc/kubernetes/pki/ca.crt"
		got := rehearse(t, rehearsal{
			Mirror: everything, Runs: 2,
			Between: "rm " + lost + " /tmp/images; echo 0 >/proc/sys/net/ipv4/ip_forward",
			After:   "ls " + lost + " >/dev/null; cat /tmp/images /proc/sys/net/ipv4/ip_forward",
		})
		mustJoin(t, got.Runs[0])
		mustJoin(t, got.Runs[1])
		if got.After != "registry.k8s.io/pause:3.10.1\n1\n" {
			t.Errorf("after the second run: %s", got.After)
		}
	})
	t.Run("a newer kubelet and another address", func(t *testing.T) {
		t.Parallel()
		for _, systemd := range []bool{false, true} {
			got := rehearse(t, rehearsal{
				Systemd: systemd, Mirror: everything, Runs: 2,
				Between: "sed -i s/v1.37.2/v1.36.0/ /usr/local/bin/kubelet; sed -i 's|server: .*|server: https://192.0.2.1:1|' /etc/kubernetes/kubelet.conf",
				After:   "n=0; while [ $(grep -c 'kubelet --config' /calls) -lt 2 ] && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done; kubelet --version; grep -c 192.0.2.1 /etc/kubernetes/kubelet.conf; ls /etc/kubernetes | grep before; stat -c %a /etc/kubernetes/kubelet.conf",
			})
			mustJoin(t, got.Runs[0])
			mustJoin(t, got.Runs[1])
			if n := strings.Count(got.Calls, "kubelet --config"); n != 2 {
				t.Errorf("systemd %t: kubelet was started %d times, not again with the new binary", systemd, n)
			}
			if got.After != "Kubernetes v1.37.2\n0\n600\n" {
				t.Errorf("after: %s", got.After)
			}
		}
	})
	t.Run("a lost certificate is asked for again", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Mirror: everything, Runs: 2, Between: "rm -r /var/lib/kubelet/pki"})
		mustJoin(t, got.Runs[0])
		mustJoin(t, got.Runs[1])
		if !strings.Contains(got.Runs[1].Stdout, "this machine is that node") {
			t.Error(got.Runs[1].Stdout)
		}
	})
	t.Run("renaming needs leaving", func(t *testing.T) {
		t.Parallel()
		mustFail(t, rehearse(t, rehearsal{Mirror: everything, Runs: 2, Last: []string{"--node-name", "other"}}), "already the node worker of this cluster", "--reset-only")
	})
	t.Run("leave", func(t *testing.T) {
		t.Parallel()
		for _, systemd := range []bool{false, true} {
			got := rehearse(t, rehearsal{
				Systemd: systemd, Mirror: everything, Runs: 2, Last: []string{"--reset-only"},
				Before: "mkdir -p /etc/containerd; cp /stub/default.toml /etc/containerd/config.toml; touch /before",
				After: `cmp /stub/default.toml /etc/containerd/config.toml
find /etc /var/lib /usr /opt -newer /before -type f -not -path "/var/lib/apt/*"
find /var/lib/kubelet /opt/cni/bin -mindepth 1 2>/dev/null
ls /run`,
			})
			mustJoin(t, got.Runs[0])
			if o := got.Runs[1]; o.Code != 0 || o.Stderr != "" || !strings.Contains(o.Stdout, "kubectl delete node worker") {
				t.Errorf("systemd %t: %+v", systemd, o)
			}
			want := "containerd\n"
			if systemd {
				want = "containerd\nsystemd\n"
			}
			if got.After != want {
				t.Errorf("systemd %t: what remains: %s", systemd, got.After)
			}
		}
	})
	t.Run("leave without a token", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Systemd: true, Mirror: everything, After: `leave=/usr/local/sbin/kubebyon-leave
$leave frob 2>&1 || echo $?
cp $leave /tmp/leave
$leave >/dev/null || echo $?
ls /var/lib/kubelet /usr/local/sbin /opt/cni/bin
/tmp/leave || echo $?`})
		mustJoin(t, got.Runs[0])
		want := "usage: kubebyon-leave [membership]\n2\n/opt/cni/bin:\n\n/usr/local/sbin:\n\n/var/lib/kubelet:\nNothing to leave: this machine belongs to no cluster and nothing of KubeBYON is installed\n"
		if got.After != want {
			t.Errorf("after: %q", got.After)
		}
	})
	t.Run("nothing to leave", func(t *testing.T) {
		t.Parallel()
		got := rehearse(t, rehearsal{Mirror: everything, Args: []string{"--reset-only"}})
		if o := got.Runs[0]; o.Code != 0 || !strings.HasPrefix(o.Stdout, "Nothing to leave") {
			t.Errorf("%+v", o)
		}
	})
}
