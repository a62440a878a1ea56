//go:build e2e

package app

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

// A tenant's keys, its setup token and its kubeconfig stay in its namespace: a whole life leaves none of them in the
// service's log, in its tables or River's, in events or in what the API says of the cluster.
func TestE2ESecretsStayInTheNamespace(t *testing.T) {
	w := newWorld(t)
	r := w.start("KUBEBYON_LOG_LEVEL=debug")
	c := w.create(clusterv1.CreateRequest{Name: "e2e-secrets"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	secret := map[string]string{}
	for _, name := range []string{chart.PKISecretName(c.VClusterName), chart.KubeconfigSecretName(c.VClusterName)} {
		found, err := w.kube.CoreV1().Secrets(c.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range found.Data {
			if text := string(value); strings.Contains(text, "PRIVATE KEY") || key == chart.TokenKey || key == "config" {
				// A line of a key; and base64 of its end, as a manifest has it.
				lines := strings.Split(strings.TrimSpace(text), "\n")
				secret[name+"/"+key] = lines[len(lines)/2]
				secret[name+"/"+key+" in base64"] = base64.StdEncoding.EncodeToString(value[len(value)/3/3*3:])
			}
		}
	}
	if len(secret) < 16 {
		t.Fatalf("too few secrets were found: %d", len(secret))
	}
	config, err := call(w, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := clientcmd.Load([]byte(config.Kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range parsed.AuthInfos {
		secret["the downloaded key"] = base64.StdEncoding.EncodeToString(user.ClientKeyData)
	}
	// An upgrade that cannot come to its end, then the removal.
	host := "unreachable.invalid"
	if _, err := call(w, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &host}); err != nil {
		t.Fatal(err)
	}
	w.eventually(3*time.Minute, "a reason", func() bool { found := w.get(c.ID); return found.Reason != nil })
	said := fmt.Sprintf("%+v %+v\n%s", w.get(c.ID), w.get(c.ID).Reason, w.timeline(c.ID)) + w.tables()
	w.remove(c)
	said += w.tables() + r.log.String()
	for what, text := range secret {
		if strings.Contains(said, text) {
			t.Errorf("%s is told", what)
		}
	}
}

// tables is every row of the database, as text.
func (w *world) tables() string {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	rows, _ := conn.Query(w.t.Context(), "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'")
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Contains(names, "river_job") || !slices.Contains(names, "clusters") {
		w.t.Fatal(names, err)
	}
	var out strings.Builder
	for _, name := range names {
		rows, _ := conn.Query(w.t.Context(), "SELECT t::text FROM "+pgx.Identifier{name}.Sanitize()+" t")
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			w.t.Fatal(err)
		}
		out.WriteString(strings.Join(texts, "\n"))
	}
	return out.String()
}

// What runs beside a tenant's control plane on the host reaches its API and nothing behind it, and the Pod holds nothing of
// the host's. The host's API server stands in for the neighbour: it connects to the Pod's address for us.
func TestE2EAControlPlaneIsAlone(t *testing.T) {
	w := newWorld(t)
	w.start()
	c := w.create(clusterv1.CreateRequest{Name: "e2e-alone"})
	c = w.until(c.ID, clusterv1.Ready, 3*time.Minute)
	pod, err := w.kube.CoreV1().Pods(c.Namespace).Get(t.Context(), c.VClusterName+"-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC || pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("the Pod is not closed off: %+v", pod.Spec)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil || volume.Projected != nil || volume.Secret != nil && volume.Secret.SecretName != chart.PKISecretName(c.VClusterName) {
			t.Errorf("the Pod has the volume %+v", volume)
		}
	}
	policies, err := w.kube.NetworkingV1().NetworkPolicies(c.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(policies.Items) != 1 || len(policies.Items[0].Spec.PolicyTypes) != 2 {
		t.Errorf("network policies: %+v, %v", policies, err)
	}
	ask := func(scheme, port, path string) (string, error) {
		body, err := w.kube.CoreV1().Pods(c.Namespace).ProxyGet(scheme, pod.Name, port, path, nil).DoRaw(t.Context())
		return string(body), err
	}
	if body, err := ask("https", "8443", "/readyz"); err != nil || body != "ok" {
		t.Fatalf("the neighbour does not reach the API, so that the rest shows nothing: %q, %v", body, err)
	}
	for _, port := range []string{"2379", "2380"} { // etcd
		if body, err := ask("http", port, "/version"); err == nil {
			t.Errorf("port %s answers: %q, %v", port, body, err)
		}
	}
	// Controller manager and scheduler say no more than that they live, and that only where the host lets it through.
	for _, port := range []string{"10257", "10259"} {
		for _, path := range []string{"/metrics", "/configz", "/debug/pprof/"} {
			if body, err := ask("https", port, path); err == nil {
				t.Errorf("port %s, %s: %.80q", port, path, body)
			}
		}
	}
	w.remove(c)
}
