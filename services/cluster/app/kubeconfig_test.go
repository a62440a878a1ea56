package app

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// door is where a tenant's API is reached. It can be made to refuse, or to be silent.
type door struct {
	url    string
	listen net.Listener
	target string
	all    sync.WaitGroup

	mu    sync.Mutex
	how   string // "", "shut" or "silent"
	conns []net.Conn
}

func openDoor(t *testing.T, target string) *door {
	t.Helper()
	var listen net.Listener
	for port := 30000 + rand.IntN(2000); listen == nil && port < 32768; port++ { // the node ports
		listen, _ = new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	}
	if listen == nil {
		t.Fatal("no node port is free on 127.0.0.1")
	}
	d := &door{url: "https://" + listen.Addr().String(), listen: listen, target: strings.TrimPrefix(target, "https://")}
	d.all.Go(d.serve)
	t.Cleanup(func() {
		_ = listen.Close()
		d.be("shut")
		d.all.Wait()
	})
	return d
}

// be changes it, for those too who stand in it.
func (d *door) be(how string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.how = how
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
}

func (d *door) serve() {
	for {
		in, err := d.listen.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.conns = append(d.conns, in)
		how := d.how
		d.mu.Unlock()
		if how == "shut" {
			_ = in.Close()
		}
		if how != "" {
			continue
		}
		out, err := net.Dial("tcp", d.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		d.all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
		d.all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
	}
}

// accessWorld is a service whose host cluster is one API server, which is each tenant's too, behind a door of its own.
type accessWorld struct {
	*testing.T
	conn *nats.Conn
	pool *pgxpool.Pool
	rest *rest.Config
	kube kubernetes.Interface
	log  *lockedBuffer
}

func startAccess(t *testing.T) *accessWorld {
	t.Helper()
	url, dsn := natstest.New(t), pgtest.New(t)
	w := &accessWorld{T: t, rest: kubetest.Shared(t)}
	w.log = run(t, map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": url, "KUBEBYON_KUBECONFIG_PATH": kubetest.Kubeconfig(t, w.rest),
		"KUBEBYON_ALLOW_LOOPBACK_HOSTS": "true"})
	w.conn = dial(t, url)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(w.conn) })
	var err error
	if w.pool, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.kube = kubernetes.NewForConfigOrDie(w.rest)
	return w
}

// tenant is a cluster that is ready, with a control plane that others have made; alice created it.
func (w *accessWorld) tenant(name string) (id string, at *door) {
	w.Helper()
	at = openDoor(w.T, w.rest.Host)
	namespace := kubetest.Namespace(w.T, w.rest)
	w.export(namespace, name, kubeconfigOf(w.rest))
	if _, err := w.kube.CoreV1().Services(namespace).Create(w.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "https", Port: 443, NodePort: int32(at.listen.Addr().(*net.TCPAddr).Port)}}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	id = "cl_" + rand20()
	if _, err := w.pool.Exec(w.Context(), `INSERT INTO clusters (id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode,
			api_endpoint, status, created_at, updated_at) VALUES ($1, $2, $2, $3, $4, 'upstream', '127.0.0.1', 'nodeport', $5, 'ready', now(), now())`,
		id, name, namespace, alice.UserID, at.url); err != nil {
		w.Fatal(err)
	}
	return id, at
}

// export is what a control plane writes onto the host cluster.
func (w *accessWorld) export(namespace, name string, config []byte) {
	w.Helper()
	_ = w.kube.CoreV1().Secrets(namespace).Delete(w.Context(), "vc-"+name, metav1.DeleteOptions{})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vc-" + name}, Data: map[string][]byte{"config": config}}
	if _, err := w.kube.CoreV1().Secrets(namespace).Create(w.Context(), secret, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *accessWorld) member(id, user string, access clusterv1.Access) contract.Principal {
	w.Helper()
	if err := setMember(w.T, w.conn, alice, id, user, access); err != nil {
		w.Fatal(err)
	}
	return contract.Principal{UserID: user, Role: contract.RoleUser}
}

func (w *accessWorld) make(p contract.Principal, id string, access clusterv1.Access) clusterv1.CreateKubeconfigResponse {
	w.Helper()
	made, err := ask(w.T, w.conn, p, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id, UserName: "Bob.Builder@example.com", Access: access})
	if err != nil {
		w.Fatal(err)
	}
	return made
}

