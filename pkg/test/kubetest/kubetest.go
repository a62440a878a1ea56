// Package kubetest gives tests a real kube-apiserver with its etcd, on loopback, from the binaries that deploy/devhost
// caches. No kubelet runs: objects are stored, admitted and watched, and nothing acts on them but the controllers that a
// test asks for. It must never be imported outside of tests, and never skips: no binary is a failed test.
package kubetest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubebyon/kubebyon/pkg/test/internal/leash"
)

// Version of Kubernetes, and of the etcd beside it.
const (
	Version     = "v1.37.2"
	etcdVersion = "v3.7.3"
)

const (
	startTimeout = 2 * time.Minute // of a machine that is busy with other things
	attempts     = 3
)

// Option changes a control plane.
type Option func(*options)

type options struct {
	controllers bool
	flags       []string
}

// ControllerManager runs kube-controller-manager too: namespaces are then really deleted, service accounts made.
func ControllerManager() Option { return func(o *options) { o.controllers = true } }

// Flags adds to kube-apiserver's.
func Flags(flags ...string) Option { return func(o *options) { o.flags = append(o.flags, flags...) } }

// Start gives an administrator's access to a control plane that is the test's own and ends with it. It takes seconds: use
// Shared wherever a namespace of its own is enough for a test.
func Start(tb testing.TB, opts ...Option) *rest.Config {
	tb.Helper()
	p, err := start(opts)
	if err != nil {
		tb.Fatalf("kubetest: %v", err)
	}
	tb.Cleanup(p.remove)
	return p.config()
}

var shared = sync.OnceValues(func() (*plane, error) { return start(nil) })

// Shared gives an administrator's access to one control plane that all tests of the binary share, without a controller
// manager.
func Shared(tb testing.TB) *rest.Config {
	tb.Helper()
	p, err := shared()
	if err != nil {
		tb.Fatalf("kubetest: %v", err)
	}
	return p.config()
}

// Namespace makes a namespace with a name that nobody else has, and asks for its deletion when the test ends.
func Namespace(tb testing.TB, cfg *rest.Config) string {
	tb.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		tb.Fatalf("kubetest: %v", err)
	}
	name := "t-" + strings.ToLower(rand.Text()[:16])
	if _, err := client.CoreV1().Namespaces().Create(tb.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		tb.Fatalf("kubetest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	})
	return name
}

// Kubeconfig writes cfg as a kubeconfig and gives its path.
func Kubeconfig(tb testing.TB, cfg *rest.Config) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig(cfg), path); err != nil {
		tb.Fatalf("kubetest: %v", err)
	}
	return path
}

func kubeconfig(cfg *rest.Config) *clientcmdapi.Config {
	c := clientcmdapi.NewConfig()
	c.Clusters["kubetest"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts["admin@kubetest"] = &clientcmdapi.Context{Cluster: "kubetest", AuthInfo: "admin"}
	c.CurrentContext = "admin@kubetest"
	return c
}

// plane is one running control plane.
type plane struct {
	dir   string
	url   string
	keys  *keys
	leash *leash.Leash
}

// config gives each caller a copy of its own.
func (p *plane) config() *rest.Config {
	return &rest.Config{
		Host: p.url, QPS: 500, Burst: 1000, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAData: p.keys.caPEM, CertData: p.keys.adminPEM, KeyData: p.keys.adminKeyPEM},
	}
}

func (p *plane) remove() {
	p.leash.Close()
	_ = os.RemoveAll(p.dir)
}

// start tries again where a port that the kernel gave us was taken before the program bound it.
func start(opts []Option) (*plane, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	bin, err := find("kube-apiserver", "kube-controller-manager", "etcd")
	if err != nil {
		return nil, err
	}
	var last error
	for range attempts {
		var p *plane
		if p, last = once(bin, o); last == nil {
			return p, nil
		}
		if !strings.Contains(last.Error(), "address already in use") {
			break
		}
	}
	return nil, last
}

