package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

const (
	// edgeServices share the clusters of this phase, so that not every connection is to one and the same port.
	edgeServices = 16
	handshakes   = 200 // of each kind, in each round
	additions    = 7
	manyAtOnce   = 100
	edgePatience = 3 * time.Minute
)

// edgeWorld is what stands around an edge process here: a bus of its own on which it plays the cluster service, and one TLS server
// behind node ports, which answers for every domain.
type edgeWorld struct {
	*bench
	conn    *nats.Conn
	bus     string
	dsn     string               // of a database of its own: in the product's another edge has the lock
	direct  [edgeServices]string // host node:node port
	changed func(clusterv1.ChangedEvent)

	mu      sync.Mutex
	routes  int
	serving map[string]bool
}

func edgeCluster(n int) string { return fmt.Sprintf("cl_%020d", n) }
func edgeDomain(n int) string  { return fmt.Sprintf("r%d.bench.example.com", n) }

// edge measures what HAProxy and the edge service cost, at 10, 1,000 and 10,000 routes.
func (b *bench) edge(ctx context.Context) error {
	w, err := b.newEdgeWorld(ctx)
	if err != nil {
		return err
	}
	defer w.conn.Close()
	for _, routes := range []int{10, 1000, 10_000} {
		if err := w.measure(ctx, routes); err != nil {
			return fmt.Errorf("%d routes: %w", routes, err)
		}
	}
	return nil
}

func (b *bench) newEdgeWorld(ctx context.Context) (*edgeWorld, error) {
	w := &edgeWorld{bench: b, serving: map[string]bool{}}
	at, err := free(ctx, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	w.bus = "nats://" + at
	// The embedded server of kubebyon-api is its own: this phase has another cluster service.
	if err := b.tool(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.bin("nats-server"), "github.com/nats-io/nats-server/v2"); err != nil {
		return nil, err
	}
	if _, err := b.start("nats-edge", b.bin("nats-server"), nil, "--addr", "127.0.0.1", "--port", at[len("127.0.0.1:"):]); err != nil {
		return nil, err
	}
	if w.dsn, err = b.ownDatabase(ctx); err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	if w.conn, err = rpc.Connect(ctx, rpc.NATS{NATSURL: w.bus}, "bench", quiet); err != nil {
		return nil, err
	}
	w.changed = rpc.Publish(w.conn, clusterv1.Changed, quiet)
	server := rpc.NewServer(w.conn, rpc.Options{Service: "cluster", Log: quiet})
	rpc.Serve(server, clusterv1.Published, w.published)
	rpc.Serve(server, clusterv1.ReportEdge, w.report)
	if err := server.Start(); err != nil { //nolint:contextcheck // each call has a context of its own
		return nil, err
	}
	return w, w.serve(ctx)
}

func (b *bench) ownDatabase(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, b.database.DSN())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE edge"); err != nil {
		return "", err
	}
	dsn, err := url.Parse(b.database.DSN())
	if err != nil {
		return "", err
	}
	dsn.Path = "/edge"
	return dsn.String(), nil
}

// serve starts the TLS server and puts the node port before it.
func (w *edgeWorld) serve(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"*.bench.example.com"}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	gateway := w.layout.Net.Gateway().String()
	listener, err := tls.Listen("tcp", net.JoinHostPort(gateway, "0"), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}) //nolint:gosec // the defaults are what a kube-apiserver has
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 1)) // shakes hands, and waits for the other's end
			}()
		}
	}()
	port := int32(listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	for i := range w.direct {
		if w.direct[i], err = w.nodePort(ctx, edgeService(i), gateway, port); err != nil {
			return err
		}
	}
	return within(ctx, func() error { _, err := shake(ctx, w.direct[edgeServices-1], edgeDomain(0)); return err })
}

func edgeService(n int) string { return fmt.Sprintf("bench-edge-%d", n%edgeServices) }