func (w *accessWorld) revoke(p contract.Principal, id, kubeconfig string) (clusterv1.PersonalKubeconfig, error) {
	w.Helper()
	return ask(w.T, w.conn, p, clusterv1.RevokeKubeconfig, clusterv1.RevokeKubeconfigRequest{ID: id, KubeconfigID: kubeconfig})
}

func (w *accessWorld) list(p contract.Principal, id string) []clusterv1.PersonalKubeconfig {
	w.Helper()
	found, err := ask(w.T, w.conn, p, clusterv1.Kubeconfigs, clusterv1.KubeconfigsRequest{ID: id})
	if err != nil || found.Kubeconfigs == nil {
		w.Fatal(found, err)
	}
	return found.Kubeconfigs
}

func (w *accessWorld) state(id, kubeconfig string) clusterv1.KubeconfigState {
	w.Helper()
	for _, k := range w.list(alice, id) {
		if k.ID == kubeconfig {
			return k.State
		}
	}
	return ""
}

// use is what its owner does with one.
func (w *accessWorld) use(text string) kubernetes.Interface {
	w.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(text))
	if err != nil {
		w.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

func (w *accessWorld) works(text string) {
	w.Helper()
	client := w.use(text)
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // until the API server sees its own roles
		if _, err = client.CoreV1().Namespaces().List(w.Context(), metav1.ListOptions{Limit: 1}); err == nil {
			return
		}
	}
	w.Fatalf("it does not work: %v", err)
}

func (w *accessWorld) refused(text string) {
	w.Helper()
	client := w.use(text)
	var err error
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err = client.CoreV1().Namespaces().List(w.Context(), metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return
		}
	}
	w.Errorf("it is not refused: %v", err)
}

// left are the identities in the tenants that were made of these.
func (w *accessWorld) left(identities ...string) (out []string) {
	w.Helper()
	accounts, err := w.kube.CoreV1().ServiceAccounts("kubebyon-access").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	bindings, err := w.kube.RbacV1().ClusterRoleBindings().List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, identity := range identities {
		for _, account := range accounts.Items {
			if strings.HasSuffix(identity, ":"+account.Name) {
				out = append(out, account.Name)
			}
		}
		for _, binding := range bindings.Items {
			if len(binding.Subjects) == 1 && strings.HasSuffix(identity, ":"+binding.Subjects[0].Name) {
				out = append(out, binding.Name)
			}
		}
	}
	return out
}

