// Package tenantaccess makes and ends identities in a tenant: ServiceAccounts in a namespace of ours there, each bound to what it may do. It
// works with a client that is given to it, an administrator's of the tenant. It must never reach anything by itself, read a Secret, or
// keep or log a token.
package tenantaccess

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Namespace holds the identities. In it is nothing else.
const Namespace = "kubebyon-access"

const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "kubebyon"
	userLabel      = "kubebyon.io/user-id"
	accountNote    = "kubebyon.io/account"

	bindingPrefix = "kubebyon:access:"
)

// Identity is one that Grant makes.
type Identity struct {
	Name    string           // of its ServiceAccount
	Access  clusterv1.Access // what it may do
	UserID  string           // whose it is; empty: KubeBYON's own
	Account string           // that user's address, for people who look
}

// UserName is what the tenant calls the identity of that name, in its audit log too.
func UserName(name string) string { return "system:serviceaccount:" + Namespace + ":" + name }

// roles say what an access is in a tenant.
var roles = map[clusterv1.Access]string{clusterv1.Viewer: viewerRole, clusterv1.Editor: "edit", clusterv1.Owner: "cluster-admin"}

// Grant makes the identity, or puts back what was deleted or changed of it. It is safe to repeat. Its errors are the client's, for
// tenant.Explain, or faults.
func Grant(ctx context.Context, client kubernetes.Interface, id Identity) error {
	role, ok := roles[id.Access]
	if !ok {
		return fmt.Errorf("tenantaccess: there is no access %q", id.Access)
	}
	ours := map[string]string{managedByLabel: managedBy}
	err := ensure(ctx, client.CoreV1().Namespaces(), Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: ours}},
		func(found *corev1.Namespace) (state, error) {
			if found.DeletionTimestamp != nil {
				return same, fault.New(fault.Unavailable, "tenant_access_terminating", "the namespace %s of the tenant is being deleted", Namespace).
					Do("wait until it is gone and try again; it is made anew")
			}
			return label(&found.ObjectMeta, ours), nil
		})
	if err != nil {
		return err
	}
	if id.Access == clusterv1.Viewer {
		err := ensure(ctx, client.RbacV1().ClusterRoles(), viewerRole,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: viewerRole, Labels: ours}, Rules: viewerRules},
			func(found *rbacv1.ClusterRole) (state, error) {
				s := label(&found.ObjectMeta, ours)
				if found.AggregationRule != nil || !equality.Semantic.DeepEqual(found.Rules, viewerRules) {
					found.AggregationRule, found.Rules, s = nil, viewerRules, changed
				}
				return s, nil
			})
		if err != nil {
			return err
		}
	}
	labels := map[string]string{managedByLabel: managedBy}
	notes := map[string]string{}
	if id.UserID != "" {
		labels[userLabel], notes[accountNote] = id.UserID, id.Account
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: id.Name, Namespace: Namespace, Labels: labels, Annotations: notes},
		AutomountServiceAccountToken: new(bool)}
	err = ensure(ctx, client.CoreV1().ServiceAccounts(Namespace), id.Name, account, func(found *corev1.ServiceAccount) (state, error) {
		s := label(&found.ObjectMeta, labels)
		if m := found.AutomountServiceAccountToken; m == nil || *m {
			found.AutomountServiceAccountToken, s = new(bool), changed
		}
		return s, nil
	})
	if err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: bindingPrefix + id.Name, Labels: labels},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: id.Name}}}
	return ensure(ctx, client.RbacV1().ClusterRoleBindings(), binding.Name, binding, func(found *rbacv1.ClusterRoleBinding) (state, error) {
		if found.RoleRef != binding.RoleRef { // Kubernetes lets nobody change it
			return replaced, nil
		}
		s := label(&found.ObjectMeta, labels)
		if !equality.Semantic.DeepEqual(found.Subjects, binding.Subjects) {
			found.Subjects, s = binding.Subjects, changed
		}
		return s, nil
	})
}

// Token gives one of the identity, good for ttl; Kubernetes gives none for less than ten minutes, and a tenant may give a shorter one
// than is asked for: expires is what it says. It is worth nothing once the identity is revoked.
func Token(ctx context.Context, client kubernetes.Interface, name string, ttl time.Duration) (token string, expires time.Time, err error) {
	seconds := int64(ttl / time.Second)
	made, err := client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", time.Time{}, err
	}
	return made.Status.Token, made.Status.ExpirationTimestamp.UTC(), nil
}

// Revoke ends the identity and every token of it; one that is absent is no error. The binding goes first: for some seconds an API server
// remembers whose a token was, but what that one may do is looked up each time.
func Revoke(ctx context.Context, client kubernetes.Interface, name string) error {
	if err := client.RbacV1().ClusterRoleBindings().Delete(ctx, bindingPrefix+name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := client.CoreV1().ServiceAccounts(Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// label adds labels that are missing or different; what others added stays.
func label(meta *metav1.ObjectMeta, labels map[string]string) state {
	s := same
	for key, value := range labels {
		if meta.Labels[key] != value {
			metav1.SetMetaDataLabel(meta, key, value)
			s = changed
		}
	}
	return s
}

// state of an object that is there, next to the one that is wanted.
type state int

const (
	same     state = iota
	changed        // it was made like it, and has to be written
	replaced       // it cannot be made like it, and has to go
)

type objects[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// tries bounds how often ensure begins again since another one wrote the same object at the same time.
const tries = 5

// ensure leaves the object as wanted. mend is shown one that is there and makes it like that.
func ensure[T any](ctx context.Context, api objects[T], name string, wanted T, mend func(found T) (state, error)) error {
	for try := 1; ; try++ {
		err := once(ctx, api, name, wanted, mend)
		raced := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		if !raced || try == tries {
			return err
		}
	}
}

func once[T any](ctx context.Context, api objects[T], name string, wanted T, mend func(found T) (state, error)) error {
	found, err := api.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		s, err := mend(found)
		if err != nil || s == same {
			return err
		}
		if s == changed {
			_, err := api.Update(ctx, found, metav1.UpdateOptions{})
			return err
		}
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = api.Create(ctx, wanted, metav1.CreateOptions{})
	return err
}
