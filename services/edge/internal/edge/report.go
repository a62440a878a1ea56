package edge

import (
	"context"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// reportsAtOnce keeps a message under NATS' limit, with HAProxy's own words in each report.
const reportsAtOnce = 250

// reportPause is how long news wait for others to come along, and after a failure.
const reportPause = 100 * time.Millisecond

// Speak says whether this Keeper reports. One that begins to reports everything.
func (k *Keeper) Speak(yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if yes && !k.telling {
		for _, e := range k.entries {
			e.told = false
		}
	}
	k.telling = yes
	signal(k.tell)
}

func (k *Keeper) reportAll(ctx context.Context) {
	failed := false
	for {
		var again <-chan time.Time
		if failed {
			again = time.After(lastRetry / 10)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.tell:
		case <-again:
		}
		if !sleep(ctx, reportPause) {
			return
		}
		failed = !k.report(ctx)
	}
}

// report sends all news; false: it has to be tried again.
func (k *Keeper) report(ctx context.Context) bool {
	for {
		reports := k.news()
		if len(reports) == 0 {
			return true
		}
		if err := k.reporter.Report(ctx, reports); err != nil {
			if ctx.Err() == nil {
				k.log.WarnContext(ctx, "what became of the routes could not be reported; it is tried again", slog.Any("error", err))
			}
			return false
		}
		k.told(reports)
	}
}

func (k *Keeper) news() []clusterv1.EdgeReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.telling {
		return nil
	}
	var out []clusterv1.EdgeReport
	for id, e := range k.entries {
		if !e.told && !e.unproved() && id != Console && len(out) < reportsAtOnce {
			out = append(out, clusterv1.EdgeReport{ID: id, Host: e.host, Edge: e.Edge})
		}
	}
	return out
}

// unproved holds for a route of which nothing is known yet. Soon it is: a restart of ours must not look like one of theirs.
func (e *entry) unproved() bool { return e.applied && e.State == clusterv1.EdgePending && e.fails == 0 }

// told marks what has not changed again meanwhile.
func (k *Keeper) told(reports []clusterv1.EdgeReport) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range reports {
		if e := k.entries[r.ID]; e != nil && e.host == r.Host && e.State == r.State && e.Since.Equal(r.Since) && e.Reason == r.Reason {
			e.told = true
		}
	}
}
