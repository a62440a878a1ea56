package joinscript

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

var update = flag.Bool("update", false, "write the goldens anew")

const testToken = "abcdef.0123456789abcdef"

// shells are the ones the script must run under: Debian's sh, bash in both modes, Alpine's and the Korn family's.
var shells = [][]string{{"dash"}, {"bash"}, {"bash", "--posix"}, {"busybox", "sh"}, {"mksh"}}

func TestMain(m *testing.M) {
	if spec := os.Getenv(rehearsalVariable); spec != "" {
		os.Exit(rehearsalMain(spec))
	}
	flag.Parse()
	for _, tool := range []string{"shellcheck", "dash", "bash", "busybox", "mksh", "curl", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintf(os.Stderr, "%s is missing: apt-get install shellcheck busybox-static mksh dash bash curl iproute2\n", tool)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func testParams(t *testing.T) Params {
	t.Helper()
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	return Params{
		APIServer: "https://198.18.0.2:31443", CAPEM: string(ca), Token: testToken, ClusterName: "Shop front", ClusterID: "cl_0a1b2c",
		KubernetesVersion: "v1.37.2", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local", MirrorURL: "http://198.18.0.1:8080/node/mirror/",
		MirrorFiles: []MirrorFile{
			{Name: "kubelet-v1.37.2-linux-amd64", SHA256: strings.Repeat("0a", 32), Size: 91975842},
			{Name: "images/pause-linux-amd64.tar", SHA256: strings.Repeat("1b", 32), Size: 717312},
		},
	}
}

func render(t *testing.T, p Params) string {
	t.Helper()
	b, err := Render(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-golden +got):\n%s", path, diff)
	}
}

// assignments is what Render adds to the static file.
func assignments(t *testing.T, script string) string {
	t.Helper()
	head, tail, ok := strings.Cut(source, paramsBegin)
	if !ok || !strings.HasPrefix(script, head) {
		t.Fatal("the script does not begin as join.sh does")
	}
	_, tail, _ = strings.Cut(tail, paramsEnd)
	if !strings.HasSuffix(script, tail) {
		t.Fatal("the script does not end as join.sh does")
	}
	return script[len(head) : len(script)-len(tail)]
}

func TestRenderGolden(t *testing.T) {
	golden(t, "assignments.golden", assignments(t, render(t, testParams(t))))
	p := testParams(t)
	p.APIServer, p.ClusterDNS, p.MirrorURL, p.MirrorFiles, p.ClusterName = "https://[FD00:0::1]:6443", "fd00:1::a", "", nil, ""
	golden(t, "assignments-ipv6.golden", assignments(t, render(t, p)))
}

func TestParamsHideTheToken(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, testParams(t)); strings.Contains(s, "0123456789abcdef") {
			t.Errorf("%s shows the token: %s", format, s)
		}
	}
}

// attacks are tried as the value of every parameter that is not free text: each must be refused.
var attacks = []string{
	"'", "';id;'", "$(id)", "`id`", "a\nid", "a\rid", "\x00", "a b", "a;b", "a|b", "a&b", "a>b", "../x", "-k", "\\", "\"", "é", "\u202e", "%0a", "#", "*",
	"'\"'\"'", "a'\n\tid\n'",
}