// nodePort leads a node port to port at addr, and gives its address on the host node.
func (w *edgeWorld) nodePort(ctx context.Context, service, addr string, port int32) (string, error) {
	made, err := w.host.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	name, ready := "https", true
	_, err = w.host.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}, metav1.CreateOptions{})
	return net.JoinHostPort(w.layout.Net.Host().String(), strconv.Itoa(int(made.Spec.Ports[0].NodePort))), err
}

func (w *edgeWorld) published(_ context.Context, req clusterv1.PublishedRequest) (clusterv1.PublishedResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := clusterv1.PublishedResponse{Clusters: []clusterv1.PublishedCluster{}}
	for n := range w.routes {
		id := edgeCluster(n)
		switch {
		case id <= req.After:
		case len(out.Clusters) == clusterv1.MaxPublished:
			out.More = true
			return out, nil
		default:
			out.Clusters = append(out.Clusters, clusterv1.PublishedCluster{ID: id, Host: edgeDomain(n), VClusterName: edgeService(n), Namespace: metav1.NamespaceDefault, Status: clusterv1.Ready})
		}
	}
	return out, nil
}

func (w *edgeWorld) report(_ context.Context, req clusterv1.ReportEdgeRequest) (clusterv1.ReportEdgeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range req.Reports {
		w.serving[r.ID] = r.State == clusterv1.EdgeServing
	}
	return clusterv1.ReportEdgeResponse{}, nil
}

// publish makes so many routes wanted, and tells it.
func (w *edgeWorld) publish(routes int) {
	w.mu.Lock()
	w.routes = routes
	w.mu.Unlock()
	w.changed(clusterv1.ChangedEvent{ID: edgeCluster(routes)})
}

func (w *edgeWorld) proved() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, yes := range w.serving {
		if yes {
			n++
		}
	}
	return n
}

func (w *edgeWorld) measure(ctx context.Context, routes int) error {
	w.mu.Lock()
	w.routes, w.serving = routes, map[string]bool{}
	w.mu.Unlock()
	through, err := free(ctx, "127.0.0.1")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("kubebyon-edge-%d", routes)
	dir := w.file("haproxy-" + strconv.Itoa(routes))
	began := time.Now()
	process, err := w.start(name, w.bin("kubebyon-edge"), append(w.settings(), "KUBEBYON_DATABASE_DSN="+w.dsn, "KUBEBYON_NATS_URL="+w.bus, "KUBEBYON_HAPROXY_BIND_ADDR="+through, "KUBEBYON_HAPROXY_STATE_DIR="+dir))
	if err != nil {
		return err
	}
	last := edgeDomain(routes - 1)
	if err := within(ctx, func() error { _, err := shake(ctx, through, last); return err }); err != nil {
		return err
	}
	synced := time.Since(began)
	if err := within(ctx, func() error {
		if n := w.proved(); n < routes {
			return fmt.Errorf("%d proved", n)
		}
		return nil
	}); err != nil {
		return err
	}
	proved := time.Since(began)
	if routes == 1000 {
		w.bench.report.add(atMost("first sync of 1,000 routes", samples{synced.Seconds()}, 2, "s",
			"from the start of `kubebyon-edge`, HAProxy not running, to the first handshake with the last of the domains; the benchmark answers for the cluster service"))
	}
	w.bench.report.comment("The edge at %d routes: HAProxy serves them %.1f s after the edge's start, all are proved after %.1f s; HAProxy then takes %s MiB.", routes, synced.Seconds(), proved.Seconds(), w.memory(ctx))
	if err := w.compare(ctx, through, routes); err != nil {
		return err
	}
	if routes == 1000 {
		if err := w.change(ctx, through, filepath.Join(w.layout.State, name+".log")); err != nil {
			return err
		}
	}
	return process.stop()
}

