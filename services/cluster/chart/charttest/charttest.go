// Package charttest renders the upstream chart and runs what it would run, as plain processes of the real binaries with
// the rendered command lines and files. It is for tests and must never be imported by anything else.
package charttest

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

// Release is the name of every rendered release, and Namespace its place.
const (
	Release   = "acme"
	Namespace = "vc-acme"
)

// Render gives the chart's objects by "Kind/name", as an installation into an empty namespace would make them.
func Render(tb testing.TB, values map[string]any) map[string]*unstructured.Unstructured {
	tb.Helper()
	objects, err := TryRender(values, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return objects
}

// TryRender renders over a host cluster at cfg, which lookup reads; nil is none. Bad values are an error.
func TryRender(values map[string]any, cfg *rest.Config) (map[string]*unstructured.Unstructured, error) {
	loaded, err := chart.Load()
	if err != nil {
		return nil, err
	}
	return RenderChart(loaded, values, cfg)
}

// RenderChart is TryRender of another chart.
func RenderChart(loaded *helmchart.Chart, values map[string]any, cfg *rest.Config) (map[string]*unstructured.Unstructured, error) {
	release := chartutil.ReleaseOptions{Name: Release, Namespace: Namespace, Revision: 1, IsInstall: true}
	full, err := chartutil.ToRenderValues(loaded, values, release, nil)
	if err != nil {
		return nil, err
	}
	render := engine.Render
	if cfg != nil {
		render = engine.New(cfg).Render
	}
	files, err := render(loaded, full)
	if err != nil {
		return nil, err
	}
	objects := map[string]*unstructured.Unstructured{}
	for name, text := range files {
		for _, doc := range strings.Split("\n"+text, "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(doc), &object.Object); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if len(object.Object) > 0 {
				objects[object.GetKind()+"/"+object.GetName()] = object
			}
		}
	}
	return objects, nil
}

// ControlPlane is a running tenant without a host.
type ControlPlane struct {
	Server string         // https://127.0.0.1:port
	PKI    *corev1.Secret // as the release's Secret <name>-pki
	Access *corev1.Secret // as vc-<name>; its config says https://localhost:8443, like the real one

	tb        testing.TB
	binaries  string
	commands  map[string][]string
	dir       string
	processes map[string]*exec.Cmd
}

// Start runs the rendered containers until the test ends. It does not wait for their readiness.
func Start(tb testing.TB, values map[string]any) *ControlPlane {
	tb.Helper()
	objects := Render(tb, values)
	c := &ControlPlane{tb: tb, binaries: binaries(tb), dir: tb.TempDir(), commands: map[string][]string{}, processes: map[string]*exec.Cmd{}}
	c.PKI, c.Access = Secret(tb, objects["Secret/"+chart.PKISecretName(Release)]), Secret(tb, objects["Secret/"+chart.KubeconfigSecretName(Release)])

	ports := freePorts(tb, 5)
	c.Server = fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	rewrite := strings.NewReplacer(
		"127.0.0.1:8443", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--secure-port=8443", fmt.Sprintf("--secure-port=%d", ports[0]),
		":2379", fmt.Sprintf(":%d", ports[1]), ":2380", fmt.Sprintf(":%d", ports[2]), "/data/", c.dir+"/data/")

	var set appsv1.StatefulSet
	convert(tb, objects["StatefulSet/"+Release], &set)
	for _, volume := range set.Spec.Template.Spec.Volumes {
		for _, item := range volume.Secret.Items {
			write(tb, filepath.Join(c.dir, volume.Name, item.Path), rewrite.Replace(string(c.PKI.Data[item.Key])))
		}
	}
	for i, container := range set.Spec.Template.Spec.Containers {
		command := append([]string{filepath.Join(c.binaries, container.Command[0])}, container.Command[1:]...)
		for j := range command[1:] {
			command[j+1] = rewrite.Replace(command[j+1])
			for _, mount := range container.VolumeMounts {
				if mount.Name != "data" {
					command[j+1] = strings.ReplaceAll(command[j+1], mount.MountPath+"/", filepath.Join(c.dir, mount.Name)+"/")
				}
			}
		}
		switch container.Name {
		case "kube-apiserver":
			command = append(command, "--bind-address=127.0.0.1")
		case "kube-controller-manager", "kube-scheduler":
			command = append(command, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[i+1]))
		}
		c.commands[container.Name] = command
		c.start(container.Name, container.Env)
	}
	tb.Cleanup(c.stop)
	return c
}

// stop ends them in the order in which none waits for one that has gone.
func (c *ControlPlane) stop() {
	for _, name := range []string{"kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"} {
		c.end(name)
	}
}

// Kill ends one component at once, as a lost container would.
func (c *ControlPlane) Kill(name string) {
	_ = c.processes[name].Process.Kill()
	_ = c.processes[name].Wait()
}

func (c *ControlPlane) end(name string) {
	process := c.processes[name]
	if process == nil || process.ProcessState != nil {
		return
	}
	_ = process.Process.Signal(syscall.SIGTERM)
	gone := make(chan struct{})
	go func() { _ = process.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		_ = process.Process.Kill()
		<-gone
	}
	if c.tb.Failed() {
		log, _ := os.ReadFile(filepath.Join(c.dir, name+".log"))
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		c.tb.Logf("%s ended with:\n%s", name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

func (c *ControlPlane) start(name string, env []corev1.EnvVar) {
	c.tb.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		c.tb.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	command := exec.CommandContext(context.Background(), c.commands[name][0], c.commands[name][1:]...) //nolint:gosec // the rendered command line is what is tested
	command.Stdout, command.Stderr = log, log
	command.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + c.dir}
	for _, variable := range env {
		command.Env = append(command.Env, variable.Name+"="+variable.Value)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		c.tb.Fatal(err)
	}
	c.processes[name] = command
}

// Secret is a rendered object as a Secret.
func Secret(tb testing.TB, object *unstructured.Unstructured) *corev1.Secret {
	tb.Helper()
	var out corev1.Secret
	convert(tb, object, &out)
	return &out
}

func convert(tb testing.TB, object *unstructured.Unstructured, into any) {
	tb.Helper()
	if object == nil {
		tb.Fatalf("the chart did not render a %T", into)
	}
	text, err := yaml.Marshal(object.Object)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports := make([]int, n)
	for i := range ports {
		listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// MaskSecrets replaces what is different in every rendering, for goldens.
func MaskSecrets(object *unstructured.Unstructured) {
	if object.GetKind() == "Secret" {
		data, _, _ := unstructured.NestedMap(object.Object, "data")
		for key, value := range data {
			text, _ := base64.StdEncoding.DecodeString(fmt.Sprint(value))
			data[key] = kindOf(string(text))
		}
		_ = unstructured.SetNestedMap(object.Object, data, "data")
	}
	annotations, found, _ := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "annotations")
	if _, ok := annotations["kubebyon.io/pki-checksum"]; found && ok {
		annotations["kubebyon.io/pki-checksum"] = "(sum)"
		_ = unstructured.SetNestedStringMap(object.Object, annotations, "spec", "template", "metadata", "annotations")
	}
}

func kindOf(text string) string {
	switch {
	case text == "":
		return ""
	case strings.HasPrefix(text, "-----BEGIN "):
		return "(" + strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(strings.SplitN(text, "\n", 2)[0], "-----BEGIN "), "-----")) + ")"
	case strings.HasPrefix(text, "apiVersion: v1\nkind: Config"):
		return "(kubeconfig)"
	case strings.Contains(text, "system:masters"):
		return "(token file)"
	default:
		return fmt.Sprintf("(%d characters)", len(text))
	}
}
