// Package audit keeps who did what, on which object, from which address, and what came of it. It must never keep a
// credential or a value that somebody typed in, and never lose an entry without a word.
package audit

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Outcome is what came of an action.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // the request was wrong, or not allowed
	Failed  Outcome = "failed"  // a fault of ours, or a part that was away
)

// patience is how long an answer waits for its entry.
const patience = 2 * time.Second

// exportPage is how many entries of an export are in memory at a time.
const exportPage = 500

// Event is one entry.
type Event struct {
	ID         int64     `json:"id"` // in the order of arrival; zero until it is stored
	At         time.Time `json:"at"`
	Actor      string    `json:"actor"`      // usr_…; empty: nobody was logged in
	Credential string    `json:"credential"` // ses_… or pat_…; empty: none, or not known
	Action     string    `json:"action"`     // <object>.<verb>
	Objects    []string  `json:"objects"`    // ids in their own form
	Client     string    `json:"client"`     // an IP address
	Outcome    Outcome   `json:"outcome"`
	Status     int       `json:"status"` // of the answer over HTTP
	Code       string    `json:"code"`   // of the problem; empty: there was none
	TraceID    string    `json:"trace_id"`
	Detail     Detail    `json:"detail"`
}

// Detail says more about some actions.
type Detail struct {
	Fields   []string `json:"fields,omitempty"`   // names of what was given; never the values
	Replayed bool     `json:"replayed,omitempty"` // nothing was done: the same request had been answered before, and is answered the same
}

// Filter chooses entries; what is empty does not narrow.
type Filter struct {
	Since, Until time.Time // from since on, before until
	Actor        string
	Action       string // a whole one, or with a dot at its end the beginning of some
	Object       string
	Client       string
	Outcome      Outcome
	TraceID      string
}

// Store keeps entries. It fails with unavailable while the database is away.
type Store interface {
	AddEvent(ctx context.Context, e Event) error
	// NewestEvents gives at most limit entries before the id before (zero: from the end), newest first.
	NewestEvents(ctx context.Context, f Filter, before int64, limit int) ([]Event, error)
	// OldestEvents gives at most limit entries after the id after and up to the id upTo, oldest first.
	OldestEvents(ctx context.Context, f Filter, after, upTo int64, limit int) ([]Event, error)
	// LastEventID is the newest entry's; zero where there is none.
	LastEventID(ctx context.Context) (int64, error)
}

// Trail writes and reads entries.
type Trail struct {
	store Store
	keeper
}

// keeper says aloud what could not be stored.
type keeper struct {
	log      *slog.Logger
	unstored metric.Int64Counter
}

// NewTrail makes one. log takes the entries that the store does not.
func NewTrail(store Store, log *slog.Logger) *Trail { return &Trail{store, newKeeper(log)} }

func newKeeper(log *slog.Logger) keeper {
	// It fails for a malformed name alone, and then gives an instrument that does nothing.
	unstored, _ := otel.Meter("kubebyon/audit").Int64Counter("kubebyon.audit.unstored",
		metric.WithDescription("Entries of the audit log that are in the process's log alone"))
	return keeper{log, unstored}
}

// Record stores e. It is not cancelled with ctx: what was done is done, whether somebody waits for the answer or not.
// Where e cannot be stored it becomes one line of the log, as an error, and is counted.
func (t *Trail) Record(ctx context.Context, e Event) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := t.store.AddEvent(bounded, e); err != nil {
		t.say(ctx, e, err.Error())
	}
}

// RecordWithoutStore is Record while there is no store yet.
func RecordWithoutStore(ctx context.Context, log *slog.Logger, e Event) {
	newKeeper(log).say(ctx, e, "the database has not been reached yet")
}

func (k keeper) say(ctx context.Context, e Event, why string) {
	ctx = context.WithoutCancel(ctx)
	k.log.LogAttrs(ctx, slog.LevelError, "audit entry not stored", slog.String("error", why), slog.Group("audit",
		slog.Time("at", e.At), slog.String("actor", e.Actor), slog.String("credential", e.Credential), slog.String("action", e.Action),
		slog.Any("objects", e.Objects), slog.String("client", e.Client), slog.String("outcome", string(e.Outcome)), slog.Int("status", e.Status),
		slog.String("code", e.Code), slog.String("trace_id", e.TraceID), slog.Any("fields", e.Detail.Fields)))
	k.unstored.Add(ctx, 1, metric.WithAttributes(attribute.String("action", e.Action)))
}

// Search gives at most limit entries, newest first, and the cursor that goes on behind them; it is zero where nothing is
// left. Entries that arrive meanwhile change no page that follows.
func (t *Trail) Search(ctx context.Context, f Filter, cursor int64, limit int) ([]Event, int64, error) {
	found, err := t.store.NewestEvents(ctx, f, cursor, limit+1)
	if err != nil {
		return nil, 0, err
	}
	if len(found) <= limit {
		return found, 0, nil
	}
	return found[:limit], found[limit-1].ID, nil
}

// Export gives every entry that there is when it begins, oldest first, to each, some hundreds at a time, and stops at the
// first error. each is called at least once, with none where there are none.
func (t *Trail) Export(ctx context.Context, f Filter, each func([]Event) error) error {
	upTo, err := t.store.LastEventID(ctx)
	if err != nil {
		return err
	}
	for after := int64(0); ; {
		page, err := t.store.OldestEvents(ctx, f, after, upTo, exportPage)
		if err != nil {
			return err
		}
		if err := each(page); err != nil {
			return err
		}
		if len(page) < exportPage {
			return nil
		}
		after = page[len(page)-1].ID
	}
}