func TestPersonalKubeconfig(t *testing.T) {
	w := startAccess(t)
	id, at := w.tenant("demo")
	other, _ := w.tenant("other")
	bob, carol := w.member(id, "usr_bob", clusterv1.Viewer), w.member(id, "usr_carol", clusterv1.Viewer)
	stranger := contract.Principal{UserID: "usr_stranger", Role: contract.RoleUser}

	made := w.make(bob, id, "")
	if made.Access != clusterv1.Viewer || made.State != clusterv1.KubeconfigActive || made.UserID != "usr_bob" || made.ClusterID != id || made.FileName != "demo-viewer.kubeconfig.yaml" ||
		!strings.HasPrefix(made.ID, "kc_") || made.ExpiresAt.Sub(made.CreatedAt).Round(time.Minute) != 8*time.Hour {
		t.Errorf("%+v", made.PersonalKubeconfig)
	}
	w.works(made.Kubeconfig)
	client := w.use(made.Kubeconfig)
	if _, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a viewer lists Secrets: %v", err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != made.Identity || !strings.HasPrefix(made.Identity, "system:serviceaccount:kubebyon-access:bob-builder-example-com-") {
		t.Errorf("in the tenant it is %q, here %q, %v", who.Status.UserInfo.Username, made.Identity, err)
	}
	// An address, a CA and a token, and nothing of the administrator's.
	parsed, err := clientcmd.Load([]byte(made.Kubeconfig))
	if err != nil || len(parsed.Clusters) != 1 || len(parsed.AuthInfos) != 1 || parsed.Clusters["demo"].Server != at.url {
		t.Fatalf("%+v, %v", parsed, err)
	}
	for name, user := range parsed.AuthInfos {
		if !strings.HasSuffix(made.Identity, ":"+name) || user.Token == "" || user.ClientKeyData != nil || user.ClientCertificateData != nil {
			t.Errorf("the user %s holds more than a token, or none", name)
		}
		if strings.Contains(w.log.String(), user.Token) {
			t.Error("the log holds the token")
		}
	}

	// An owner sees all, others their own.
	again := w.make(carol, id, clusterv1.Viewer)
	byAlice := w.make(alice, id, "")
	if byAlice.Access != clusterv1.Editor {
		t.Errorf("an owner who says nothing gets %q", byAlice.Access)
	}
	ids := func(list []clusterv1.PersonalKubeconfig) (out []string) {
		for _, k := range list {
			out = append(out, k.ID)
		}
		return out
	}
	for _, c := range []struct {
		p    contract.Principal
		want []string
	}{{bob, []string{made.ID}}, {carol, []string{again.ID}}, {alice, []string{byAlice.ID, again.ID, made.ID}}, {admin, []string{byAlice.ID, again.ID, made.ID}}} {
		if got := ids(w.list(c.p, id)); !slices.Equal(got, c.want) {
			t.Errorf("%s sees %v, not %v", c.p.UserID, got, c.want)
		}
	}
	readOnly := bob
	readOnly.ReadOnly = true
	for what, c := range map[string]struct {
		p             contract.Principal
		cluster, kube string
		code          string
	}{
		"another's":                {carol, id, made.ID, "kubeconfig_not_found"},
		"a stranger":               {stranger, id, made.ID, "cluster_not_found"},
		"none":                     {bob, id, "kc_zzzzzzzzzzzzzzzzzzzz", "kubeconfig_not_found"},
		"an injection":             {bob, id, "' or 1=1 --\x00", "kubeconfig_not_found"},
		"of another cluster":       {alice, other, made.ID, "kubeconfig_not_found"},
		"in a cluster that is not": {bob, "cl_zzzzzzzzzzzzzzzzzzzz", made.ID, "cluster_not_found"},
		"by what may only read":    {readOnly, id, made.ID, "cluster_access_insufficient"},
	} {
		if _, err := w.revoke(c.p, c.cluster, c.kube); codeOf(err) != c.code {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
	w.works(made.Kubeconfig)

	gone, err := w.revoke(bob, id, made.ID)
	if err != nil || gone.State != clusterv1.KubeconfigRevoked || gone.RevokedBy != "usr_bob" || gone.RevokedAt == nil {
		t.Fatalf("%+v, %v", gone, err)
	}
	w.refused(made.Kubeconfig)
	if left := w.left(made.Identity); len(left) > 0 {
		t.Errorf("left in the tenant: %v", left)
	}
	twice, err := w.revoke(alice, id, made.ID)
	if err != nil || twice.RevokedBy != "usr_bob" || !twice.RevokedAt.Equal(*gone.RevokedAt) {
		t.Errorf("revoked again: %+v, %v", twice, err)
	}
	if byOwner, err := w.revoke(alice, id, again.ID); err != nil || byOwner.State != clusterv1.KubeconfigRevoked || byOwner.RevokedBy != alice.UserID {
		t.Errorf("%+v, %v", byOwner, err)
	}
	w.refused(again.Kubeconfig)
	if state := w.state(id, byAlice.ID); state != clusterv1.KubeconfigActive {
		t.Errorf("one that nobody touched is %s", state)
	}
	events, err := ask(t, w.conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: id})
	told := fmt.Sprint(events.Events)
	if err != nil || strings.Count(told, "kubeconfig_created") != 3 || strings.Count(told, "kubeconfig_revoked") != 2 {
		t.Errorf("told %s, %v", told, err)
	}
}

