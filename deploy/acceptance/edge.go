package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
	"github.com/kubebyon/kubebyon/deploy/runbook"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
)

// domain is where the first cluster is published. The world's DNS knows nothing of it; hosts files do.
const domain = "api.demo.example.com"

// runbookDomain is the domain of the cluster that the runbook makes.
const runbookDomain = "api.runbook.example.com"

// hosts is a hosts file that leads the domain to HAProxy.
func (s *stack) hosts() string {
	return fmt.Sprintf("127.0.0.1 localhost\n%s %s %s\n", s.layout.Net.Gateway(), domain, runbookDomain)
}

// resolving is a command on this machine for which, and for which alone, the domain leads to HAProxy.
func (s *stack) resolving(ctx context.Context, args ...string) *exec.Cmd {
	const script = `mount --bind "$0" /etc/hosts && exec "$@"`
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--", "/bin/sh", "-c", script, s.file("hosts")}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// publish moves the cluster from its node port to the domain, and waits until a handshake with it was proved.
func (s *stack) publish(ctx context.Context, c *client, id string) (clusterv1.Cluster, error) {
	if err := os.WriteFile(s.file("hosts"), []byte(s.hosts()), 0o600); err != nil {
		return clusterv1.Cluster{}, err
	}
	host, mode := domain, clusterv1.LoadBalancer
	if err := c.updateCluster(ctx, id, map[string]any{"control_plane_host": host, "public_access_mode": mode}); err != nil {
		return clusterv1.Cluster{}, err
	}
	cluster, err := c.waitReady(ctx, id)
	if err != nil {
		return cluster, err
	}
	if want := "https://" + domain + ":443"; cluster.APIEndpoint != want {
		return cluster, fmt.Errorf("api_endpoint is %q, want %q", cluster.APIEndpoint, want)
	}
	return c.waitServing(ctx, id)
}

// waitServing polls a cluster until the edge has proved its domain.
func (c *client) waitServing(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var last clusterv1.Cluster
	err := apiclient.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		var err error
		last, err = c.cluster(ctx, id)
		return err == nil && last.Edge != nil && last.Edge.State == clusterv1.EdgeServing, err
	})
	if err != nil && last.Edge != nil {
		err = fmt.Errorf("%w; the edge is %s: %+v", err, last.Edge.State, last.Edge.Reason)
	}
	return last, err
}

func (c *client) edge(ctx context.Context) (edgev1.StatusResponse, error) {
	var status edgev1.StatusResponse
	err := c.Call(ctx, http.MethodGet, "/api/admin/edge", nil, &status)
	return status, err
}

// throughHAProxy uses the downloaded kubeconfig with kubectl, and curl as the runbook has it.
func (s *stack) throughHAProxy(ctx context.Context, c *client, id string) error {
	kubeconfig, err := c.kubeconfig(ctx, id)
	if err != nil {
		return err
	}
	if !strings.Contains(string(kubeconfig), "server: https://"+domain+":443") {
		return errors.New("the kubeconfig does not name the domain")
	}
	if err := os.WriteFile(s.file("edge.kubeconfig"), kubeconfig, 0o600); err != nil {
		return err
	}
	if out, err := s.kubectlOf(ctx, "get", "ns").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("kube-system")) {
		return fmt.Errorf("kubectl get ns: %w\n%s", err, out)
	}
	out, err := s.resolving(ctx, "curl", "-sk", "https://"+domain+"/version").CombinedOutput()
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if err != nil || json.Unmarshal(out, &version) != nil || !strings.HasPrefix(version.GitVersion, "v1.") {
		return fmt.Errorf("curl -sk https://%s/version: %w\n%s", domain, err, out)
	}
	config, err := os.ReadFile(filepath.Join(s.file("haproxy"), "haproxy.cfg"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(config), "req.ssl_sni -i "+domain) {
		return fmt.Errorf("haproxy.cfg has no rule for %s:\n%s", domain, config)
	}
	status, err := c.edge(ctx)
	if err != nil {
		return err
	}
	if status.Count.Serving != 1 || len(status.Workers) == 0 || len(status.Routes) != 1 || !status.Routes[0].Servers[0].Up || status.Routes[0].BytesOut == 0 {
		return fmt.Errorf("GET /api/admin/edge: %+v", status)
	}
	return nil
}

