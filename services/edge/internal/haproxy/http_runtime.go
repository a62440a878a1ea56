package haproxy

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/haproxytech/client-native/v5/models"
)

// errIdle says that no HAProxy runs, where one is needed.
var errIdle = refuse(http.StatusServiceUnavailable, "HAProxy does not run")

// running tells whether HAProxy runs, and whether it should. One that is not on the machine is an error.
func (p *Plane) running() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.master.alive() {
		return true, nil
	}
	if _, err := p.program(); err != nil {
		return false, err
	}
	if err := p.sync(); err != nil {
		return false, err
	}
	if listens(p.file.text) {
		return false, errIdle
	}
	return false, nil
}

// getProcesses has one entry per worker: the one that takes connections first, then those that it replaced.
func (p *Plane) getProcesses(ctx context.Context, _ *http.Request) (answer, error) {
	out := models.ProcessInfos{}
	running, err := p.running()
	if err != nil || !running {
		return answer{status: http.StatusOK, body: out}, err
	}
	text, err := p.ask(ctx, masterSocket, "show proc")
	if err != nil {
		return answer{}, err
	}
	now, err := parseProcs(text)
	if err != nil {
		return answer{}, err
	}
	for _, w := range now.workers {
		one := &models.ProcessInfo{RuntimeAPI: fmt.Sprintf("%s@%d", filepath.Join(p.dir, masterSocket), w.pid)}
		text, err := p.ask(ctx, masterSocket, fmt.Sprintf("@!%d show info typed", w.pid))
		if err == nil {
			one.Info, err = p.columns.info(text)
		}
		switch {
		case err != nil && w.old:
			continue // it ended while we asked
		case err != nil:
			one.Error = err.Error()
		default:
			one.Info.Pid = new(int64(w.pid))
			if w.old {
				one.Info.Stopping = new(int64(1))
			}
		}
		out = append(out, one)
	}
	return answer{status: http.StatusOK, body: out}, nil
}

// getStats is what the worker that takes connections counts.
func (p *Plane) getStats(ctx context.Context, r *http.Request) (answer, error) {
	q := r.URL.Query()
	kind, name, parent := q.Get("type"), q.Get("name"), q.Get("parent")
	switch {
	case kind != "" && kind != "frontend" && kind != "backend" && kind != "server":
		return answer{}, refuse(codeEnum, "type in query should be one of [frontend backend server]")
	case name != "" && kind == "":
		return answer{}, refuse(http.StatusBadRequest, "Type required when filtering by name")
	case name != "" && kind == "server" && parent == "":
		return answer{}, refuse(http.StatusBadRequest, "Parent backend required when filtering by server")
	}
	running, err := p.running()
	if err != nil || !running {
		return answer{status: http.StatusOK, body: models.NativeStats{}}, err
	}
	text, err := p.ask(ctx, statsSocket, "show stat")
	if err != nil {
		return answer{}, err
	}
	all, err := p.columns.stats(text)
	if err != nil {
		return answer{}, err
	}
	one := &models.NativeStatsCollection{RuntimeAPI: filepath.Join(p.dir, statsSocket), Stats: []*models.NativeStat{}}
	for _, stat := range all {
		if (kind == "" || stat.Type == kind) && (name == "" || stat.Name == name) && (kind != "server" || parent == "" || stat.BackendName == parent) {
			one.Stats = append(one.Stats, stat)
		}
	}
	return answer{status: http.StatusOK, body: models.NativeStats{one}}, nil
}

// moveServer gives a server of the running HAProxy another address.
func (p *Plane) moveServer(ctx context.Context, backend string, s models.Server) bool {
	addr, err := netip.ParseAddr(strings.Trim(s.Address, "[]"))
	if err != nil || s.Port == nil || strings.ContainsAny(backend+s.Name, " \t\r\n;\\") {
		return false
	}
	said, err := p.ask(ctx, statsSocket, fmt.Sprintf("set server %s/%s addr %s port %d", backend, s.Name, addr, *s.Port))
	if err != nil {
		return false
	}
	// "IP changed from ..., port changed from ..." or "no need to change the addr, ...".
	said = strings.TrimSpace(said)
	if !strings.Contains(said, "changed from") && !strings.HasPrefix(said, "no need to change") && !strings.HasPrefix(said, "nothing changed") {
		p.log.Warn("HAProxy did not take a server's address, it will be reloaded", "answer", said)
		return false
	}
	return true
}
