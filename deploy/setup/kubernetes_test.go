package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
)

// tenantOf gives a namespace, its administrator's client, and one that may do what the setup needs and nothing else.
func tenantOf(t *testing.T) (namespace string, admin, own kubernetes.Interface) {
	t.Helper()
	config := kubetest.Shared(t)
	namespace = kubetest.Namespace(t, config)
	client := func(c *rest.Config) kubernetes.Interface {
		t.Helper()
		made, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	admin = client(config)
	var names []string
	for _, owner := range owners() {
		names = append(names, "kubebyon-"+owner)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "setup"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: names, Verbs: []string{"get", "update"}},
	}}
	if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "setup"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "setup"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "setup-" + namespace, APIGroup: rbacv1.GroupName}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(config)
	as.Impersonate.UserName = "setup-" + namespace
	own = client(as)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the authorizer sees a new role a little later
		if _, err := own.CoreV1().Secrets(namespace).Get(t.Context(), names[0], metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "forbidden") {
			return namespace, admin, own
		}
		if time.Now().After(deadline) {
			t.Fatal("the role is not seen")
		}
	}
}

func stored(t *testing.T, client kubernetes.Interface, namespace string) map[string]corev1.Secret {
	t.Helper()
	list, err := client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]corev1.Secret{}
	for _, s := range list.Items {
		found[strings.TrimPrefix(s.Name, "kubebyon-")] = s
	}
	return found
}

func TestSecretsOfANewInstallation(t *testing.T) {
	namespace, admin, own := tenantOf(t)
	o := options{now: time.Now()}
	fill := func() string {
		t.Helper()
		var said bytes.Buffer
		if err := (&secrets{client: own, namespace: namespace, prefix: "kubebyon"}).fill(t.Context(), o, &said); err != nil {
			t.Fatal(err)
		}
		return said.String()
	}
	said := fill()
	first := stored(t, admin, namespace)
	if len(first) != len(owners()) {
		t.Fatalf("%d Secrets", len(first))
	}
	made := map[string]string{}
	for owner, s := range first {
		for file, text := range s.Data {
			made[owner+"/"+file] = string(text)
			if strings.Contains(said, strings.TrimSpace(string(text))) {
				t.Errorf("it shows %s/%s", owner, file)
			}
		}
	}
	if len(made) != len(everything) {
		t.Errorf("%d files", len(made))
	}
	for name, secret := range secretsOf(made) {
		for other, text := range made {
			if other != name && strings.Contains(text, secret) && !strings.HasSuffix(name, dataPlaneFile) {
				t.Errorf("%s holds the secret of %s", other, name)
			}
		}
	}

	if said := fill(); said != "" {
		t.Errorf("the second run says %s", said)
	}
	for owner, s := range stored(t, admin, namespace) {
		if s.ResourceVersion != first[owner].ResourceVersion {
			t.Errorf("the second run changes %s", owner)
		}
	}

	// One Secret gone, one without a file and with one that is not ours: both are completed, and nothing else changes.
	api := admin.CoreV1().Secrets(namespace)
	if err := api.Delete(t.Context(), "kubebyon-token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := first["gateway"]
	gateway := before.DeepCopy()
	delete(gateway.Data, passFile)
	gateway.Data["admin-password"] = []byte("the operator's own")
	if _, err := api.Update(t.Context(), gateway, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	fill()
	now := stored(t, admin, namespace)
	if len(now) != len(owners()) || len(now["token"].Data) != 2 || string(now["gateway"].Data["admin-password"]) != "the operator's own" ||
		len(now["gateway"].Data[passFile]) == 0 || string(now["gateway"].Data[keyFile]) != string(first["gateway"].Data[keyFile]) {
		t.Error("they are not completed")
	}
	if now["node"].ResourceVersion != first["node"].ResourceVersion {
		t.Error("another is changed")
	}
	if said := fill(); said != "" {
		t.Errorf("there was more to do: %s", said)
	}
}

// TestTwoSetupsInAClusterAgree has four make the same Secrets at once.
func TestTwoSetupsInAClusterAgree(t *testing.T) {
	namespace, admin, own := tenantOf(t)
	done := make(chan error)
	for range 4 {
		go func() {
			done <- (&secrets{client: own, namespace: namespace, prefix: "kubebyon"}).fill(context.Background(), options{now: time.Now()}, io.Discard)
		}()
	}
	won := 0
	for range 4 {
		if err := <-done; err == nil {
			won++
		} else {
			t.Logf("one gave up: %v", err)
		}
	}
	if won == 0 {
		t.Fatal("all gave up")
	}
	var said bytes.Buffer
	if err := (&secrets{client: own, namespace: namespace, prefix: "kubebyon"}).fill(t.Context(), options{now: time.Now()}, &said); err != nil || said.Len() > 0 {
		t.Errorf("they left this to do: %s, %v", &said, err)
	}
	if len(stored(t, admin, namespace)) != len(owners()) {
		t.Error("some are missing")
	}
}

func TestSecretsThatCannotBeWritten(t *testing.T) {
	namespace, admin, own := tenantOf(t)
	other := kubetest.Namespace(t, kubetest.Shared(t))
	run := func(namespace string) error {
		return (&secrets{client: own, namespace: namespace, prefix: "kubebyon"}).fill(t.Context(), options{now: time.Now()}, io.Discard)
	}
	if err := run(other); err == nil || !strings.Contains(err.Error(), "Secret kubebyon-haproxy in "+other) {
		t.Errorf("in another's namespace: %v", err)
	}
	fixed := true
	_, err := admin.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kubebyon-haproxy"}, Immutable: &fixed}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := run(namespace); err == nil || !strings.Contains(err.Error(), "kubebyon-haproxy is immutable and lacks") {
		t.Errorf("an immutable one: %v", err)
	}
	if got := stored(t, admin, other); len(got) != 0 {
		t.Errorf("%d Secrets elsewhere", len(got))
	}
}

// TestKubernetesCommand goes the whole way once, by a kubeconfig.
func TestKubernetesCommand(t *testing.T) {
	config := kubetest.Shared(t)
	namespace, path := kubetest.Namespace(t, config), kubetest.Kubeconfig(t, config)
	lookup := func(name string) (string, bool) { return path, name == "KUBEBYON_KUBECONFIG_PATH" }
	for range 2 {
		var stdout, stderr bytes.Buffer
		if status := Main(t.Context(), []string{"kubernetes", "-namespace", namespace, "-prefix", "mine"}, lookup, &stdout, &stderr); status != 0 {
			t.Fatalf("%d: %s", status, &stderr)
		}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "mine-nats", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
