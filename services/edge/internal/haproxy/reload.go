package haproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/haproxytech/client-native/v5/models"
)

// keptReloads is how many ended ones GET /reloads remembers.
const keptReloads = 100

// reloads are the ones asked for and their ends. It has a lock of its own, so that one can ask while a reload runs.
type reloads struct {
	mu      sync.Mutex
	now     func() time.Time
	next    int
	waiting *reload // asked for, not begun: whoever asks meanwhile gets the same one
	kept    []*reload
}

type reload struct {
	models.Reload
	done chan struct{}
	err  error // how it ended
}

// ask gives the reload that the next turn makes, and tells whether it is new.
func (r *reloads) ask() (*reload, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting != nil {
		return r.waiting, false
	}
	r.waiting = &reload{
		Reload: models.Reload{ID: r.id(), Status: models.ReloadStatusInProgress},
		done:   make(chan struct{}),
	}
	r.kept = append(r.kept, r.waiting)
	return r.waiting, true
}

func (r *reloads) begin() *reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := r.waiting
	r.waiting = nil
	return begun
}

func (r *reloads) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting != nil
}

func (r *reloads) end(one *reload, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.err, one.ReloadTimestamp, one.Status = err, r.now().Unix(), models.ReloadStatusSucceeded
	if err != nil {
		one.Status, one.Response = models.ReloadStatusFailed, err.Error()
	}
	close(one.done)
	if len(r.kept) > keptReloads {
		r.kept = slices.Delete(r.kept, 0, len(r.kept)-keptReloads)
	}
}

// note adds a start that nobody asked for. The same failure over and over is one.
func (r *reloads) note(err error) {
	r.mu.Lock()
	last := len(r.kept) - 1
	if err != nil && last >= 0 && r.kept[last].Response == err.Error() {
		r.kept[last].ReloadTimestamp = r.now().Unix()
		r.mu.Unlock()
		return
	}
	one := &reload{Reload: models.Reload{ID: r.id()}, done: make(chan struct{})}
	r.kept = append(r.kept, one)
	r.mu.Unlock()
	r.end(one, err)
}

// id is the next one, under mu.
func (r *reloads) id() string {
	r.next++
	return r.now().UTC().Format(time.DateOnly) + "-" + strconv.Itoa(r.next-1)
}

func (r *reloads) get(id string) (models.Reload, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.kept {
		if one.ID == id {
			return one.Reload, true
		}
	}
	return models.Reload{}, false
}

func (r *reloads) all() []models.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]models.Reload, len(r.kept))
	for i, one := range r.kept {
		out[i] = one.Reload
	}
	return out
}

// askReload has the supervisor reload, or start, HAProxy.
func (p *Plane) askReload() *reload {
	one, _ := p.reloads.ask()
	select {
	case p.kick <- struct{}{}:
	default: // it was told already
	}
	return one
}

// runReload is one turn: HAProxy runs with the file as it is, or the file is again what it was before the changes that HAProxy did
// not take.
func (p *Plane) runReload(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.reloads.begin()
	if one == nil {
		return
	}
	err := p.load(ctx)
	if err == nil {
		err = p.took()
	} else if ctx.Err() == nil {
		p.log.Error("HAProxy did not take the configuration", "reload", one.ID, "error", err)
		if back := p.restore(); back != nil {
			err = fmt.Errorf("%w\nthe configuration before it could not be restored: %w", err, back)
		}
	}
	p.reloads.end(one, err)
}

// load reloads the HAProxy that runs, or starts one where there is something to listen on.
func (p *Plane) load(ctx context.Context) error {
	if err := p.sync(); err != nil {
		return err
	}
	if p.master.alive() {
		return p.reload(ctx)
	}
	p.master = nil
	if !listens(p.file.text) {
		return nil
	}
	return p.start(ctx, p.file.path)
}

// restore undoes the changes that HAProxy did not take; they keep their version, and what was before gets a newer one, so that
// nobody who read them writes over what comes next. What somebody else changed meanwhile stays.
func (p *Plane) restore() error {
	if err := p.sync(); err != nil {
		return err
	}
	if p.undo == nil {
		return nil
	}
	done, err := p.file.replace(*p.undo, p.file.version+1, p.loaded)
	p.undo = nil
	if err == nil && !done {
		err = p.sync() // saved at this very moment: it stays
	}
	p.version.Store(p.file.version)
	return err
}

// conflict is a version that is not the file's.
type conflict struct{ has, given int64 }

func (c *conflict) Error() string {
	return fmt.Sprintf("version mismatch: version in configuration file is %d, given version is %d", c.has, c.given)
}

// validate only asks HAProxy whether it would accept text.
func (p *Plane) validate(ctx context.Context, text string) error {
	candidate := p.file.path + ".candidate"
	if err := writeFile(candidate, []byte(text)); err != nil {
		return fmt.Errorf("write the HAProxy configuration: %w", err)
	}
	defer func() { _ = os.Remove(candidate) }()
	return p.check(ctx, candidate)
}

// install makes text the configuration if HAProxy accepts it, under mu and after sync. HAProxy does not yet run with it.
func (p *Plane) install(ctx context.Context, text string) error {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	next := p.file.version + 1
	if err := p.validate(ctx, withVersion(text, next)); err != nil {
		return err
	}
	was := p.file.text
	done, err := p.file.replace(text, next, p.loaded)
	if err != nil {
		return err
	}
	if !done { // an editor has saved while HAProxy was reading
		given := p.file.version
		if err := p.sync(); err != nil {
			return err
		}
		return &conflict{has: p.file.version, given: given}
	}
	if p.undo == nil {
		p.undo = &was
	}
	p.version.Store(p.file.version)
	return nil
}

// errStopped says that Run has ended.
var errStopped = errors.New("the data plane was stopped")