func TestPersonalKubeconfigRefusals(t *testing.T) {
	w := startAccess(t)
	id, _ := w.tenant("demo")
	bob := w.member(id, "usr_bob", clusterv1.Viewer)
	seconds := func(n int64) *int64 { return &n }
	readOnly := alice
	readOnly.ReadOnly = true
	narrowed := alice
	narrowed.Clusters = []string{"cl_zzzzzzzzzzzzzzzzzzzz"}
	stranger := contract.Principal{UserID: "usr_stranger", Role: contract.RoleUser}
	for what, c := range map[string]struct {
		p      contract.Principal
		id     string
		access clusterv1.Access
		ttl    *int64
		kind   fault.Kind
		code   string
	}{
		"more than one has":        {bob, id, clusterv1.Editor, nil, fault.Forbidden, "cluster_access_insufficient"},
		"all":                      {bob, id, clusterv1.Owner, nil, fault.Forbidden, "cluster_access_insufficient"},
		"no such access":           {bob, id, "root", nil, fault.Invalid, "access_unknown"},
		"too short":                {bob, id, "", seconds(599), fault.Invalid, "kubeconfig_ttl_invalid"},
		"too long":                 {bob, id, "", seconds(24*3600 + 1), fault.Invalid, "kubeconfig_ttl_invalid"},
		"negative":                 {bob, id, "", seconds(-1 << 62), fault.Invalid, "kubeconfig_ttl_invalid"},
		"too short by a stranger":  {stranger, id, "", seconds(1), fault.NotFound, "cluster_not_found"},
		"a stranger":               {stranger, id, "", nil, fault.NotFound, "cluster_not_found"},
		"no such cluster":          {alice, "cl_zzzzzzzzzzzzzzzzzzzz", "", nil, fault.NotFound, "cluster_not_found"},
		"no id":                    {alice, "x\x00", "", nil, fault.NotFound, "cluster_not_found"},
		"narrowed to another":      {narrowed, id, "", nil, fault.NotFound, "cluster_not_found"},
		"by what may only read":    {readOnly, id, clusterv1.Viewer, nil, fault.Forbidden, "read_only"},
		"the shortest that may be": {bob, id, "", seconds(600), "", ""},
		"the longest that may be":  {bob, id, "", seconds(24 * 3600), "", ""},
	} {
		_, err := ask(t, w.conn, c.p, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: c.id, Access: c.access, TTLSeconds: c.ttl})
		if codeOf(err) != c.code || err != nil && !fault.Is(err, c.kind) {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
	if n := len(w.list(alice, id)); n != 2 {
		t.Errorf("%d were made", n)
	}
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO kubeconfigs (id, cluster_id, user_id, identity, access, created_at, expires_at, issued, next_try)
		SELECT 'kc_' || i, $1, 'usr_bob', 'i' || i, 'viewer', now(), now() + interval '1 hour', true, now() FROM generate_series(1, 18) i`, id); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, w.conn, bob, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id}); codeOf(err) != "too_many_kubeconfigs" || !fault.Is(err, fault.Conflict) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := w.pool.Exec(t.Context(), `UPDATE clusters SET status = 'error' WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, w.conn, alice, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id}); codeOf(err) != "cluster_not_ready" || !strings.Contains(err.Error(), `"demo" is error`) {
		t.Errorf("a cluster in error: %v", err)
	}
	// What is known of them goes with the cluster.
	if _, err := w.pool.Exec(t.Context(), `DELETE FROM clusters WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM kubeconfigs`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d of no cluster, %v", n, err)
	}
}