func once(bin map[string]string, o options) (*plane, error) {
	dir, err := os.MkdirTemp("", "kubebyon-kube-")
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir}
	if err := p.run(bin, o); err != nil {
		if p.leash != nil {
			p.leash.Close()
		}
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

func (p *plane) run(bin map[string]string, o options) (err error) {
	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	p.url = "https://" + net.JoinHostPort("127.0.0.1", ports[2])
	if p.keys, err = makeKeys(p.dir); err != nil {
		return err
	}
	if err := clientcmd.WriteToFile(*kubeconfig(p.config()), p.file("admin.kubeconfig")); err != nil {
		return err
	}
	store, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	api := []string{
		bin["kube-apiserver"], "--etcd-servers=" + store, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + ports[2],
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--allow-privileged=true", "--profiling=false",
		"--client-ca-file=" + p.file("ca.crt"), "--tls-cert-file=" + p.file("server.crt"), "--tls-private-key-file=" + p.file("server.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + p.file("sa.pub"),
		"--service-account-signing-key-file=" + p.file("sa.key"), "--cert-dir=" + p.dir,
	}
	if !o.controllers { // nobody would make the service accounts that it waits for
		api = append(api, "--disable-admission-plugins=ServiceAccount")
	}
	commands := []leash.Command{
		{Name: "etcd", Args: []string{bin["etcd"], "--name=test", "--data-dir=" + p.file("etcd"), "--unsafe-no-fsync", "--log-level=error",
			"--listen-client-urls=" + store, "--advertise-client-urls=" + store, "--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer}},
		{Name: "kube-apiserver", Args: append(api, o.flags...)},
	}
	if o.controllers {
		kc := p.file("admin.kubeconfig")
		commands = append(commands, leash.Command{Name: "kube-controller-manager", Args: []string{
			bin["kube-controller-manager"], "--kubeconfig=" + kc, "--bind-address=127.0.0.1", "--secure-port=" + ports[3], "--cert-dir=" + p.dir,
			"--authentication-kubeconfig=" + kc, "--authorization-kubeconfig=" + kc, "--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400", "--root-ca-file=" + p.file("ca.crt"), "--service-account-private-key-file=" + p.file("sa.key"),
			"--cluster-signing-cert-file=" + p.file("ca.crt"), "--cluster-signing-key-file=" + p.file("ca.key"),
			"--controllers=*,bootstrap-signer-controller,token-cleaner-controller"}})
	}
	if p.leash, err = leash.Start(p.dir, nil, "KILL", commands...); err != nil {
		return err
	}
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.Name
	}
	return p.wait(names)
}

func (p *plane) file(name string) string { return filepath.Join(p.dir, name) }

// wait returns when the API is ready and has made the namespaces that every cluster has.
func (p *plane) wait(processes []string) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.keys.caPEM)
	admin, err := tls.X509KeyPair(p.keys.adminPEM, p.keys.adminKeyPEM)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{admin}}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	paths := []string{"/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"}
	var last error
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if text := p.leash.Dead(processes...); text != "" {
			return fmt.Errorf("it ended while starting: %s", text)
		}
		if last = get(client, p.url+paths[0]); last != nil {
			continue
		}
		if paths = paths[1:]; len(paths) == 0 {
			return nil
		}
	}
	return fmt.Errorf("kube-apiserver is not ready after %v: %w\n%s", startTimeout, last, p.leash.Log("kube-apiserver"))
}

func get(client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.300s", url, res.Status, body)
	}
	return nil
}

// freePorts asks the kernel for ports that nobody has now.
func freePorts(n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all at the end, so that no port comes twice
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// find looks for programs where deploy/devhost caches them.
func find(names ...string) (map[string]string, error) {
	cache := os.Getenv("KUBEBYON_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(home, ".cache", "kubebyon")
	}
	found := map[string]string{}
	for _, name := range names {
		path := filepath.Join(cache, "kubernetes", Version, name)
		if name == "etcd" {
			path = filepath.Join(cache, "etcd", etcdVersion, name)
		}
		if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("%s is missing; run: go run ./deploy/devhost build", path)
		}
		found[name] = path
	}
	return found, nil
}
