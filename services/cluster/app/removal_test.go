package app

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestDeletionProtection(t *testing.T) {
	conn, pool := startService(t)
	c, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "kept", ControlPlaneHost: "k8s.example.com", DeletionProtection: true})
	if err != nil || !c.DeletionProtection {
		t.Fatalf("%+v, %v", c, err)
	}
	if newCluster(t, conn, alice, "plain").DeletionProtection {
		t.Error("protected without being asked for")
	}
	var generation int64
	row := func() (now int64) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT generation FROM clusters WHERE id = $1`, c.ID).Scan(&now); err != nil {
			t.Fatal(err)
		}
		return now
	}
	generation = row()
	for _, p := range []contract.Principal{alice, admin} {
		_, err := ask(t, conn, p, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID})
		if f := fault.From(err); codeOf(err) != "deletion_protected" || f.Kind != fault.Precondition || !strings.Contains(f.Action, "deletion_protection false") {
			t.Errorf("deleted by %s: %v, do %q", p.UserID, err, f.Action)
		}
	}
	if _, err := ask(t, conn, bob, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); codeOf(err) != "cluster_not_found" {
		t.Errorf("a stranger learns of it: %v", err)
	}
	// An editor may leave it as it is, or unprotected what is not protected, and change other things beside.
	if err := setMember(t, conn, alice, c.ID, bob.UserID, clusterv1.Editor); err != nil {
		t.Fatal(err)
	}
	if _, err := protect(t, conn, bob, c.ID, true); err != nil {
		t.Error(err)
	}
	name, no, yes := "renamed", false, true
	if _, err := ask(t, conn, bob, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, Name: &name, DeletionProtection: &no}); codeOf(err) != "cluster_access_insufficient" {
		t.Errorf("an editor takes the protection away: %v", err)
	}
	if got := get(t, conn, c.ID); got.Name != "kept" || !got.DeletionProtection {
		t.Errorf("half of a refused change: %+v", got)
	}
	if _, err := protect(t, conn, alice, c.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := protect(t, conn, bob, c.ID, false); err != nil {
		t.Error(err)
	}
	if got, err := ask(t, conn, bob, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, Name: &name, DeletionProtection: &yes}); err != nil || got.Name != name || !got.DeletionProtection {
		t.Errorf("%+v, %v", got, err)
	}
	if now := row(); now != generation {
		t.Errorf("the protection made work: generation %d after %d", now, generation)
	}
	events, err := ask(t, conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: c.ID})
	var told []string
	for _, e := range events.Events {
		if strings.HasSuffix(e.Code, "protected") {
			told = append(told, e.Code+": "+e.Message)
		}
	}
	if got := strings.Join(told, " | "); err != nil || got != "unprotected: no longer protected from deletion | protected: protected from deletion; the name was changed" {
		t.Errorf("told %q, %v", got, err)
	}
	// What is going is not protected any more.
	if _, err := protect(t, conn, alice, c.ID, false); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil || got.Status != clusterv1.Deleting {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := protect(t, conn, alice, c.ID, true); codeOf(err) != "cluster_deleting" {
		t.Errorf("protected while it is deleted: %v", err)
	}
}

func TestRemoval(t *testing.T) {
	world := startHosted(t)
	for name, test := range map[string]func(*hosted){
		"twice at once, and the same name again": removedTwiceAndMadeAgain,
		"a finalizer that never goes":            heldByAFinalizer,
		"a namespace of another's":               removedFromAnothersNamespace,
		"a release of another's":                 anothersRelease,
		"a namespace that is gone":               removedByHand,
		"a route":                                waitsForTheRoute,
		"an edge that says nothing":              edgeSaysNothing,
		"join tokens":                            waitsForTheTokens,
		"workers":                                tellsTheWorkers,
	} {
		t.Run(name, func(t *testing.T) { test(world.in(t)) })
	}
}

func removedTwiceAndMadeAgain(w *hosted) {
	c := w.installed(clusterv1.CreateRequest{Name: "again"})
	before, err := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Get(w.Context(), "data-again-0", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 { // while it is provisioned
		all.Go(func() { w.remove(c.ID) })
	}
	all.Wait()
	if told := w.timeline(c.ID); strings.Count(told, "delete_requested") > 1 {
		w.Errorf("asked for more than once:\n%s", told)
	}
	// Whoever wants the name has to wait; then nothing of the old one is there.
	var again clusterv1.Cluster
	eventually(w.T, 30*time.Second, "the name", func() bool {
		again, err = ask(w.T, w.conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "again", ControlPlaneHost: "127.0.0.1"})
		if code := codeOf(err); code != "" && code != "cluster_name_taken" {
			w.Fatal(err)
		}
		return err == nil
	})
	if !w.gone(c.ID) || again.Namespace != "again" {
		w.Errorf("made beside the old one: %+v", again)
	}
	eventually(w.T, 30*time.Second, "the new claim", func() bool {
		now, err := w.kube.CoreV1().PersistentVolumeClaims(again.Namespace).Get(w.Context(), "data-again-0", metav1.GetOptions{})
		return err == nil && now.UID != before.UID && now.DeletionTimestamp == nil
	})
	w.remove(again.ID)
	w.untilGone(again)
	w.noNamespace("again")
	if w.tokens.times(c.ID) < 2 {
		w.Errorf("its join tokens were ended %d times", w.tokens.times(c.ID))
	}
}

func heldByAFinalizer(w *hosted) {
	const finalizer = "example.com/never"
	held := w.installed(clusterv1.CreateRequest{Name: "held"})
	claims, maps := w.kube.CoreV1().PersistentVolumeClaims(held.Namespace), w.kube.CoreV1().ConfigMaps(held.Namespace)
	if _, err := claims.Create(w.Context(), claim("held", finalizer), metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	if _, err := maps.Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{finalizer}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.remove(held.ID)
	w.shows(held.ID, "PersistentVolumeClaim held (it is going; held by the finalizer "+finalizer+")")
	lines := strings.Split(strings.TrimSpace(w.left(held.ID)), "\n")
	if last := lines[len(lines)-1]; last != "Namespace held ()" {
		w.Errorf("what goes last stands last: %q", lines)
	}
	var why *clusterv1.Reason
	eventually(w.T, 20*time.Second, "the deadline", func() bool {
		why = get(w.T, w.conn, held.ID).Reason
		return why != nil && why.Code == "delete_incomplete"
	})
	if !strings.Contains(why.Message, "not done after 10s") || !strings.Contains(why.Message, finalizer) || why.Action == "" {
		w.Errorf("%+v", why)
	}
	// It goes on, and no other cluster waits for it.
	for range 2 {
		other := w.installed(clusterv1.CreateRequest{Name: "beside"})
		w.remove(other.ID)
		w.untilGone(other)
	}
	told := w.timeline(held.ID)
	if n := strings.Count(told, "delete_waiting"); n > 3 {
		w.Errorf("told %d times:\n%s", n, told)
	}
	loose := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := claims.Patch(w.Context(), "held", "application/merge-patch+json", loose, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	w.shows(held.ID, "Namespace held (it is going: ")
	w.shows(held.ID, finalizer)
	if _, err := maps.Patch(w.Context(), "held", "application/merge-patch+json", loose, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	w.untilGone(held)
	w.noNamespace("held")
}

// disown makes a cluster's namespace one that KubeBYON did not make, with something of another's in it.
func (w *hosted) disown(c clusterv1.Cluster) {
	w.Helper()
	strip := []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null,"kubebyon.io/cluster-id":null}}}`)
	if _, err := w.kube.CoreV1().Namespaces().Patch(w.Context(), c.Namespace, "application/merge-patch+json", strip, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	if _, err := w.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Create(w.Context(), claim("theirs"), metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	for name, labels := range map[string]map[string]string{"theirs": nil, "ours": {"app.kubernetes.io/managed-by": "kubebyon", "kubebyon.io/cluster-id": c.ID}} {
		if _, err := w.kube.CoreV1().Secrets(c.Namespace).Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
}

// there is what the namespace holds, of the kinds that a control plane consists of.
func (w *hosted) there(namespace string) string {
	w.Helper()
	var out []string
	sets, err := w.kube.AppsV1().StatefulSets(namespace).List(w.Context(), metav1.ListOptions{})
	for i := range sets.Items {
		out = append(out, "StatefulSet "+sets.Items[i].Name)
	}
	pods, err2 := w.kube.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{})
	for i := range pods.Items {
		out = append(out, "Pod "+pods.Items[i].Name)
	}
	claims, err3 := w.kube.CoreV1().PersistentVolumeClaims(namespace).List(w.Context(), metav1.ListOptions{})
	for i := range claims.Items {
		out = append(out, "claim "+claims.Items[i].Name)
	}
	secrets, err4 := w.kube.CoreV1().Secrets(namespace).List(w.Context(), metav1.ListOptions{})
	for i := range secrets.Items {
		out = append(out, "Secret "+secrets.Items[i].Name)
	}
	services, err5 := w.kube.CoreV1().Services(namespace).List(w.Context(), metav1.ListOptions{})
	for i := range services.Items {
		out = append(out, "Service "+services.Items[i].Name)
	}
	for _, err := range []error{err, err2, err3, err4, err5} {
		if err != nil {
			w.Fatal(err)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func removedFromAnothersNamespace(w *hosted) {
	c := w.installed(clusterv1.CreateRequest{Name: "foreign"})
	w.disown(c)
	w.remove(c.ID)
	w.untilGone(c)
	if got := w.there(c.Namespace); got != "Secret theirs, claim theirs" {
		w.Errorf("left are %s", got)
	}
	if found := w.namespace(c.Namespace); found.DeletionTimestamp != nil {
		w.Error("the namespace goes")
	}
}

func anothersRelease(w *hosted) {
	c := w.installed(clusterv1.CreateRequest{Name: "theirs"})
	w.disown(c)
	theirs := []byte(`{"metadata":{"labels":{"kubebyon.io/cluster-id":null}}}`)
	if _, err := w.kube.CoreV1().Secrets(c.Namespace).Patch(w.Context(), "sh.helm.release.v1.theirs.v1", "application/merge-patch+json", theirs, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	before := w.there(c.Namespace)
	w.remove(c.ID)
	w.untilGone(c)
	if got := w.there(c.Namespace); got != strings.Replace(before, "Secret ours, ", "", 1) || !strings.Contains(got, "claim data-theirs-0") {
		w.Errorf("left are %s, of %s", got, before)
	}
}

func removedByHand(w *hosted) {
	c := w.installed(clusterv1.CreateRequest{Name: "byhand"})
	if err := w.kube.CoreV1().Namespaces().Delete(w.Context(), c.Namespace, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.remove(c.ID)
	w.untilGone(c)
	eventually(w.T, 30*time.Second, "the namespace to go", func() bool {
		_, err := w.kube.CoreV1().Namespaces().Get(w.Context(), c.Namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func waitsForTheRoute(w *hosted) {
	const domain = "routed.example.com"
	c := w.installed(clusterv1.CreateRequest{Name: "routed", ControlPlaneHost: domain, PublicAccessMode: clusterv1.LoadBalancer})
	say := func(state clusterv1.EdgeState, code string) {
		w.Helper()
		e := clusterv1.Edge{State: state}
		if code != "" {
			e.Reason = &clusterv1.Reason{Code: code, Message: "the edge says " + code}
		}
		if err := report(w.T, w.conn, clusterv1.EdgeReport{ID: c.ID, Host: domain, Edge: e}); err != nil {
			w.Fatal(err)
		}
	}
	say(clusterv1.EdgeServing, "")
	w.remove(c.ID)
	w.shows(c.ID, "Route "+domain+" (the edge has not said yet that it is gone)\n")
	say(clusterv1.EdgeFailed, "data_plane_unreachable")
	w.shows(c.ID, "Route "+domain+" (the edge says data_plane_unreachable)\n")
	if page := published(w.T, w.conn, ""); len(page.Clusters) != 1 || page.Clusters[0].Status != clusterv1.Deleting {
		w.Errorf("the edge is told %+v", page)
	}
	other := clusterv1.CreateRequest{Name: "other", ControlPlaneHost: domain, PublicAccessMode: clusterv1.LoadBalancer}
	if _, err := ask(w.T, w.conn, bob, clusterv1.Create, other); codeOf(err) != "control_plane_host_taken" {
		w.Errorf("the domain of a route that is there yet: %v", err)
	}
	eventually(w.T, 30*time.Second, "all else to go", func() bool { return strings.Count(w.left(c.ID), "\n") == 1 })
	say(clusterv1.EdgeSkipped, clusterv1.RouteRemoved)
	if told := w.timeline(c.ID); told != "" && !strings.Contains(told, "info route_removed") && !strings.Contains(told, "cluster_not_found") {
		w.Errorf("not told:\n%s", told)
	}
	w.untilGone(c)
}

func edgeSaysNothing(w *hosted) {
	const domain = "silent.example.com"
	c := w.installed(clusterv1.CreateRequest{Name: "silent", ControlPlaneHost: domain, PublicAccessMode: clusterv1.LoadBalancer})
	if err := report(w.T, w.conn, clusterv1.EdgeReport{ID: c.ID, Host: domain, Edge: clusterv1.Edge{State: clusterv1.EdgeServing}}); err != nil {
		w.Fatal(err)
	}
	deadline := w.remove(c.ID).Removal.Deadline
	w.untilGone(c)
	if early := time.Until(deadline); early > 0 {
		w.Errorf("gone %s before the deadline, and nobody knows whether the route is", early)
	}
}

func waitsForTheTokens(w *hosted) {
	c := w.installed(clusterv1.CreateRequest{Name: "tokens"})
	w.tokens.set(true)
	defer w.tokens.set(false)
	w.remove(c.ID)
	w.shows(c.ID, "JoinToken all (the tokens' database does not answer)\n")
	eventually(w.T, 30*time.Second, "the namespace to go", func() bool {
		_, err := w.kube.CoreV1().Namespaces().Get(w.Context(), c.Namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if w.gone(c.ID) {
		w.Error("gone before its tokens")
	}
	w.tokens.set(false)
	w.untilGone(c)
}

// tellsTheWorkers has the one API server as the tenant too.
func tellsTheWorkers(w *hosted) {
	for name, addresses := range map[string][]corev1.NodeAddress{
		"worker-1": {{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeInternalIP, Address: "198.18.0.9"}}, "worker-2": {{Type: corev1.NodeInternalIP, Address: "none"}},
	} {
		node, err := w.kube.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			w.Fatal(err)
		}
		defer func() { _ = w.kube.CoreV1().Nodes().Delete(w.Context(), name, metav1.DeleteOptions{}) }()
		node.Status.Addresses = addresses
		if _, err := w.kube.CoreV1().Nodes().UpdateStatus(w.Context(), node, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	joined := func(name string, silent bool) clusterv1.Cluster {
		w.Helper()
		c := w.installed(clusterv1.CreateRequest{Name: name})
		w.nodePort(c, silent)
		exported, err := w.kube.CoreV1().Secrets(c.Namespace).Get(w.Context(), "vc-"+name, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		exported.Data["config"] = kubeconfigOf(w.rest)
		if _, err := w.kube.CoreV1().Secrets(c.Namespace).Update(w.Context(), exported, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		if _, err := w.pool.Exec(w.Context(), `UPDATE clusters SET status = 'ready', api_endpoint = 'https://127.0.0.1:1', generation = generation + 1 WHERE id = $1`, c.ID); err != nil {
			w.Fatal(err)
		}
		return c
	}
	c := joined("joined", false)
	want := []clusterv1.Worker{{Name: "worker-1", InternalIP: "198.18.0.9"}, {Name: "worker-2"}}
	for range 2 { // the second one finds what the first one has stored
		if got := w.remove(c.ID).Removal.Workers; !slices.Equal(got, want) {
			w.Errorf("the machines are %+v", got)
		}
	}
	if told := w.timeline(c.ID); !strings.Contains(told, "warning workers_left: machines that had joined: worker-1, worker-2 [on each machine run kubebyon-leave") {
		w.Errorf("not told:\n%s", told)
	}
	w.untilGone(c)

	// A tenant that is silent keeps nobody waiting.
	c = joined("mute", true)
	began := time.Now()
	if got := w.remove(c.ID); len(got.Removal.Workers) != 0 || time.Since(began) > 4*time.Second {
		w.Errorf("%+v after %s", got.Removal, time.Since(began))
	}
	if told := w.timeline(c.ID); !strings.Contains(told, "warning workers_unknown: which machines had joined is not known: ") || !strings.Contains(told, "does not answer") {
		w.Errorf("not told:\n%s", told)
	}
	w.untilGone(c)
}
