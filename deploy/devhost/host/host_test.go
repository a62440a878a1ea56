package host

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

func testHost(t *testing.T) *Host {
	t.Helper()
	n, err := layout.ParseNet("198.18.250.0/24")
	if err != nil {
		t.Fatal(err)
	}
	return &Host{Layout: layout.Layout{State: t.TempDir(), Net: n}, Say: t.Logf}
}

func TestPKI(t *testing.T) {
	h := testHost(t)
	if err := h.writePKI(); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(h.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("ca.crt holds no certificate")
	}
	server, err := tls.LoadX509KeyPair(h.pki("apiserver.crt"), h.pki("apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"198.18.250.2", serviceIP, "127.0.0.1", "localhost", "kubernetes.default.svc"} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "example.com"}); err == nil {
		t.Error("the server's certificate is good for any name")
	}
	config, err := clientcmd.BuildConfigFromFlags("", h.pki("kubelet.kubeconfig"))
	if err != nil || config.Host != "https://198.18.250.2:6443" {
		t.Fatalf("%+v, error %v", config, err)
	}
	client, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	if s := client.Leaf.Subject; s.CommonName != "system:node:host" || len(s.Organization) != 1 || s.Organization[0] != "system:nodes" {
		t.Errorf("kubelet is %s", s)
	}
	if _, err := client.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if i, err := os.Stat(h.pki("ca.key")); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: %v, error %v", i, err)
	}
}

func TestState(t *testing.T) {
	h := testHost(t)
	if err := h.load(); err != nil || len(h.state.Processes) != 0 {
		t.Fatalf("no state yet: %+v, error %v", h.state, err)
	}
	self, err := process.Identify("self", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := process.Record{Name: "dead", PID: self.PID, Start: self.Start + 1, Boot: self.Boot}
	h.state = runState{Processes: []process.Record{self, dead}, Cgroups: []string{"/x"}}
	if err := h.save(); err != nil {
		t.Fatal(err)
	}
	again := &Host{Layout: h.Layout}
	if err := again.load(); err != nil || len(again.state.Processes) != 2 || again.state.Processes[0] != self {
		t.Fatalf("%+v, error %v", again.state, err)
	}
	if !again.running() || again.whole() {
		t.Errorf("running %t, whole %t: one of two is alive", again.running(), again.whole())
	}
	if err := os.WriteFile(h.statePath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again.load(); err == nil || !strings.Contains(err.Error(), h.statePath()) {
		t.Errorf("damaged state: %v", err)
	}
}

func TestLock(t *testing.T) {
	h := testHost(t)
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.lock(); err == nil {
		t.Error("two at once")
	}
	unlock()
	unlock, err = h.lock()
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestExternalThatDoesNotAnswer(t *testing.T) {
	h := testHost(t)
	h.Kubeconfig = filepath.Join(t.TempDir(), "absent")
	if err := h.Up(t.Context()); err == nil || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(h.Layout.Kubeconfig()); err == nil {
		t.Error("a kubeconfig was written")
	}
}
