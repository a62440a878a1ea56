package haproxy

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"

	"github.com/haproxytech/client-native/v5/configuration"
	"github.com/haproxytech/client-native/v5/models"
)

// read runs get on the configuration as it is, or on the transaction that the address names.
func (p *Plane) read(ctx context.Context, r *http.Request, get func(*draft) (any, error)) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return answer{}, err
	}
	version, from, err := p.source(ctx, r.URL.Query().Get("transaction_id"))
	if err != nil {
		return answer{}, err
	}
	data, err := get(from)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: versioned{Version: version, Data: data}}, nil
}

// source is where a read takes from: the transaction of that id, or the configuration as it is.
func (p *Plane) source(ctx context.Context, id string) (int64, *draft, error) {
	if id == "" {
		d, err := p.current(ctx)
		return p.file.version, d, err
	}
	tx, err := p.txs.open(id)
	if err != nil {
		return 0, nil, err
	}
	return tx.version, tx.draft, nil
}

// current is a draft of the configuration as it is, for reading alone; it is kept until that changes.
func (p *Plane) current(ctx context.Context) (*draft, error) {
	if p.view != nil && p.viewOf == p.file.text {
		return p.view, nil
	}
	p.view.close()
	p.view = nil
	d, err := p.openDraft(ctx, p.file.text)
	if err != nil {
		return nil, err
	}
	p.view, p.viewOf = d, p.file.text
	return d, nil
}

// edit is one change by client-native.
type edit struct {
	created bool // it makes something: 201 where others have 200 or 204
	body    any  // of the answer; nil is none
	do      func(*draft) error
	// runtime tells whether HAProxy has taken the change already, so that no reload is needed. It may be nil.
	runtime func(context.Context) bool
}

// edit runs one change in the transaction that the address names, or as a change of its own on the version there.
func (p *Plane) edit(ctx context.Context, r *http.Request, e edit) (answer, error) {
	version, given, err := queryInt(r, "version")
	if err != nil {
		return answer{}, err
	}
	force, err := queryBool(r, "force_reload")
	if err != nil {
		return answer{}, err
	}
	id := r.URL.Query().Get("transaction_id")
	switch {
	case id != "" && force:
		return answer{}, refuse(http.StatusBadRequest, "Both force_reload and transaction specified, specify only one")
	case id != "" && given && version != 0:
		return answer{}, errBoth
	case id == "" && version == 0:
		return answer{}, errNoVersion
	case id != "":
		p.mu.Lock()
		defer p.mu.Unlock()
		tx, err := p.txs.open(id)
		if err != nil {
			return answer{}, err
		}
		return answer{status: http.StatusAccepted, body: e.body}, e.do(tx.draft)
	}

	live := false
	one, err := p.changeOr(func() error {
		if version != p.file.version {
			return &conflict{has: p.file.version, given: version}
		}
		d, err := p.openDraft(ctx, p.file.text)
		if err != nil {
			return err
		}
		defer d.close()
		if err := e.do(d); err != nil {
			return err
		}
		text, err := d.commit()
		if err != nil {
			return err
		}
		if err := p.install(ctx, text); err != nil {
			return err
		}
		// Only where HAProxy runs with all that was there before.
		if e.runtime != nil && !p.reloads.pending() && p.master.alive() && e.runtime(ctx) {
			live = true
			return p.took()
		}
		return nil
	}, func() bool { return !live })
	if err != nil {
		return answer{}, err
	}
	done := http.StatusOK
	switch {
	case e.created:
		done = http.StatusCreated
	case e.body == nil:
		done = http.StatusNoContent
	}
	switch {
	case live:
		return answer{status: done, body: e.body}, nil
	case force:
		return answer{status: done, body: e.body}, p.wait(ctx, one.reload)
	}
	return answer{status: http.StatusAccepted, reload: one.reload.ID, body: e.body}, nil
}

func (p *Plane) getBackends(ctx context.Context, r *http.Request) (answer, error) {
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, all, err := d.client.GetBackends(d.id)
		return orEmpty(all), err
	})
}

func (p *Plane) getBackend(ctx context.Context, r *http.Request) (answer, error) {
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, one, err := d.client.GetBackend(r.PathValue("name"), d.id)
		return one, err
	})
}

func (p *Plane) postBackend(ctx context.Context, r *http.Request) (answer, error) {
	var one models.Backend
	if err := readJSON(r, &one); err != nil {
		return answer{}, err
	}
	return p.edit(ctx, r, edit{created: true, body: one, do: func(d *draft) error { return d.client.CreateBackend(&one, d.id, 0) }})
}

func (p *Plane) deleteBackend(ctx context.Context, r *http.Request) (answer, error) {
	return p.edit(ctx, r, edit{do: func(d *draft) error { return d.client.DeleteBackend(r.PathValue("name"), d.id, 0) }})
}

