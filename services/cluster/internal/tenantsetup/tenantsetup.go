// Package tenantsetup gives a fresh upstream tenant what a worker needs to join and to run Pods: the administrator's
// binding, bootstrap RBAC, cluster-info, default/kubernetes, CoreDNS, kube-proxy and flannel. It must never create a
// credential, nor log one, and it must never be run against the host cluster.
//
// kubeadm's ConfigMaps kube-system/kubeadm-config and kubelet-config are left out: only `kubeadm join` reads them, and
// workers join with KubeBYON's own script.
package tenantsetup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

const (
	fieldManager = "kubebyon"
	partOfLabel  = "app.kubernetes.io/part-of"
	partOf       = "kubebyon"

	pollEvery   = 100 * time.Millisecond
	parallelism = 8
	// attempt bounds one request: a first SYN may be lost while the Pod's network comes up, and a retransmission takes a
	// second.
	attempt = 3 * time.Second
)

// SetupConfig is the client configuration for Apply and NodeCanJoin: the setup token and CA of the Secret
// <release>-pki, at the given https://host:port. It is a credential of group system:masters; never store or log it.
func SetupConfig(server string, pki *corev1.Secret) (*rest.Config, error) {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "https" || at.Port() == "" || at.Hostname() == "" {
		return nil, fmt.Errorf("the tenant's server is not https://host:port")
	}
	token, ca := pki.Data[chart.TokenKey], pki.Data[chart.CACertKey]
	if len(token) == 0 || len(ca) == 0 {
		return nil, fmt.Errorf("the Secret %s/%s lacks %s or %s", pki.Namespace, pki.Name, chart.TokenKey, chart.CACertKey)
	}
	return &rest.Config{
		Host:            "https://" + at.Host,
		BearerToken:     string(token),
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		UserAgent:       "kubebyon-cluster",
	}, nil
}

// Apply waits until the tenant's API is ready and then writes every object, by server-side apply, several at a time.
// It is safe to repeat, also with other Params. It ends with a fault when ctx does, saying what it was waiting for, or
// at once when Params are wrong or the tenant refuses an object for good.
func Apply(ctx context.Context, cfg *rest.Config, params Params) error {
	batches, err := render(params)
	if err != nil {
		return err
	}
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	defer client.close()
	if err := client.waitReady(ctx); err != nil {
		return err
	}
	for _, batch := range batches {
		if err := client.applyAll(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// NodeCanJoin is nil when a worker with a bootstrap token could join now; otherwise a fault that says what is missing,
// of kind Unavailable when the API itself does not answer and Precondition else.
func NodeCanJoin(ctx context.Context, cfg *rest.Config) error {
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	defer client.close()
	return client.nodeCanJoin(ctx)
}

// WaitNodeCanJoin asks NodeCanJoin every so often, and gives its last answer when ctx ends.
func WaitNodeCanJoin(ctx context.Context, cfg *rest.Config, every time.Duration) error {
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	defer client.close()
	var last error
	for {
		err := client.nodeCanJoin(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if !sleep(ctx, every) {
			return last
		}
	}
}

// needed are the controllers whose ServiceAccounts show that the controller manager has started them, in the order in
// which a join needs them: sign cluster-info, approve and sign the node's certificate, give the node its Pod network.
var needed = []string{"bootstrap-signer", "certificate-controller", "node-controller"}

// bindings are those of objects/10-access.yaml without which a join token can do nothing.
var bindings = []string{"kubebyon:node-bootstrapper", "kubebyon:approve-node-client", "kubebyon:approve-node-renewal", "kubebyon:get-nodes"}

func (c *client) nodeCanJoin(ctx context.Context) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	notYet := func(code, format string, args ...any) error {
		return fault.New(fault.Precondition, code, format, args...)
	}
	ask := func(what string, err error) error {
		if apierrors.IsNotFound(err) {
			return notYet("tenant_incomplete", "the tenant does not have %s yet", what)
		}
		return fault.New(fault.Unavailable, "tenant_api_unavailable", "the tenant's API did not answer for %s", what).Because(err)
	}
	info, err := c.typed.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil {
		return ask("kube-public/cluster-info", err)
	}
	if info.Data["kubeconfig"] == "" {
		return notYet("tenant_incomplete", "the tenant's kube-public/cluster-info is empty")
	}
	made, err := c.typed.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + partOf})
	if err != nil {
		return ask("its bootstrap bindings", err)
	}
	for _, name := range bindings {
		if !slices.ContainsFunc(made.Items, func(b rbacv1.ClusterRoleBinding) bool { return b.Name == name }) {
			return notYet("tenant_incomplete", "the tenant does not have the ClusterRoleBinding %s yet", name)
		}
	}
	if _, err := c.typed.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return ask("default/default, which its controller manager makes", err)
	}
	accounts, err := c.typed.CoreV1().ServiceAccounts("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		return ask("its controllers' accounts", err)
	}
	for _, name := range needed {
		if !slices.ContainsFunc(accounts.Items, func(a corev1.ServiceAccount) bool { return a.Name == name }) {
			return notYet("tenant_controllers_starting", "the tenant's %s has not started yet", name)
		}
	}
	return nil
}