// runRunbook runs the operator's runbook as it stands, with this machine's values, but for what k3s alone has.
func (s *stack) runRunbook(ctx context.Context) error {
	blocks, err := runbook.Blocks(filepath.Join(s.root, "docs", "runbooks", "haproxy-public-access.md"))
	if err != nil {
		return err
	}
	blocks = slices.DeleteFunc(blocks, func(b runbook.Block) bool { return b.Kind == "k3s" })
	script, err := runbook.Script(blocks, map[string]string{
		"api": s.baseURL, "admin": adminEmail, "password": s.file("admin-password"), "name": "runbook", "domain": runbookDomain,
		"config": filepath.Join(s.file("haproxy"), "haproxy.cfg"),
	})
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp(s.layout.State, "runbook-")
	if err != nil {
		return err
	}
	shell := s.resolving(ctx, "/bin/sh", "-s")
	shell.Dir, shell.Stdin = folder, strings.NewReader(script)
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(s.kubectl())+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	said := runbook.Said(string(out))
	for command, wants := range map[string][]string{
		"ss -Hltnp":       {":443", "haproxy"},
		"api_endpoint":    {`"api_endpoint":"https://` + runbookDomain + `:443"`, `"state":"serving"`},
		"backend be_$id":  {"req.ssl_sni -i " + runbookDomain, "server n1 "},
		"get ns":          {"kube-system", `"gitVersion"`},
		"/api/admin/edge": {`"domain":"` + runbookDomain + `","state":"serving"`},
		"-X DELETE":       {"the route is gone"},
	} {
		at := slices.IndexFunc(blocks, func(b runbook.Block) bool { return strings.Contains(b.Text, command) })
		for _, want := range wants {
			if err == nil && (at < 0 || !strings.Contains(said[at], want)) {
				err = fmt.Errorf("%s does not say %s", command, want)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func (s *stack) kubectlOf(ctx context.Context, args ...string) *exec.Cmd {
	return s.resolving(ctx, append([]string{s.kubectl(), "--kubeconfig", s.file("edge.kubeconfig")}, args...)...)
}

// joinByDomain boots one more machine, which knows the API by the domain alone, and joins it.
func (s *stack) joinByDomain(ctx context.Context, c *client, id string) error {
	worker, err := machine.Up(ctx, machine.Options{
		Name: "worker-edge", Suite: machine.Bookworm, Init: machine.Systemd,
		Octet: s.layout.Net.Octet(), Cache: s.layout.Cache, State: s.layout.State, Log: s.out,
	})
	if err != nil {
		return err
	}
	s.workers = append(s.workers, worker)
	if err := worker.Exec(ctx, strings.NewReader(s.hosts()), io.Discard, s.out, "/bin/sh", "-c", "cat >>/etc/hosts"); err != nil {
		return err
	}
	token, err := c.joinToken(ctx, id, time.Hour)
	if err != nil {
		return err
	}
	if err := s.join(ctx, c, id, token.JoinCommand, worker, false); err != nil {
		return err
	}
	out, err := worker.Run(ctx, "cat", "/etc/kubernetes/kubelet.conf")
	if err != nil || !strings.Contains(out, "https://"+domain+":443") {
		return fmt.Errorf("the kubelet does not use the domain: %w", err)
	}
	return nil
}

// follower is a kubectl logs -f of a Pod that counts, through HAProxy.
type follower struct {
	cmd   *exec.Cmd
	lines chan int
}

const talker = "talker"

// follow starts the Pod and kubectl, and returns once the first line came.
func (s *stack) follow(ctx context.Context, t *tenant, node string) (*follower, error) {
	grace := int64(0)
	_, err := t.api.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: talker},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: talker, Image: smokeImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/bin/sh", "-c", "i=0; while true; do i=$((i+1)); echo $i; sleep 1; done"},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if out, err := s.kubectlOf(ctx, "wait", "--for=condition=Ready", "pod/"+talker, "--timeout=60s").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("kubectl wait: %w\n%s", err, out)
	}
	f := &follower{cmd: s.kubectlOf(context.WithoutCancel(ctx), "logs", "-f", talker), lines: make(chan int, 10_000)}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.cmd.Stderr = s.out
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(f.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			if n, err := strconv.Atoi(scanner.Text()); err == nil {
				f.lines <- n
			}
		}
	}()
	if _, err := f.next(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *follower) next(ctx context.Context) (int, error) {
	select {
	case n, more := <-f.lines:
		if !more {
			return 0, errors.New("kubectl logs -f has ended")
		}
		return n, nil
	case <-ctx.Done():
		return 0, errors.New("kubectl logs -f says nothing any more")
	}
}

// still takes all that came so far, and one line more: the same connection lives, and nothing of it was lost.
func (f *follower) still(ctx context.Context) error {
	last := 0
	for waiting := len(f.lines) + 1; waiting > 0; waiting-- {
		n, err := f.next(ctx)
		if err != nil {
			return err
		}
		if last != 0 && n != last+1 {
			return fmt.Errorf("kubectl logs -f went from %d to %d", last, n)
		}
		last = n
	}
	return nil
}

func (f *follower) stop() {
	_ = f.cmd.Process.Signal(syscall.SIGTERM)
	_ = f.cmd.Wait()
}

// endHAProxy ends what a kubebyon-api that was killed has left behind: every process that was started on our state folder.
func (s *stack) endHAProxy() {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return
	}
	for _, path := range commands {
		text, err := os.ReadFile(path)
		pid, numberErr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && numberErr == nil && bytes.Contains(text, []byte("haproxy")) && bytes.Contains(text, []byte(s.file("haproxy")+"/")) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
