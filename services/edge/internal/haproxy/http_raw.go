package haproxy

import (
	"context"
	"crypto/md5" //nolint:gosec // the checksum that the Data Plane API has
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
)

// getInfo is how a client finds out which API this is.
func (p *Plane) getInfo(context.Context, *http.Request) (answer, error) {
	return answer{status: http.StatusOK, body: map[string]any{
		"api": map[string]any{"version": "v2.9 kubebyon"}, "system": map[string]any{},
	}}, nil
}

// versioned is a body of v2: what was asked for, and the version of the configuration that it is from.
type versioned struct {
	Version int64 `json:"_version"`
	Data    any   `json:"data"`
}

func (p *Plane) getVersion(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return answer{}, err
	}
	version := p.file.version
	if id := r.URL.Query().Get("transaction_id"); id != "" {
		tx, err := p.txs.open(id)
		if err != nil {
			return answer{}, err
		}
		version = tx.version
	}
	return answer{status: http.StatusOK, body: version}, nil
}

func (p *Plane) getRaw(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return answer{}, err
	}
	body := versioned{Version: p.file.version, Data: p.file.text}
	if id := r.URL.Query().Get("transaction_id"); id != "" {
		tx, err := p.txs.open(id)
		if err != nil {
			return answer{}, err
		}
		body = versioned{Version: tx.version, Data: withVersion(tx.draft.text(), tx.version)}
	}
	return answer{status: http.StatusOK, body: body}, nil
}

// postRaw replaces the whole configuration. The text is kept byte for byte but for the line of the version.
func (p *Plane) postRaw(ctx context.Context, r *http.Request) (answer, error) {
	version, given, err := queryInt(r, "version")
	if err != nil {
		return answer{}, err
	}
	var flags [4]bool
	for i, name := range []string{"skip_version", "skip_reload", "force_reload", "only_validate"} {
		if flags[i], err = queryBool(r, name); err != nil {
			return answer{}, err
		}
	}
	skipVersion, skipReload, forceReload, onlyValidate := flags[0], flags[1], flags[2], flags[3]
	text, err := readText(r)
	if err != nil {
		return answer{}, err
	}
	if !strings.Contains(text, "\n") {
		return answer{}, refuse(http.StatusBadRequest, "invalid configuration: no newline character found")
	}
	if (!given || version == 0) && !skipVersion && !onlyValidate {
		return answer{}, errNoVersion
	}
	one, err := p.change(skipReload || onlyValidate, func() error {
		switch {
		case onlyValidate:
			return p.validate(ctx, text)
		case !skipVersion && version != p.file.version:
			return &conflict{has: p.file.version, given: version}
		}
		return p.install(ctx, text)
	})
	if err != nil {
		return answer{}, err
	}
	got := answer{status: http.StatusAccepted, body: one.text, header: http.Header{"Configuration-Checksum": {checksum(one.text)}}}
	switch {
	case onlyValidate:
	case skipReload:
		got.status = http.StatusCreated
	case forceReload:
		got.status = http.StatusCreated
		if err := p.wait(ctx, one.reload); err != nil {
			return answer{}, err
		}
	default:
		got.reload = one.reload.ID
	}
	return got, nil
}

// errNoVersion and errBoth are what an edit is refused with that does not say, or says twice, what it is based on.
var (
	errNoVersion = refuse(http.StatusBadRequest, "version or transaction not specified: version or transaction not specified, specify only one")
	errBoth      = refuse(http.StatusBadRequest, "both version and transaction specified, specify only one")
)

// changed is what a change left: the configuration and the reload that makes HAProxy take it.
type changed struct {
	text   string
	reload *reload
}

// change runs one change of the file as it is, and asks for the reload that belongs to it.
func (p *Plane) change(skipReload bool, do func() error) (changed, error) {
	return p.changeOr(do, func() bool { return !skipReload })
}

// changeOr asks for a reload only where needed says so once the change is made.
func (p *Plane) changeOr(do func() error, needed func() bool) (changed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return changed{}, err
	}
	if err := do(); err != nil {
		return changed{}, err
	}
	out := changed{text: p.file.text}
	if needed() {
		out.reload = p.askReload()
	}
	return out, nil
}

// wait gives the end of a reload.
func (p *Plane) wait(ctx context.Context, one *reload) error {
	select {
	case <-one.done:
		return one.err
	case <-p.ended:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

func checksum(text string) string {
	sum := md5.Sum([]byte(text)) //nolint:gosec // no secret
	return hex.EncodeToString(sum[:])
}

func (p *Plane) getReloads(context.Context, *http.Request) (answer, error) {
	return answer{status: http.StatusOK, body: p.reloads.all()}, nil
}

func (p *Plane) getReload(_ context.Context, r *http.Request) (answer, error) {
	id := r.PathValue("id")
	if ok, _ := regexp.MatchString(`^\d{4}-\d{2}-\d{2}-\d+$`, id); !ok {
		return answer{}, refuse(codePattern, `id in path should match '^\d{4}-\d{2}-\d{2}-\d+$'`)
	}
	one, ok := p.reloads.get(id)
	if !ok {
		return answer{}, refuse(http.StatusNotFound, "Reload with ID %s does not exist", id)
	}
	return answer{status: http.StatusOK, body: one}, nil
}