type client struct {
	http    *http.Client
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// newClient has connections of its own, without client-side limits: it talks to one tenant for a moment.
func newClient(cfg *rest.Config) (*client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, and written for those who still read them
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("tenant client: %w", err)
	}
	typed, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("tenant client: %w", err)
	}
	untyped, err := dynamic.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("tenant client: %w", err)
	}
	return &client{http: httpClient, typed: typed, dynamic: untyped}, nil
}

func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) } // http.Client's own stops at the first wrapper

// ready asks /readyz once.
func (c *client) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	err := c.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err == nil {
		return nil
	}
	if errors.Is(err, reach.ErrForbidden) {
		return fault.From(err)
	}
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return fault.New(fault.Unavailable, "tenant_refuses_us", "the tenant's API refuses our credential").Because(err)
	}
	return fault.New(fault.Unavailable, "tenant_api_starting", "the tenant's API is not ready").Because(err)
}

func (c *client) waitReady(ctx context.Context) error {
	for {
		err := c.ready(ctx)
		if err == nil || errors.Is(err, reach.ErrForbidden) { // which waiting does not mend
			return err
		}
		if !sleep(ctx, pollEvery) {
			return fault.New(fault.Timeout, "tenant_api_not_ready", "the tenant's API did not become ready in time").
				Do("look at the control plane's Pod: its image, its volume and its logs").Because(err)
		}
	}
}

// applyAll writes the objects, a few at a time, and waits for all of them.
func (c *client) applyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	slots := make(chan struct{}, parallelism)
	failures := make([]error, len(objects))
	for i, object := range objects {
		workers.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if failures[i] = c.apply(ctx, object); failures[i] != nil {
				cancel(failures[i])
			}
		})
	}
	workers.Wait()
	// The first refusal cancelled the others; it is the one to tell.
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return cause
	}
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// apply writes one object, again and again while the tenant is still starting.
func (c *client) apply(ctx context.Context, object *unstructured.Unstructured) error {
	what := object.GetKind() + " " + object.GetName()
	if ns := object.GetNamespace(); ns != "" {
		what = object.GetKind() + " " + ns + "/" + object.GetName()
	}
	resource, ok := resources[object.GroupVersionKind()]
	if !ok {
		return fmt.Errorf("%s: %s has no known resource", what, object.GroupVersionKind())
	}
	at := dynamic.ResourceInterface(c.dynamic.Resource(resource))
	if ns := object.GetNamespace(); ns != "" {
		at = c.dynamic.Resource(resource).Namespace(ns)
	}
	for {
		tryCtx, cancel := context.WithTimeout(ctx, 5*attempt)
		_, err := at.Apply(tryCtx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		cancel()
		if err == nil {
			return nil
		}
		if !startingUp(err) {
			return fault.New(fault.Internal, "tenant_object_refused", "the tenant refused %s", what).Because(err)
		}
		if !sleep(ctx, pollEvery) {
			return fault.New(fault.Timeout, "tenant_setup_timeout", "the tenant did not take %s in time", what).Because(err)
		}
	}
}

// startingUp reports whether err is one that a starting API server gives: its namespaces, its address allocator and its
// controllers come a moment after /readyz.
func startingUp(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the connection
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return true
	case apierrors.IsInvalid(err):
		return allocatorStarting(status.Status())
	}
	return false
}

// allocatorStarting: the refusal of a clusterIP is final only once the allocator knows its range.
func allocatorStarting(status metav1.Status) bool {
	return status.Details != nil && slices.ContainsFunc(status.Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "spec.clusterIPs"
	})
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
