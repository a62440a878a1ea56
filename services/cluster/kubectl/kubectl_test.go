package kubectl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/kubectl"
)

// TestMain lets the test be the child that it starts, as the service's main does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == kubectl.Arg {
		os.Exit(kubectl.Main(os.Args[2:], os.LookupEnv, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// api is a tenant's API behind a socket, as an administrator, and what was asked of it.
type api struct {
	socket string
	mu     sync.Mutex
	asked  []string
}

func serve(t *testing.T, cfg *rest.Config) *api {
	t.Helper()
	target, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := &api{socket: filepath.Join(t.TempDir(), "s")}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.asked = append(a.asked, r.Method+" "+r.URL.Path)
		a.mu.Unlock()
		if r.URL.Query().Get("watch") != "" { // nothing ever happens
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { _ = server.Close(); served.Wait() })
	return a
}

type result struct {
	stdout, stderr string
	status         int
}

func (a *api) run(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{kubectl.Arg}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, t.TempDir()
	cmd.Env = []string{"HOME=" + cmd.Dir, kubectl.EnvSocket + "=" + a.socket, kubectl.EnvServer + "=https://tenant.example.com:6443"}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
		t.Errorf("%q wrote %v, %v", args, left, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestItAsksARealAPI(t *testing.T) {
	cfg := kubetest.Shared(t)
	ns := kubetest.Namespace(t, cfg)
	client := kubernetes.NewForConfigOrDie(cfg)
	if _, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := serve(t, cfg)
	for _, c := range []struct {
		args   []string
		status int
		says   string // of both outputs together
	}{
		{[]string{"get", "pods", "-n", ns}, 0, "web-1"},
		{[]string{"get", "po", "-A", "-l", "app in (web,api)", "-o", "jsonpath={.items[*].metadata.name}"}, 0, "web-1"},
		{[]string{"get", "pods", "absent", "-n", ns}, 1, `Error from server (NotFound): pods "absent" not found`},
		{[]string{"get", "unicorns"}, 1, `the server doesn't have a resource type "unicorns"`},
		{[]string{"describe", "pod", "web-1", "-n", ns}, 0, "registry.example.com/web:1"},
		{[]string{"logs", "web-1", "-n", ns, "--tail=5"}, 0, ""},
		{[]string{"top", "nodes"}, 1, "Metrics API not available"},
		{[]string{"events", "-n", ns}, 0, "No events found"},
		{[]string{"explain", "pods.spec.containers.image"}, 0, "Container image name"},
		{[]string{"api-resources", "--namespaced=false"}, 0, "namespaces"},
		{[]string{"api-versions"}, 0, "apps/v1"},
		{[]string{"version"}, 0, "Server Version: " + kubetest.Version},
		{[]string{"version"}, 0, "Client Version: v1."},
		{[]string{"version", "--client", "-o", "json"}, 0, `"gitVersion": "v1.`},
		{[]string{"version", "-o", "yaml"}, 0, "gitVersion: " + kubetest.Version},
		{[]string{"version", "-o", "wide"}, 1, "--output must be 'yaml' or 'json'"},
		{[]string{"cluster-info"}, 0, "is running at https://tenant.example.com:6443"},
		{[]string{"auth", "can-i", "get", "pods"}, 0, "yes"},
		{[]string{"auth", "can-i", "--list"}, 0, "selfsubjectreviews"},
		{[]string{"auth", "whoami"}, 0, "system:masters"},
		{[]string{"rollout", "history", "deployment", "absent", "-n", ns}, 1, "not found"},
		// What is not there. The filter refuses it before.
		{[]string{"delete", "pod", "web-1", "-n", ns}, 1, `unknown command "delete"`},
		{[]string{"cluster-info", "dump"}, 0, "is running at"},
		{[]string{"auth", "reconcile"}, 1, "unknown command"},
		{[]string{"rollout", "undo", "deployment/web"}, 1, "unknown command"},
		{[]string{"get", "pods", "--server=https://elsewhere.example.com"}, 1, "unknown flag: --server"},
		{[]string{"get", "pods", "--as_group=x"}, 1, "unknown flag: --as_group"},
		{[]string{"version", "-v=9"}, 1, "unknown shorthand flag"},
	} {
		got := a.run(t, c.args...)
		if got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.says) {
			t.Errorf("%q: exit %d\n%s\n%s", c.args, got.status, got.stdout, got.stderr)
		}
	}
	if slices.ContainsFunc(a.asked, func(line string) bool {
		return !strings.HasPrefix(line, "GET ") && !strings.Contains(line, "/selfsubject")
	}) {
		t.Errorf("it asked %q", a.asked)
	}
}

// A rollout's state is told without waiting for it, and without a word of the watch that leads nowhere.
func TestARolloutIsToldOnce(t *testing.T) {
	cfg := kubetest.Start(t, kubetest.ControllerManager())
	a := serve(t, cfg)
	client := kubernetes.NewForConfigOrDie(cfg)
	made := deployment("web")
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got := a.run(t, "rollout", "status", "deployment/web", "--watch=false")
		if got.status != 0 || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		if strings.Contains(got.stdout, "0 of 1 updated replicas are available") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", got)
		}
	}
	if got := a.run(t, "rollout", "history", "deployment/web"); got.status != 0 || !strings.Contains(got.stdout, "REVISION") {
		t.Errorf("%+v", got)
	}
}

func TestItRunsForItsParentAlone(t *testing.T) {
	var stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	if status := kubectl.Main([]string{"version"}, none, io.Discard, &stderr); status != 2 || !strings.Contains(stderr.String(), "started by KubeBYON alone") {
		t.Errorf("%d, %q", status, &stderr)
	}
	got := (&api{socket: filepath.Join(t.TempDir(), "absent")}).run(t, "get", "pods")
	if got.status != 1 || got.stderr == "" {
		t.Errorf("without the socket: %+v", got)
	}
}

// The tree has what is allowed and nothing beside it.
func TestCommands(t *testing.T) {
	var have []string
	var walk func(path string, c *cobra.Command)
	walk = func(path string, c *cobra.Command) {
		for _, sub := range c.Commands() {
			have = append(have, strings.TrimSpace(path+" "+sub.Name()))
			walk(path+" "+sub.Name(), sub)
		}
	}
	walk("", kubectl.Command())
	slices.Sort(have)
	want := []string{"api-resources", "api-versions", "auth", "auth can-i", "auth whoami", "cluster-info", "describe", "events", "explain",
		"get", "logs", "rollout", "rollout history", "rollout status", "top", "top node", "top pod", "version"}
	if !slices.Equal(have, want) {
		t.Errorf("%q", have)
	}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry.example.com/web:1"}}},
			},
		},
	}
}

// While it runs, the process may write no file, and use no more memory and time than one run needs.
func TestItsLimits(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], kubectl.Arg, "get", "pods")
	cmd.Env = []string{kubectl.EnvSocket + "=" + socket, kubectl.EnvServer + "=https://tenant.example.com"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	conn, err := l.Accept() // it asks, so it has limited itself
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`Max cpu time +15 +15 `, `Max file size +0 +0 `, `Max data size +805306368 +805306368 `, `Max core file size +0 +0 `, `Max open files +128 +128 `,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