func TestRenderRefusesWhatIsNotPlain(t *testing.T) {
	base := testParams(t)
	fields := map[string]func(*Params, string){
		"APIServer":         func(p *Params, v string) { p.APIServer = v },
		"CAPEM":             func(p *Params, v string) { p.CAPEM = v },
		"Token":             func(p *Params, v string) { p.Token = v },
		"ClusterID":         func(p *Params, v string) { p.ClusterID = v },
		"KubernetesVersion": func(p *Params, v string) { p.KubernetesVersion = v },
		"ClusterDNS":        func(p *Params, v string) { p.ClusterDNS = v },
		"ClusterDomain":     func(p *Params, v string) { p.ClusterDomain = v },
		"MirrorURL":         func(p *Params, v string) { p.MirrorURL = v },
		"MirrorFiles":       func(p *Params, v string) { p.MirrorFiles = []MirrorFile{{Name: v, SHA256: strings.Repeat("0", 64)}} },
	}
	good := map[string]string{
		"APIServer": base.APIServer, "CAPEM": base.CAPEM, "Token": base.Token, "ClusterID": base.ClusterID, "KubernetesVersion": base.KubernetesVersion,
		"ClusterDNS": base.ClusterDNS, "ClusterDomain": base.ClusterDomain, "MirrorURL": base.MirrorURL, "MirrorFiles": "images/x.tar",
	}
	more := map[string][]string{
		"APIServer": {
			"", "http://198.18.0.2:1", "https://", "https://:1", "https://h:0", "https://h:65536", "https://h:1/x", "https://u:p@h:1", "https://h:1?x", "https://h:1#x",
			"https://h_x:1", "https://[fe80::1%25eth0]:1", "ftp://h:1", "h:1", "https://-h:1",
		},
		"Token":             {"", "abcdef", "abcdef.", "ABCDEF.0123456789abcdef", testToken + "0", testToken + "\n"},
		"ClusterID":         {"", strings.Repeat("a", 65)},
		"KubernetesVersion": {"", "1.37.2", "v1.37", "v1.37.2/../../x", "v1.37.2\n"},
		"ClusterDNS":        {"", "10.96.0", "fe80::1%eth0", "10.96.0.10/24"},
		"ClusterDomain":     {"", "-a", "a..b", "A", strings.Repeat("a.", 140) + "a"},
		"MirrorURL":         {"", "http://h/a b", "http://h/../x", "http://h/%2e", "file:///etc"},
		"CAPEM":             {"", strings.Replace(base.CAPEM, "CERTIFICATE", "PRIVATE KEY", 2), base.CAPEM + "x", "x" + base.CAPEM[30:]},
		"MirrorFiles":       {"", "/etc/x", "images/../x", "images/images/x", "..", ".x", "other/x", "images/"},
	}
	for field, set := range fields {
		t.Run(field, func(t *testing.T) {
			values := append([]string{}, more[field]...)
			for _, a := range attacks {
				values = append(values, a, a+good[field])
				if field != "CAPEM" { // a PEM may end in what is white space
					values = append(values, good[field]+a)
				}
			}
			for _, v := range values {
				p := base
				set(&p, v)
				_, err := Render(p)
				var f *fault.Error
				if !errors.As(err, &f) || f.Kind != fault.Invalid || f.Code != "join_script_parameter" || f.Field != field {
					// A few attacks are plain text after a good value; they must then leave one plain word.
					if err == nil && harmless(field, v) {
						continue
					}
					t.Errorf("%q gave %v", v, err)
				}
				if err != nil && strings.Contains(err.Error(), "0123456789abcdef") {
					t.Errorf("%q: the error shows the token", v)
				}
			}
		})
	}
	for _, f := range [][]MirrorFile{
		{{Name: "a", SHA256: strings.Repeat("A", 64)}}, {{Name: "a", SHA256: "0"}}, {{Name: "a", SHA256: strings.Repeat("0", 64), Size: -1}},
		{{Name: "a", SHA256: strings.Repeat("0", 64)}, {Name: "a", SHA256: strings.Repeat("1", 64)}},
	} {
		p := base
		p.MirrorFiles = f
		if _, err := Render(p); err == nil {
			t.Errorf("%v was accepted", f)
		}
	}
}

// harmless are the attack texts that some field accepts by its own rules: "-k" can end an id, a version or a path.
func harmless(field, v string) bool {
	switch field {
	case "ClusterID", "ClusterDomain", "KubernetesVersion", "MirrorFiles", "MirrorURL":
		return strings.HasSuffix(v, "-k") || strings.HasPrefix(v, "-k") && field == "ClusterID"
	}
	return false
}

// TestNamesAreText: a cluster's name is free text; a shell must give it back as it is.
func TestNamesAreText(t *testing.T) {
	names := append([]string{"店面 一号", "Bob's \"shop\" $HOME `id` \\n %s", "a\x1b[31mred", "x\u202egnp.exe", strings.Repeat("长", 1000)}, attacks...)
	for _, name := range names {
		p := testParams(t)
		p.ClusterName = name
		want := display(name)
		if want == "" {
			want = p.ClusterID
		}
		block := assignments(t, render(t, p))
		for _, sh := range shells {
			got := runShell(t, sh, "set -u\n"+block+"printf '%s' \"$cluster_name\"\n")
			if got.stdout != want || got.code != 0 {
				t.Errorf("%v: the name %q came out as %q (%s)", sh, name, got.stdout, got.stderr)
			}
		}
	}
}