// A tenant that is away keeps nobody waiting, and revocation is not forgotten.
func TestPersonalKubeconfigOfATenantThatIsAway(t *testing.T) {
	w := startAccess(t)
	id, at := w.tenant("demo")
	made := w.make(alice, id, clusterv1.Owner)
	w.works(made.Kubeconfig)
	for _, how := range []string{"silent", "shut"} {
		at.be(how)
		began := time.Now()
		_, err := ask(t, w.conn, alice, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id})
		if f := fault.From(err); f.Code != "tenant_unreachable" || f.Kind != fault.Unavailable || !strings.Contains(f.Message, `"demo"`) || f.Action == "" || time.Since(began) > 5*time.Second {
			t.Errorf("%s: after %s: %v", how, time.Since(began), err)
		}
	}
	if n := len(w.list(alice, id)); n != 1 {
		t.Errorf("%d are listed, one was handed out", n)
	}
	at.be("silent")
	began := time.Now()
	going, err := w.revoke(alice, id, made.ID)
	if err != nil || going.State != clusterv1.KubeconfigRevoking || time.Since(began) > 5*time.Second {
		t.Errorf("after %s: %+v, %v", time.Since(began), going, err)
	}
	if state := w.state(id, made.ID); state != clusterv1.KubeconfigRevoking {
		t.Errorf("it is %s", state)
	}
	at.be("")
	eventually(t, 30*time.Second, "the revocation", func() bool { return w.state(id, made.ID) == clusterv1.KubeconfigRevoked })
	w.refused(made.Kubeconfig)
	if left := w.left(made.Identity); len(left) > 0 {
		t.Errorf("left in the tenant: %v", left)
	}
	// Those that were not handed out leave nothing.
	eventually(t, 30*time.Second, "the rest to be cleared", func() bool {
		var n int
		return w.pool.QueryRow(t.Context(), `SELECT count(*) FROM kubeconfigs WHERE NOT issued`).Scan(&n) == nil && n == 0
	})
}

func TestLosingTheAccessRevokes(t *testing.T) {
	w := startAccess(t)
	id, at := w.tenant("demo")
	other, _ := w.tenant("other")
	bob := w.member(id, "usr_bob", clusterv1.Owner)
	w.member(other, "usr_bob", clusterv1.Owner)
	viewer, editor, owner := w.make(bob, id, clusterv1.Viewer), w.make(bob, id, clusterv1.Editor), w.make(bob, id, clusterv1.Owner)
	elsewhere, alices := w.make(bob, other, clusterv1.Owner), w.make(alice, id, clusterv1.Owner)
	for _, made := range []clusterv1.CreateKubeconfigResponse{viewer, owner, elsewhere, alices} {
		w.works(made.Kubeconfig)
	}
	revoked := func(made ...clusterv1.CreateKubeconfigResponse) {
		t.Helper()
		for _, one := range made {
			eventually(t, 15*time.Second, "the revocation of "+string(one.Access), func() bool { return w.state(one.ClusterID, one.ID) == clusterv1.KubeconfigRevoked })
			w.refused(one.Kubeconfig)
			if left := w.left(one.Identity); len(left) > 0 {
				t.Errorf("left in the tenant: %v", left)
			}
		}
	}
	w.member(id, "usr_bob", clusterv1.Editor)
	revoked(owner)
	if state := w.state(id, editor.ID); state != clusterv1.KubeconfigActive {
		t.Errorf("an editor's is %s", state)
	}
	at.be("silent") // while nobody can tell the tenant
	w.member(id, "usr_bob", clusterv1.Viewer)
	if state := w.state(id, editor.ID); state != clusterv1.KubeconfigRevoking {
		t.Errorf("an editor's is %s", state)
	}
	at.be("")
	revoked(editor)
	w.works(viewer.Kubeconfig)
	if err := removeMember(t, w.conn, alice, id, "usr_bob"); err != nil {
		t.Fatal(err)
	}
	revoked(viewer)
	for _, k := range w.list(alice, id) {
		if k.UserID == "usr_bob" && (k.RevokedBy != "" || k.RevokedAt == nil) {
			t.Errorf("revoked by %q at %v", k.RevokedBy, k.RevokedAt)
		}
	}
	w.works(elsewhere.Kubeconfig)

	// The account is gone: in every cluster.
	w.member(id, "usr_bob", clusterv1.Viewer)
	second := w.make(bob, id, clusterv1.Viewer)
	narrowed, readOnly := admin, admin
	narrowed.Clusters, readOnly.ReadOnly = []string{id}, true
	for _, p := range []contract.Principal{alice, bob, narrowed, readOnly} {
		if _, err := ask(t, w.conn, p, clusterv1.RevokeKubeconfigsOf, clusterv1.RevokeKubeconfigsOfRequest{UserID: "usr_bob"}); codeOf(err) != "admin_required" || !fault.Is(err, fault.Forbidden) {
			t.Errorf("by %+v: %v", p, err)
		}
	}
	if _, err := ask(t, w.conn, admin, clusterv1.RevokeKubeconfigsOf, clusterv1.RevokeKubeconfigsOfRequest{UserID: "' --\x00"}); codeOf(err) != "user_id_invalid" {
		t.Errorf("no id: %v", err)
	}
	for _, want := range []int{2, 0} {
		if got, err := ask(t, w.conn, admin, clusterv1.RevokeKubeconfigsOf, clusterv1.RevokeKubeconfigsOfRequest{UserID: "usr_bob"}); err != nil || got.Revoked != want {
			t.Errorf("%d were revoked, not %d: %v", got.Revoked, want, err)
		}
	}
	revoked(second, elsewhere)
	w.works(alices.Kubeconfig)
}

