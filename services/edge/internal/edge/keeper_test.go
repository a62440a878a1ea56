package edge

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// scene is everything around a Keeper, under a clock of its own. What a real HAProxy does with routes is tested where one is.
type scene struct {
	mu       sync.Mutex
	clusters []clusterv1.PublishedCluster
	worldErr error
	applyErr error
	routes   []Route // that HAProxy has
	changes  []time.Time
	broken   map[string]error // domain → what a probe says
	probes   int
	reports  []clusterv1.EdgeReport
	tellErr  error
}

func (s *scene) World(context.Context) (World, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return World{Clusters: slices.Clone(s.clusters), Nodes: []Node{node(1)}, Port: func(string, string) uint16 { return 30443 }}, s.worldErr
}

func (s *scene) Apply(_ context.Context, routes []Route) (Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applyErr != nil {
		return Applied{}, s.applyErr
	}
	if slices.EqualFunc(routes, s.routes, Route.equal) {
		return Applied{}, nil
	}
	s.routes, s.changes = routes, append(s.changes, time.Now())
	return Applied{Changed: true, Reloaded: true}, nil
}

func (s *scene) State(context.Context) (PlaneState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return PlaneState{API: "v2", HAProxy: "2.6.12", Mode: "rules"}, s.applyErr
}

func (s *scene) Probe(ctx context.Context, domain string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probes++
	if err := s.broken[domain]; err != nil {
		return err
	}
	return ctx.Err()
}

func (s *scene) Report(_ context.Context, reports []clusterv1.EdgeReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tellErr != nil {
		return s.tellErr
	}
	s.reports = append(s.reports, reports...)
	return nil
}

func (s *scene) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// now gives what HAProxy has, when that changed, and how many probes were made.
func (s *scene) now() (routes []Route, changes []time.Time, probes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.routes, s.changes, s.probes
}

// shown gives the last report on a cluster as state/code, and how many there were.
func (s *scene) shown(id string) (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, n := "", 0
	for _, r := range s.reports {
		if r.ID == id {
			n++
			last = string(r.State)
			if r.Reason != nil {
				last += "/" + r.Reason.Code
			}
		}
	}
	return last, n
}

func play(t *testing.T, act func(t *testing.T, s *scene, k *Keeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{broken: map[string]error{}}
		k := NewKeeper(s, s, s, s, slog.New(slog.DiscardHandler))
		k.Speak(true)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		act(t, s, k)
		cancel()
		<-done
	})
}

func ready(n int, host string) clusterv1.PublishedCluster {
	return clusterv1.PublishedCluster{ID: id(n), Host: host, Status: clusterv1.Ready}
}

func expect(t *testing.T, s *scene, id, want string) {
	t.Helper()
	if got, _ := s.shown(id); got != want {
		t.Errorf("it is shown as %q, want %q", got, want)
	}
}

func TestARouteIsMadeProvedAndReported(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		time.Sleep(time.Second)
		s.set(func() {
			s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com"), {ID: id(2), Host: "198.18.0.1"}, {ID: id(3), Host: "c.example.com", Status: clusterv1.Provisioning}}
			s.broken["c.example.com"] = fault.New(fault.Unavailable, "certificate_mismatch", "other names")
		})
		k.Wake()
		time.Sleep(time.Second)
		expect(t, s, id(1), "serving")
		expect(t, s, id(2), "skipped/host_is_ip")
		expect(t, s, id(3), "pending/control_plane_starting")
		if _, n := s.shown(id(1)); n != 1 {
			t.Errorf("%d reports on what worked at once", n)
		}
		s.set(func() { delete(s.broken, "c.example.com"); s.clusters[2].Status = clusterv1.Ready })
		k.Wake()
		time.Sleep(lastProbe + time.Second)
		expect(t, s, id(3), "serving")

		status, err := k.Status(t.Context(), edgev1.StatusRequest{})
		if err != nil || status.Count != (edgev1.Count{Routes: 3, Serving: 2, Skipped: 1}) || len(status.Routes) != 3 || status.Problem != nil || status.LastSync == nil {
			t.Errorf("%+v, %v", status, err)
		}
		status, err = k.Status(t.Context(), edgev1.StatusRequest{After: "a.example.com"})
		if err != nil || len(status.Routes) != 1 || status.Routes[0].Domain != "c.example.com" || status.Routes[0].Servers[0].Address != "198.18.7.1:30443" {
			t.Errorf("%+v, %v", status.Routes, err)
		}
		s.set(func() { s.clusters = s.clusters[:2] })
		k.Wake()
		time.Sleep(time.Second)
		if routes, _, _ := s.now(); len(routes) != 1 {
			t.Errorf("%v", routes)
		}
	})
}