func FuzzQuote(f *testing.F) {
	for _, a := range attacks {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q := quote(display(s))
		// Inside its outer quotes a word holds '\'' and no other quote.
		if left := strings.ReplaceAll(q[1:len(q)-1], `'\''`, ""); strings.Contains(left, "'") || strings.ContainsAny(q, "\n\r\x00\x1b") {
			t.Fatalf("%q became %q", s, q)
		}
	})
}

type outcome struct {
	stdout, stderr string
	code           int
}

// runShell gives a script to a shell on standard input, as curl does, with an environment of its own.
func runShell(t *testing.T, shell []string, script string, env ...string) outcome {
	t.Helper()
	cmd := exec.Command(shell[0], append(shell[1:], "-s", "--")...)
	cmd.Stdin = strings.NewReader(script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}, env...)
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestSyntaxAndLint(t *testing.T) {
	rendered := render(t, testParams(t))
	// The programs that it leaves on the machine, between their here-document's words.
	inner := func(word string) string {
		_, rest, _ := strings.Cut(source, "<<'"+word+"'\n")
		text, _, ok := strings.Cut(rest, "\n"+word+"\n")
		if !ok {
			t.Fatalf("no here-document %s", word)
		}
		return text + "\n"
	}
	for _, script := range []string{source, rendered, inner("LEAVE"), inner("SUPERVISOR")} {
		path := filepath.Join(t.TempDir(), "join.sh")
		if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, sh := range shells {
			if out, err := exec.Command(sh[0], append(append([]string{}, sh[1:]...), "-n", path)...).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v -n: %v: %s", sh, err, out)
			}
		}
		if out, err := exec.Command("shellcheck", "--shell=sh", "--severity=style", path).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %v\n%s", err, out)
		}
	}
}

// TestNeverUnpinned: certificate checks are skipped nowhere, and every call of curl ignores the user's ~/.curlrc, which may.
func TestNeverUnpinned(t *testing.T) {
	for n, line := range strings.Split(source, "\n") {
		code := strings.TrimSpace(line)
		if strings.HasPrefix(code, "#") {
			continue
		}
		if strings.Contains(code, "--insecure") || strings.Contains(code, "skip-tls") || strings.Contains(code, "--no-check-certificate") || strings.Contains(code, "nogpgcheck") || strings.Contains(code, "gpgcheck=0") || strings.Contains(code, "allow-unauthenticated") || strings.Contains(code, "trusted=yes") {
			t.Errorf("line %d: %s", n+1, code)
		}
		for _, called := range []string{"curl -", "curl --"} {
			if i := strings.Index(code, called); i >= 0 && !strings.Contains(code[i:], "curl -q ") && !strings.Contains(code, "die ") {
				t.Errorf("line %d: curl without -q: %s", n+1, code)
			}
		}
	}
}

// TestCutDownload: whatever part of the script arrives, less than all of it does nothing. It runs as root of a
// throw-away machine, because a mistake here would do something.
func TestCutDownload(t *testing.T) {
	for _, sh := range shells {
		t.Run(strings.Join(sh, " "), func(t *testing.T) {
			t.Parallel()
			step := 8
			if sh[0] == "dash" || sh[0] == "busybox" { // quick to start: every line
				step = 1
			}
			got := rehearse(t, rehearsal{Shell: sh, Mirror: everything, CutStep: step})
			mustFail(t, got, "NOT joined")
		})
	}
}

// cuts are the lengths of the prefixes to try: every step-th line end, a sample of bytes, and every byte of the call.
func cuts(script string, step int) []int {
	var all []int
	lines := 0
	for i, c := range script {
		if c == '\n' {
			if lines++; lines%step == 0 {
				all = append(all, i+1)
			}
		}
	}
	for i := 0; i < len(script)-2; i += 499 * step {
		all = append(all, i)
	}
	for i := strings.LastIndex(script, "\n{ kubebyon_join"); i < len(script)-2; i++ {
		all = append(all, i)
	}
	// Without its last line break the script is whole.
	return slices.DeleteFunc(all, func(n int) bool { return n >= len(script)-1 })
}

// authority makes certificates for the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(name string) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(der)
	return authority{cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}, err
}

// issue gives a certificate and its key, both PEM.
func (a authority) issue(tmpl x509.Certificate) (certPEM, keyPEM string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	if tmpl.NotAfter.IsZero() {
		tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return "", "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})), err
}
