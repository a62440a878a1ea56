package haproxy

import (
	"net/http"
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

func (t *transactions) closeAll() {
	for _, one := range t.all {
		one.draft.close()
	}
	t.all = nil
}