// compare sets up connections by turns through HAProxy and past it.
func (w *edgeWorld) compare(ctx context.Context, through string, routes int) error {
	var ours, raw samples
	for round := range loadRounds + 1 {
		var took [2]samples
		for i := range handshakes {
			n := (i * 7919) % routes
			for j, addr := range []string{through, w.direct[n%edgeServices]} {
				d, err := shake(ctx, addr, edgeDomain(n))
				if err != nil {
					return fmt.Errorf("a handshake at %s: %w", addr, err)
				}
				took[j] = append(took[j], d.Seconds()*1000)
			}
		}
		if round > 0 {
			ours, raw = append(ours, took[0].median()), append(raw, took[1].median())
		}
	}
	mode := "a rule per route"
	if routes > 250 {
		mode = "one map"
	}
	w.bench.report.add(against(fmt.Sprintf("a connection through the edge at %d routes, p50", routes), ours, raw, 1.5, "ms",
		fmt.Sprintf("TCP and TLS handshake through HAProxy (%s) against the same to the host's node port, one client, by turns, each the p50 of %d", mode, handshakes)))
	return nil
}

// change adds single routes, and then a hundred within a second.
func (w *edgeWorld) change(ctx context.Context, through, log string) error {
	var added samples
	for range additions {
		if err := settle(ctx, 2*time.Second); err != nil {
			return err
		}
		w.mu.Lock()
		n := w.routes
		w.mu.Unlock()
		began := time.Now()
		w.publish(n + 1)
		if err := within(ctx, func() error { _, err := shake(ctx, through, edgeDomain(n)); return err }); err != nil {
			return err
		}
		added = append(added, time.Since(began).Seconds())
	}
	w.bench.report.add(atMost("a route more at 1,000", added, 1, "s",
		"from the event that the cluster service publishes when a `PATCH` is stored to the first handshake with the new domain"))
	if err := settle(ctx, 2*time.Second); err != nil {
		return err
	}
	before, err := reloads(log)
	if err != nil {
		return err
	}
	w.mu.Lock()
	n := w.routes
	w.mu.Unlock()
	for i := range manyAtOnce {
		w.publish(n + i + 1)
		if err := settle(ctx, time.Second/manyAtOnce); err != nil {
			return err
		}
	}
	if err := within(ctx, func() error { _, err := shake(ctx, through, edgeDomain(n+manyAtOnce-1)); return err }); err != nil {
		return err
	}
	if err := settle(ctx, 3*time.Second); err != nil {
		return err
	}
	after, err := reloads(log)
	if err != nil {
		return err
	}
	w.bench.report.add(atMost("reloads for 100 changes in a second", samples{float64(after - before)}, 3, "reloads", "100 clusters published one after the other within a second, at 1,000 routes, as the edge's log has it"))
	return nil
}

// reloads counts what the edge says of HAProxy's.
func reloads(log string) (int, error) {
	text, err := os.ReadFile(log)
	return bytes.Count(text, []byte("reloaded=true")), err
}

// memory is what all of HAProxy's processes take, as text.
func (w *edgeWorld) memory(ctx context.Context) string {
	status, err := rpc.Client(w.conn, edgev1.Status)(ctx, edgev1.StatusRequest{})
	if err != nil {
		return "?"
	}
	total := 0.0
	for _, worker := range status.Workers {
		if mib, err := pss(int(worker.PID)); err == nil {
			total += mib
		}
	}
	return number(total)
}

// shake sets a connection up, as a client of the domain does, and gives how long that took.
func shake(ctx context.Context, addr, domain string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: &tls.Config{ServerName: domain, InsecureSkipVerify: true}} //nolint:gosec // whose certificate it is costs the same
	began := time.Now()
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, conn.Close()
}

// within tries until it succeeds; what is waited for is measured, so it tries often.
func within(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, edgePatience)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return nil
		}
		if settleErr := settle(ctx, 5*time.Millisecond); settleErr != nil {
			return errors.Join(settleErr, err)
		}
	}
}
