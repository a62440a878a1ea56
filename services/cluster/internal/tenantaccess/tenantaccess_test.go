package tenantaccess_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantaccess"
)

func connect(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// as is a client with nothing but that identity's token.
func as(t *testing.T, cfg *rest.Config, admin kubernetes.Interface, name string) *kubernetes.Clientset {
	t.Helper()
	token, expires, err := tenantaccess.Token(t.Context(), admin, name, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(expires); left < 9*time.Minute || left > 11*time.Minute {
		t.Errorf("a token for ten minutes ends in %v", left)
	}
	return connect(t, &rest.Config{Host: cfg.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData}})
}

func grant(t *testing.T, admin kubernetes.Interface, name string, access clusterv1.Access) {
	t.Helper()
	if err := tenantaccess.Grant(t.Context(), admin, tenantaccess.Identity{Name: name, Access: access, UserID: "us_1", Account: "alice@example.com"}); err != nil {
		t.Fatal(err)
	}
}

// may asks the tenant what an identity may do.
func may(t *testing.T, client kubernetes.Interface, verb, group, resource, sub string) bool {
	t.Helper()
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: "kube-system", Verb: verb, Group: group, Resource: resource, Subresource: sub}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func TestAccesses(t *testing.T) {
	cfg := kubetest.Start(t, kubetest.ControllerManager()) // which fills Kubernetes' own role edit
	admin := connect(t, cfg)
	clients := map[clusterv1.Access]*kubernetes.Clientset{}
	for _, access := range []clusterv1.Access{clusterv1.Viewer, clusterv1.Editor, clusterv1.Owner} {
		grant(t, admin, string(access)+"-1", access)
		clients[access] = as(t, cfg, admin, string(access)+"-1")
	}
	const v, e, o = "viewer", "editor", "owner"
	wait := time.Now().Add(30 * time.Second)
	for !may(t, clients[clusterv1.Editor], "create", "apps", "deployments", "") { // until the aggregation is done
		if time.Now().After(wait) {
			t.Fatal("an editor may create no deployment")
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, c := range []struct{ verb, group, resource, sub, who string }{
		{"get", "", "pods", "", v + e + o}, {"list", "", "pods", "", v + e + o}, {"watch", "", "events", "", v + e + o},
		{"get", "", "pods", "log", v + e + o}, {"list", "apps", "deployments", "", v + e + o},
		{"list", "", "nodes", "", v + o}, {"list", "", "persistentvolumes", "", v + o}, {"list", "storage.k8s.io", "storageclasses", "", v + o},
		{"list", "apiextensions.k8s.io", "customresourcedefinitions", "", v + o}, {"list", "metrics.k8s.io", "nodes", "", v + o},
		{"list", "rbac.authorization.k8s.io", "clusterroles", "", v + o},
		{"create", "", "configmaps", "", e + o}, {"delete", "", "pods", "", e + o}, {"create", "", "pods", "exec", e + o},
		{"get", "", "secrets", "", e + o}, {"list", "", "secrets", "", e + o},
		{"delete", "", "nodes", "", o}, {"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", o}, {"get", "", "nodes", "proxy", o},
		{"create", "", "serviceaccounts", "token", e + o}, {"impersonate", "", "users", "", o},
	} {
		for access, client := range clients {
			if got, want := may(t, client, c.verb, c.group, c.resource, c.sub), strings.Contains(c.who, string(access)); got != want {
				t.Errorf("%s may %s %s/%s %s: %v", access, c.verb, c.group, c.resource, c.sub, got)
			}
		}
	}
	// Not only asked: done.
	if _, err := clients[clusterv1.Viewer].CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a viewer lists Secrets: %v", err)
	}
	if _, err := clients[clusterv1.Viewer].CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a viewer lists namespaces: %v", err)
	}
}

// What is read alone, and never a Secret: a rule that says more is a mistake.
func TestViewerOnlyReads(t *testing.T) {
	admin := connect(t, kubetest.Shared(t))
	grant(t, admin, "viewer-only", clusterv1.Viewer)
	role, err := admin.RbacV1().ClusterRoles().Get(t.Context(), "kubebyon:viewer", metav1.GetOptions{})
	if err != nil || len(role.Rules) == 0 {
		t.Fatal(err)
	}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			if resource == "*" || name == "secrets" || slices.Contains([]string{"proxy", "exec", "attach", "portforward", "token"}, sub) {
				t.Errorf("%s of %q", resource, rule.APIGroups)
			}
		}
		if !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) || slices.Contains(rule.APIGroups, "*") || len(rule.NonResourceURLs) > 0 {
			t.Errorf("%+v", rule)
		}
	}
}