// A route counts as gone once HAProxy runs without it, and not before.
func TestTheRouteOfAClusterThatGoes(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		s.set(func() {
			s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com"), ready(2, "b.example.com"), {ID: id(3), Host: "198.18.0.1", Status: clusterv1.Deleting}}
		})
		k.Wake()
		time.Sleep(time.Second)
		expect(t, s, id(1), "serving")
		expect(t, s, id(3), "skipped/route_removed") // it never had one
		s.set(func() {
			s.clusters[0].Status = clusterv1.Deleting
			s.applyErr = fault.New(fault.Unavailable, "data_plane_unreachable", "nobody answers")
		})
		k.Wake()
		time.Sleep(time.Second)
		expect(t, s, id(1), "failed/data_plane_unreachable")
		expect(t, s, id(2), "serving")
		s.set(func() { s.applyErr = nil })
		time.Sleep(lastRetry + time.Second)
		expect(t, s, id(1), "skipped/route_removed")
		expect(t, s, id(2), "serving")
		if routes, _, _ := s.now(); len(routes) != 1 || routes[0].ID != id(2) {
			t.Errorf("%v", routes)
		}
		_, probes, n := s.now()
		time.Sleep(10 * time.Minute)
		if _, after, now := s.now(); len(after) != len(probes) || now-n > 11 {
			t.Errorf("%d probes in ten minutes of one route", now-n)
		}
		s.set(func() { s.clusters = s.clusters[1:2] }) // its row is gone
		time.Sleep(lookEvery + time.Second)
		status, err := k.Status(t.Context(), edgev1.StatusRequest{})
		if err != nil || status.Count != (edgev1.Count{Routes: 1, Serving: 1}) {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

func TestChangesAreGathered(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		time.Sleep(time.Second)
		began := time.Now()
		for n := range 100 {
			s.set(func() { s.clusters = append(s.clusters, ready(n, id(n)[3:]+".example.com")) })
			k.Wake()
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		routes, changes, _ := s.now()
		if len(routes) != 100 || len(changes) > 3 {
			t.Errorf("%d routes by %d changes", len(routes), len(changes))
		}
		if first := changes[0].Sub(began); first > 100*time.Millisecond {
			t.Errorf("the first one waited %s", first)
		}
	})
}

func TestWhatNoEventTells(t *testing.T) {
	play(t, func(t *testing.T, s *scene, _ *Keeper) {
		t.Helper()
		time.Sleep(time.Second)
		s.set(func() { s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com")} })
		time.Sleep(lookEvery + time.Second)
		expect(t, s, id(1), "serving")
		s.set(func() { s.routes = nil }) // somebody lost them
		time.Sleep(lookEvery + time.Second)
		if routes, _, _ := s.now(); len(routes) != 1 {
			t.Error("they stay lost")
		}
	})
}

// While the other parts are away, what HAProxy has stays, and it mends by itself.
func TestPartsAreAway(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		s.set(func() { s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com")} })
		k.Wake()
		time.Sleep(time.Minute)
		expect(t, s, id(1), "serving")

		s.set(func() { s.worldErr = fault.New(fault.Unavailable, "service_unavailable", "away"); s.clusters = nil })
		k.Wake()
		time.Sleep(5 * time.Minute)
		if routes, _, _ := s.now(); len(routes) != 1 {
			t.Error("the route is gone with whoever tells of it")
		}
		if status, _ := k.Status(t.Context(), edgev1.StatusRequest{}); status.Problem == nil || status.Problem.Code != "service_unavailable" {
			t.Errorf("%+v", status.Problem)
		}

		s.set(func() {
			s.worldErr, s.applyErr = nil, fault.New(fault.Unavailable, "haproxy_reload_failed", "cannot bind")
			s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com"), ready(2, "b.example.com")}
		})
		k.Wake()
		time.Sleep(time.Minute)
		expect(t, s, id(1), "serving") // it still runs
		expect(t, s, id(2), "failed/haproxy_reload_failed")
		s.set(func() { s.applyErr = nil })
		time.Sleep(lastRetry + 5*time.Second)
		expect(t, s, id(2), "serving")
		if status, _ := k.Status(t.Context(), edgev1.StatusRequest{}); status.Problem != nil {
			t.Errorf("%+v", status.Problem)
		}

		s.set(func() {
			s.tellErr = errors.New("away")
			s.broken["a.example.com"] = fault.New(fault.Unavailable, "route_refused", "closed")
		})
		time.Sleep(3 * time.Minute)
		expect(t, s, id(1), "serving") // nobody took the news
		s.set(func() { s.tellErr = nil })
		time.Sleep(10 * time.Second)
		expect(t, s, id(1), "failed/route_refused")
	})
}

func TestOneLostProbeIsNoNews(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		s.set(func() { s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com")} })
		k.Wake()
		time.Sleep(2 * time.Second)
		_, _, probes := s.now()
		s.set(func() { s.broken["a.example.com"] = fault.New(fault.Unavailable, "route_silent", "silent") })
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			s.mu.Lock()
			if s.probes > probes {
				delete(s.broken, "a.example.com")
			}
			s.mu.Unlock()
		}
		if got, n := s.shown(id(1)); got != "serving" || n != 1 {
			t.Errorf("%s, %d reports", got, n)
		}
	})
}

func TestANewRouteHasTimeToBegin(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		s.set(func() {
			s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com")}
			s.broken["a.example.com"] = fault.New(fault.Unavailable, "route_refused", "closed")
		})
		k.Wake()
		time.Sleep(grace / 2)
		expect(t, s, id(1), "pending/route_refused")
		time.Sleep(grace + lastProbe)
		expect(t, s, id(1), "failed/route_refused")
		// Another host begins anew.
		s.set(func() { s.clusters[0].Host = "b.example.com" })
		k.Wake()
		time.Sleep(time.Second)
		expect(t, s, id(1), "serving")
	})
}

func TestOneReplicaSpeaks(t *testing.T) {
	play(t, func(t *testing.T, s *scene, k *Keeper) {
		t.Helper()
		k.Speak(false)
		s.set(func() { s.clusters = []clusterv1.PublishedCluster{ready(1, "a.example.com")} })
		k.Wake()
		time.Sleep(time.Minute)
		if _, n := s.shown(id(1)); n != 0 {
			t.Errorf("%d reports of one that is silent", n)
		}
		k.Speak(true)
		time.Sleep(time.Second)
		expect(t, s, id(1), "serving")
		k.Speak(true) // which it does already
		k.Speak(false)
		k.Speak(true)
		time.Sleep(time.Second)
		if _, n := s.shown(id(1)); n != 2 {
			t.Errorf("%d reports", n)
		}
	})
}