// parent is where a server stands: a backend unless the address says otherwise.
func parent(r *http.Request) (kind, name string, err error) {
	q := r.URL.Query()
	switch kind, name = q.Get("parent_type"), q.Get("parent_name"); {
	case q.Get("backend") != "":
		return "backend", q.Get("backend"), nil
	case kind == "":
		return "", "", errors.New("parentType empty")
	case name == "":
		return "", "", errors.New("parentName empty")
	}
	return kind, name, nil
}

func (p *Plane) getServers(ctx context.Context, r *http.Request) (answer, error) {
	kind, name, err := parent(r)
	if err != nil {
		return answer{}, err
	}
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, all, err := d.client.GetServers(kind, name, d.id)
		return orEmpty(all), unlessNoParent(err)
	})
}

func (p *Plane) getServer(ctx context.Context, r *http.Request) (answer, error) {
	kind, name, err := parent(r)
	if err != nil {
		return answer{}, err
	}
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, one, err := d.client.GetServer(r.PathValue("name"), kind, name, d.id)
		return one, err
	})
}

func (p *Plane) postServer(ctx context.Context, r *http.Request) (answer, error) {
	kind, name, err := parent(r)
	if err != nil {
		return answer{}, err
	}
	var one models.Server
	if err := readJSON(r, &one); err != nil {
		return answer{}, err
	}
	return p.edit(ctx, r, edit{created: true, body: one, do: func(d *draft) error { return d.client.CreateServer(kind, name, &one, d.id, 0) }})
}

// putServer replaces a server. Where its address alone is new HAProxy is told at once, and goes on without a reload.
func (p *Plane) putServer(ctx context.Context, r *http.Request) (answer, error) {
	kind, name, err := parent(r)
	if err != nil {
		return answer{}, err
	}
	var one models.Server
	if err := readJSON(r, &one); err != nil {
		return answer{}, err
	}
	var was *models.Server
	return p.edit(ctx, r, edit{
		body: one,
		do: func(d *draft) error {
			if _, was, err = d.client.GetServer(r.PathValue("name"), kind, name, d.id); err != nil {
				return err
			}
			return d.client.EditServer(r.PathValue("name"), kind, name, &one, d.id, 0)
		},
		runtime: func(ctx context.Context) bool {
			same := *was
			same.Address, same.Port = one.Address, one.Port
			if kind != "backend" || !reflect.DeepEqual(same, one) {
				return false
			}
			if reflect.DeepEqual(*was, one) {
				return true
			}
			return p.moveServer(ctx, name, one)
		},
	})
}

func (p *Plane) deleteServer(ctx context.Context, r *http.Request) (answer, error) {
	kind, name, err := parent(r)
	if err != nil {
		return answer{}, err
	}
	return p.edit(ctx, r, edit{do: func(d *draft) error { return d.client.DeleteServer(r.PathValue("name"), kind, name, d.id, 0) }})
}

// index reads the place of a rule, from 0.
func index(r *http.Request) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue("index"), 10, 64)
	if err != nil {
		return 0, refuse(codeType, "index in path must be of type int64: %q", r.PathValue("index"))
	}
	return n, nil
}

func (p *Plane) getRules(ctx context.Context, r *http.Request) (answer, error) {
	frontend, err := queryString(r, "frontend")
	if err != nil {
		return answer{}, err
	}
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, all, err := d.client.GetBackendSwitchingRules(frontend, d.id)
		return orEmpty(all), unlessNoParent(err)
	})
}

func (p *Plane) getRule(ctx context.Context, r *http.Request) (answer, error) {
	frontend, err := queryString(r, "frontend")
	if err != nil {
		return answer{}, err
	}
	n, err := index(r)
	if err != nil {
		return answer{}, err
	}
	return p.read(ctx, r, func(d *draft) (any, error) {
		_, one, err := d.client.GetBackendSwitchingRule(n, frontend, d.id)
		return one, err
	})
}

func (p *Plane) postRule(ctx context.Context, r *http.Request) (answer, error) {
	frontend, err := queryString(r, "frontend")
	if err != nil {
		return answer{}, err
	}
	var one models.BackendSwitchingRule
	if err := readJSON(r, &one); err != nil {
		return answer{}, err
	}
	return p.edit(ctx, r, edit{created: true, body: one, do: func(d *draft) error { return d.client.CreateBackendSwitchingRule(frontend, &one, d.id, 0) }})
}

func (p *Plane) deleteRule(ctx context.Context, r *http.Request) (answer, error) {
	frontend, err := queryString(r, "frontend")
	if err != nil {
		return answer{}, err
	}
	n, err := index(r)
	if err != nil {
		return answer{}, err
	}
	return p.edit(ctx, r, edit{do: func(d *draft) error { return d.client.DeleteBackendSwitchingRule(n, frontend, d.id, 0) }})
}

// unlessNoParent takes away the error that what a list belongs to is not there: the list is empty then.
func unlessNoParent(err error) error {
	if errors.Is(err, configuration.ErrParentDoesNotExist) {
		return nil
	}
	return err
}

// orEmpty is [] where JSON would say null.
func orEmpty[S ~[]E, E any](all S) S {
	if all == nil {
		return S{}
	}
	return all
}