func TestGrantPutsBack(t *testing.T) {
	cfg := kubetest.Shared(t)
	admin := connect(t, cfg)
	const name, bound = "put-back", "kubebyon:access:put-back"
	grant(t, admin, name, clusterv1.Viewer)
	works := func(what string) {
		t.Helper()
		grant(t, admin, name, clusterv1.Viewer)
		if client := as(t, cfg, admin, name); !eventually(func() bool { return may(t, client, "list", "", "nodes", "") }) || may(t, client, "list", "", "secrets", "") {
			t.Errorf("%s: it is not put back", what)
		}
	}
	works("nothing")
	roles, bindings := admin.RbacV1().ClusterRoles(), admin.RbacV1().ClusterRoleBindings()
	for what, harm := range map[string]func() error{
		"the ServiceAccount": func() error {
			return admin.CoreV1().ServiceAccounts(tenantaccess.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
		},
		"the binding": func() error { return bindings.Delete(t.Context(), bound, metav1.DeleteOptions{}) },
		"the role":    func() error { return roles.Delete(t.Context(), "kubebyon:viewer", metav1.DeleteOptions{}) },
		"the role's rules": func() error {
			role, err := roles.Get(t.Context(), "kubebyon:viewer", metav1.GetOptions{})
			if err == nil {
				role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"*"}}}
				_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
			}
			return err
		},
		"the binding's role": func() error {
			err := bindings.Delete(t.Context(), bound, metav1.DeleteOptions{})
			if err == nil {
				_, err = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: bound},
					RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
					Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: tenantaccess.Namespace, Name: name}}}, metav1.CreateOptions{})
			}
			return err
		},
		"the binding's subjects": func() error {
			binding, err := bindings.Get(t.Context(), bound, metav1.GetOptions{})
			if err == nil {
				binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "mallory"})
				_, err = bindings.Update(t.Context(), binding, metav1.UpdateOptions{})
			}
			return err
		},
	} {
		if err := harm(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		works(what)
	}
	binding, err := bindings.Get(t.Context(), bound, metav1.GetOptions{})
	if err != nil || len(binding.Subjects) != 1 || binding.Labels["kubebyon.io/user-id"] != "us_1" {
		t.Errorf("%+v, %v", binding, err)
	}
	// What somebody else put on it stays.
	account, err := admin.CoreV1().ServiceAccounts(tenantaccess.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || account.Annotations["kubebyon.io/account"] != "alice@example.com" {
		t.Fatalf("%+v, %v", account, err)
	}
	account.Labels = map[string]string{"theirs": "1"}
	if _, err := admin.CoreV1().ServiceAccounts(tenantaccess.Namespace).Update(t.Context(), account, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	grant(t, admin, name, clusterv1.Viewer)
	account, err = admin.CoreV1().ServiceAccounts(tenantaccess.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || account.Labels["theirs"] != "1" || account.Labels["app.kubernetes.io/managed-by"] != "kubebyon" {
		t.Errorf("%+v, %v", account, err)
	}
}

// A token that was good is refused at once, and stays so when an identity of the same name is made again.
func TestRevoke(t *testing.T) {
	cfg := kubetest.Shared(t)
	admin := connect(t, cfg)
	const name = "revoked"
	if err := tenantaccess.Revoke(t.Context(), admin, name); err != nil {
		t.Errorf("an absent one: %v", err)
	}
	grant(t, admin, name, clusterv1.Owner)
	client := as(t, cfg, admin, name)
	if !eventually(func() bool {
		_, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err == nil
	}) {
		t.Fatal("it does not work before")
	}
	if err := tenantaccess.Revoke(t.Context(), admin, name); err != nil {
		t.Fatal(err)
	}
	refused := func() bool {
		_, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	}
	begun := time.Now()
	if !eventually(refused) || time.Since(begun) > 3*time.Second {
		t.Errorf("it is refused after %v", time.Since(begun))
	}
	grant(t, admin, name, clusterv1.Owner)
	if !eventually(func() bool {
		_, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return apierrors.IsUnauthorized(err)
	}) {
		t.Error("the old token works with the new identity")
	}
	if err := tenantaccess.Revoke(t.Context(), admin, name); err != nil {
		t.Error(err)
	}
	if _, _, err := tenantaccess.Token(t.Context(), admin, name, time.Hour); !apierrors.IsNotFound(err) {
		t.Errorf("a token of one that was revoked: %v", err)
	}
}

// Several at once, each of the first for this tenant.
func TestRaces(t *testing.T) {
	admin := connect(t, kubetest.Start(t))
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			err := tenantaccess.Grant(t.Context(), admin, tenantaccess.Identity{Name: []string{"a", "b", "c"}[i%3], Access: clusterv1.Viewer})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	accounts, err := admin.CoreV1().ServiceAccounts(tenantaccess.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(accounts.Items) != 3 {
		t.Errorf("%d, %v", len(accounts.Items), err)
	}
}

func TestNamespaceThatGoes(t *testing.T) {
	admin := connect(t, kubetest.Start(t)) // without the controller that would let it go
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantaccess.Namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), tenantaccess.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := tenantaccess.Grant(t.Context(), admin, tenantaccess.Identity{Name: "a", Access: clusterv1.Viewer})
	if f := fault.From(err); f.Kind != fault.Unavailable || f.Code != "tenant_access_terminating" || f.Action == "" {
		t.Errorf("%v", err)
	}
	if err := tenantaccess.Grant(t.Context(), admin, tenantaccess.Identity{Name: "a", Access: "all"}); err == nil {
		t.Error("an access that there is not")
	}
}

// eventually: the API server's own view of its roles follows within moments.
func eventually(is func() bool) bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}
