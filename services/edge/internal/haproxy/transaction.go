package haproxy

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/haproxytech/client-native/v5/models"
)

const (
	maxTransactions = 20
	// keptTransactions is how many outdated and failed ones are remembered.
	keptTransactions = 100
	// abandoned is when a transaction that nobody ended makes room for another.
	abandoned = 10 * time.Minute
)

// transaction is a draft that a client fills in several calls.
type transaction struct {
	id      string
	version int64
	status  string
	started time.Time
	draft   *draft // nil once it is outdated or failed
}

func (t *transaction) model() *models.Transaction {
	return &models.Transaction{ID: t.id, Version: t.version, Status: t.status}
}

// finish keeps the transaction as an explanation of why it cannot be committed.
func (t *transaction) finish(status string) {
	t.draft.close()
	t.draft, t.status = nil, status
}

// transactions are the ones not committed, oldest first; under the Plane's mu.
type transactions struct{ all []*transaction }

// get finds a transaction in any state.
func (t *transactions) get(id string) (*transaction, error) {
	for _, one := range t.all {
		if one.id == id {
			return one, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "transaction does not exist: transaction %s does not exist", id)
}

// open finds one that can still be edited.
func (t *transactions) open(id string) (*transaction, error) {
	one, err := t.get(id)
	if err != nil || one.draft == nil {
		return nil, refuse(http.StatusBadRequest, "transaction does not exist: %s", id)
	}
	return one, nil
}

// room makes room for one more, of those that nobody has ended for long.
func (t *transactions) room(now time.Time) error {
	for _, keep := range []func(*transaction) bool{
		func(*transaction) bool { return true },
		func(one *transaction) bool { return now.Sub(one.started) < abandoned },
	} {
		t.forget(func(one *transaction) bool { return one.draft == nil || keep(one) })
		open := 0
		for _, one := range t.all {
			if one.draft != nil {
				open++
			}
		}
		if open < maxTransactions {
			if ended := len(t.all) - open; ended > keptTransactions {
				t.forget(func(one *transaction) bool { ended--; return one.draft != nil || ended < keptTransactions })
			}
			return nil
		}
	}
	return refuse(http.StatusTooManyRequests, "cannot start a new transaction, reached the maximum amount of %d active transactions available", maxTransactions)
}

// forget drops those that are not to be kept.
func (t *transactions) forget(keep func(*transaction) bool) {
	t.all = slices.DeleteFunc(t.all, func(one *transaction) bool {
		if keep(one) {
			return false
		}
		one.draft.close()
		return true
	})
}

func (t *transactions) closeAll() { t.forget(func(*transaction) bool { return false }) }

func (p *Plane) postTransaction(ctx context.Context, r *http.Request) (answer, error) {
	version, given, err := queryInt(r, "version")
	switch {
	case err != nil:
		return answer{}, err
	case !given:
		return answer{}, refuse(codeRequired, "version in query is required")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return answer{}, err
	}
	if version != p.file.version {
		return answer{}, &conflict{has: p.file.version, given: version}
	}
	if err := p.txs.room(p.now()); err != nil {
		return answer{}, err
	}
	d, err := p.openDraft(ctx, p.file.text)
	if err != nil {
		return answer{}, err
	}
	tx := &transaction{id: d.id, version: version, status: models.TransactionStatusInProgress, started: p.now(), draft: d}
	p.txs.all = append(p.txs.all, tx)
	return answer{status: http.StatusCreated, body: tx.model()}, nil
}

func (p *Plane) getTransactions(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, status := models.Transactions{}, r.URL.Query().Get("status")
	for _, one := range p.txs.all {
		if status == "" || status == one.status {
			out = append(out, one.model())
		}
	}
	return answer{status: http.StatusOK, body: out}, nil
}

func (p *Plane) getTransaction(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, err := p.txs.get(r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: one.model()}, nil
}

func (p *Plane) deleteTransaction(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, err := p.txs.get(r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	p.txs.forget(func(other *transaction) bool { return other != one })
	return answer{status: http.StatusNoContent}, nil
}

// putTransaction commits: the draft becomes the configuration, and what others began on the version before is outdated.
func (p *Plane) putTransaction(ctx context.Context, r *http.Request) (answer, error) {
	force, err := queryBool(r, "force_reload")
	if err != nil {
		return answer{}, err
	}
	var done models.Transaction
	one, err := p.change(false, func() error {
		tx, err := p.txs.get(r.PathValue("id"))
		if err != nil {
			return err
		}
		if tx.draft == nil {
			return refuse(http.StatusNotAcceptable, "transaction %s is %s and cannot be committed", tx.id, tx.status)
		}
		if tx.version != p.file.version {
			stale := &conflict{has: p.file.version, given: tx.version}
			tx.finish(models.TransactionStatusOutdated)
			return stale
		}
		text, err := tx.draft.commit()
		if err == nil {
			err = p.install(ctx, text)
		}
		if err != nil {
			tx.finish(models.TransactionStatusFailed)
			return err
		}
		done = models.Transaction{ID: tx.id, Version: tx.version, Status: models.TransactionStatusSuccess}
		p.txs.forget(func(other *transaction) bool { return other != tx })
		for _, other := range p.txs.all {
			if other.draft != nil && other.version < p.file.version {
				other.finish(models.TransactionStatusOutdated)
			}
		}
		return nil
	})
	if err != nil {
		return answer{}, err
	}
	if force {
		return answer{status: http.StatusOK, body: done}, p.wait(ctx, one.reload)
	}
	return answer{status: http.StatusAccepted, reload: one.reload.ID, body: done}, nil
}