// One that has expired is taken from the tenant, is listed for a while, and cannot be revoked any more.
func TestPersonalKubeconfigExpires(t *testing.T) {
	w := startAccess(t)
	id, _ := w.tenant("demo")
	made := w.make(alice, id, clusterv1.Owner)
	w.works(made.Kubeconfig)
	if _, err := w.pool.Exec(t.Context(), `UPDATE kubeconfigs SET expires_at = now() WHERE id = $1`, made.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, "its end in the tenant", func() bool { return len(w.left(made.Identity)) == 0 })
	if got, err := w.revoke(alice, id, made.ID); err != nil || got.State != clusterv1.KubeconfigExpired || got.RevokedAt != nil {
		t.Errorf("%+v, %v", got, err)
	}
	w.refused(made.Kubeconfig)
	if state := w.state(id, made.ID); state != clusterv1.KubeconfigExpired {
		t.Errorf("it is %s", state)
	}
}

// Whatever the order in which making, losing and removing come: nobody who is no member is left with one that works.
func TestPersonalKubeconfigRaces(t *testing.T) {
	w := startAccess(t)
	id, _ := w.tenant("demo")
	const users, each = 4, 3
	var mu sync.Mutex
	var got []clusterv1.CreateKubeconfigResponse
	var all sync.WaitGroup
	for n := range users {
		bob := w.member(id, fmt.Sprintf("usr_%d", n), clusterv1.Owner)
		for range each {
			all.Go(func() {
				made, err := ask(t, w.conn, bob, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id, Access: clusterv1.Owner})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					got = append(got, made)
				} else if code := codeOf(err); code != "cluster_not_found" && code != "kubeconfig_revoked" {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if n%2 == 0 { // two in the middle, two at the end
				time.Sleep(time.Duration(n) * 20 * time.Millisecond)
			}
			if err := removeMember(t, w.conn, alice, id, bob.UserID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	eventually(t, 30*time.Second, "all revocations", func() bool {
		var n int
		return w.pool.QueryRow(t.Context(), `SELECT count(*) FROM kubeconfigs WHERE NOT gone`).Scan(&n) == nil && n == 0
	})
	for _, made := range got {
		w.refused(made.Kubeconfig)
		if left := w.left(made.Identity); len(left) > 0 {
			t.Errorf("left in the tenant: %v", left)
		}
	}
	// Of the account that is revoked twenty times at once, each state is told truly.
	made := w.make(alice, id, clusterv1.Owner)
	w.works(made.Kubeconfig)
	for range 8 {
		all.Go(func() {
			if k, err := w.revoke(alice, id, made.ID); err != nil || k.State != clusterv1.KubeconfigRevoked {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	all.Wait()
	w.refused(made.Kubeconfig)
}

// What a tenant put into its kubeconfig is neither run, read, followed nor passed on.
func TestAHostileKubeconfigIsNotPassedOn(t *testing.T) {
	w := startAccess(t)
	id, at := w.tenant("demo")
	var namespace string
	if err := w.pool.QueryRow(t.Context(), `SELECT namespace FROM clusters WHERE id = $1`, id).Scan(&namespace); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "ran")
	ca, cert, key := base64.StdEncoding.EncodeToString(w.rest.CAData), base64.StdEncoding.EncodeToString(w.rest.CertData), base64.StdEncoding.EncodeToString(w.rest.KeyData)
	text := func(cluster, user, more string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a","extensions":[{"name":"canary","extension":{"canary":1}}],
			"contexts":[{"name":"a","context":{"cluster":"a","user":"a","namespace":"canary"}},{"name":"canary","context":{"cluster":"canary","user":"canary"}}],
			"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q%s}},{"name":"canary","cluster":{"server":"https://canary.example.com","certificate-authority-data":%q}}],
			"users":[{"name":"a","user":{"client-certificate-data":%q,"client-key-data":%q%s}},{"name":"canary","user":{"token":"canary"%s}}]}`,
			at.url, ca, cluster, ca, cert, key, user, more)
	}
	both := func() (personal, administrators string, err error) {
		made, err := ask(t, w.conn, alice, clusterv1.CreateKubeconfig, clusterv1.CreateKubeconfigRequest{ID: id})
		got, err2 := ask(t, w.conn, alice, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: id})
		if codeOf(err) != codeOf(err2) {
			t.Errorf("%v, but %v", err, err2)
		}
		return made.Kubeconfig, got.Kubeconfig, err
	}
	w.export(namespace, "demo", text("", "", ""))
	personal, administrators, err := both()
	if err != nil || personal == "" || administrators == "" || strings.Contains(personal+administrators, "canary") {
		t.Errorf("several contexts: %v, passed on: %v", err, strings.Contains(personal+administrators, "canary"))
	}
	if strings.Contains(personal, key) || !strings.Contains(administrators, key) {
		t.Error("a personal one holds the administrator's key, or the administrator's does not")
	}
	run := fmt.Sprintf(`,"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"touch","args":[%q],"interactiveMode":"Never"}`, mark)
	for what, config := range map[string][]byte{
		"exec":                    text("", run, ""),
		"exec of another user":    text("", "", run),
		"auth-provider":           text("", `,"auth-provider":{"name":"canary"}`, ""),
		"a token of a file":       text("", `,"tokenFile":"/etc/canary"`, ""),
		"a key of a file":         text("", `,"client-key":"/etc/canary"`, ""),
		"a CA of a file":          text(`,"certificate-authority":"/etc/canary"`, "", ""),
		"a proxy":                 text(`,"proxy-url":"http://canary.example.com"`, "", ""),
		"an unchecked connection": text(`,"insecure-skip-tls-verify":true`, "", ""),
		"an impersonation":        text("", `,"as":"canary"`, ""),
		"no kubeconfig":           []byte("canary"),
	} {
		w.export(namespace, "demo", config)
		personal, administrators, err := both()
		if f := fault.From(err); codeOf(err) != "kubeconfig_broken" || personal != "" || administrators != "" || strings.Contains(f.Message+f.Action, "canary") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Errorf("it was run: %v", err)
	}
}

// A sweep whose process was killed in the middle, and rows that were never handed out, are taken up.
func TestUnfinishedKubeconfigsAreCleared(t *testing.T) {
	w := startAccess(t)
	id, _ := w.tenant("demo")
	made := w.make(alice, id, clusterv1.Owner)
	name := made.Identity[strings.LastIndex(made.Identity, ":")+1:]
	if _, err := w.pool.Exec(t.Context(), `UPDATE kubeconfigs SET issued = false, created_at = now() - interval '50 seconds' WHERE id = $1`, made.ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // it may still be handed out
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if len(w.left(made.Identity)) != 2 {
			t.Fatal("taken from under whoever makes it")
		}
	}
	if _, err := w.pool.Exec(t.Context(), `UPDATE kubeconfigs SET created_at = now() - interval '2 minutes' WHERE id = $1`, made.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, "the end of "+name, func() bool {
		var n int
		return len(w.left(made.Identity)) == 0 && w.pool.QueryRow(t.Context(), `SELECT count(*) FROM kubeconfigs`).Scan(&n) == nil && n == 0
	})
}
