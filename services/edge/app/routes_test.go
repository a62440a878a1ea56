package app_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

func TestRoutesFollow(t *testing.T) {
	w := newWorld(t)
	stop := w.edge()
	w.until("it has looked once", func() error {
		if w.status().LastSync == nil {
			return errors.New("it has not")
		}
		return nil
	})
	if pong, err := rpc.Client(w.conn, edgev1.PingMethod)(t.Context(), contract.Ping{}); err != nil || pong.Service != "edge" || pong.Version == "" {
		t.Errorf("%+v, %v", pong, err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "master.sock")); err == nil {
		t.Error("HAProxy runs without a route")
	}

	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "serving")
	w.answers("a.example.com", a.id)
	w.answers("A.Example.Com", a.id)
	w.refused("b.example.com")
	b, c := w.tenant(2, "b.example.com", "127.0.0.1"), w.tenant(3, "C.example.com.", "127.0.0.1")
	w.expect(b.id, "serving")
	w.expect(c.id, "failed/certificate_mismatch") // a name from before, whose certificate says otherwise
	w.answers("b.example.com", b.id)
	w.answers("a.example.com", a.id)
	w.publish(clusterv1.PublishedCluster{ID: clusterID(4), Host: "157.245.196.126", VClusterName: "old", Namespace: "old", Status: clusterv1.Ready})
	w.expect(clusterID(4), "skipped/host_is_ip")

	config, err := os.ReadFile(filepath.Join(w.dir, "haproxy.cfg"))
	if err != nil || !strings.Contains(string(config), "req.ssl_sni -i a.example.com") || strings.Contains(string(config), "157.245.196.126") {
		t.Errorf("%v\n%s", err, config)
	}

	// The node port changes, then the node's address; a connection that lives stays.
	conn, _, err := w.dial("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	other := w.serve("moved", "b.example.com", "127.0.0.1")
	services := w.kube.CoreV1().Services(metav1.NamespaceDefault)
	service, err := services.Get(t.Context(), "tenant-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service.Spec.Ports[1].NodePort = other.port
	if _, err := services.Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the new node port answers", func() error {
		conn, who, err := w.dial("b.example.com")
		if err != nil {
			return err
		}
		_ = conn.Close()
		if who != "moved" {
			return errors.New("it is still the old one")
		}
		return nil
	})
	if _, err := io.WriteString(conn, "still there\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("still there\n"))); err != nil {
		t.Errorf("a connection to another tenant broke: %v", err)
	}
	w.node("node-1", "127.0.0.3")
	w.expect(a.id, "failed/route_refused") // nothing listens there
	w.node("node-1", "127.0.0.1")
	w.expect(a.id, "serving")
	w.expect(b.id, "serving") // it moved with the same node, and is proved after it

	status := w.status()
	if status.DataPlane.Kind != "embedded" || status.DataPlane.API != "v2" || !strings.HasPrefix(status.DataPlane.HAProxy, "2.") && !strings.HasPrefix(status.DataPlane.HAProxy, "3.") ||
		status.Count.Routes != 4 || status.Count.Serving != 2 || status.Count.Skipped != 1 || len(status.Workers) == 0 || status.LastReload == nil || !status.LastReload.OK || status.BindAddr != w.bind {
		t.Errorf("%+v", status)
	}

	w.leave(b.id)
	w.expect(b.id, "skipped/route_removed")
	w.until("the route is gone", func() error {
		conn, _, err := w.dial("b.example.com")
		if err == nil {
			_ = conn.Close()
			return errors.New("it is there")
		}
		return nil
	})
	stop()
	w.refused("a.example.com")
}

// What is lost is made again from what is wanted.
func TestNothingIsLost(t *testing.T) {
	w := newWorld(t)
	stop := w.edge()
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "serving")

	for _, worker := range w.status().Workers { // HAProxy is killed
		_ = syscall.Kill(int(worker.PID), syscall.SIGKILL)
	}
	w.until("it is back", func() error {
		conn, _, err := w.dial("a.example.com")
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	stop()
	if err := os.Remove(filepath.Join(w.dir, "haproxy.cfg")); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	clear(w.shown)
	w.mu.Unlock()
	w.edge()
	w.expect(a.id, "serving")
	w.answers("a.example.com", a.id)
}

func TestThePortIsTaken(t *testing.T) {
	w := newWorld(t)
	thief := w.serve("thief", "a.example.com", "127.0.0.1")
	w.bind = thief.listener.Addr().String()
	w.edge()
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "failed/haproxy_reload_failed")
	if problem := w.status().Problem; problem == nil || problem.Code != "haproxy_reload_failed" {
		t.Errorf("%+v", problem)
	}
	_ = thief.listener.Close()
	w.expect(a.id, "serving")
}

func TestNoHAProxy(t *testing.T) {
	w := newWorld(t)
	w.edge("KUBEBYON_HAPROXY_BINARY", "/nowhere/haproxy")
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "failed/haproxy_missing")
	if problem := w.status().Problem; problem == nil || problem.Action == "" {
		t.Errorf("%+v", problem)
	}
}

func TestTheConsole(t *testing.T) {
	w := newWorld(t)
	console := w.serve("console", "console.example.com", "127.0.0.1")
	w.edge("KUBEBYON_CONSOLE_DOMAIN", "console.example.com", "KUBEBYON_CONSOLE_UPSTREAM", console.listener.Addr().String())
	w.until("HAProxy listens for it", func() error {
		if status := w.status(); len(status.Routes) != 1 || status.Routes[0].Domain != "console.example.com" || status.Routes[0].ClusterID != "" {
			return errors.New("no route")
		}
		return nil
	})
	config, err := os.ReadFile(filepath.Join(w.dir, "haproxy.cfg"))
	if err != nil || !strings.Contains(string(config), "send-proxy-v2") {
		t.Errorf("%v\n%s", err, config)
	}
	w.tenant(1, "console.example.com", "127.0.0.1")
	w.expect(clusterID(1), "skipped/domain_taken")
}
