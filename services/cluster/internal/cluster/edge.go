package cluster

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// EdgeNotAsked is the reason's code from the moment that a cluster is published under a host until the edge's first report.
const EdgeNotAsked = "edge_not_asked"

// The bounds of a report's texts, in bytes. What is longer is cut: it may be HAProxy's own words.
const (
	maxReportMessage = 1000
	maxReportAction  = 500
)

var reasonCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// EdgeFinding is a report that was checked, and the event that it is where the state changes by it.
type EdgeFinding struct {
	clusterv1.EdgeReport
	Event clusterv1.Event
}

// PublishedStore is what the edge's methods need.
type PublishedStore interface {
	// Published gives at most limit clusters of public_access_mode loadbalancer whose id comes after after, in the order of bytes.
	Published(ctx context.Context, after string, limit int) ([]clusterv1.PublishedCluster, error)
	// SetEdge stores each finding whose cluster is still published under its host; no two are about one cluster. Since stays
	// where the state does, and neither the time nor the generation of a cluster moves.
	SetEdge(ctx context.Context, findings []EdgeFinding) error
}

// Edge answers the edge service, which asks as itself: no principal stands behind it.
type Edge struct {
	store PublishedStore
	now   func() time.Time
}

// NewEdge joins the parts.
func NewEdge(store PublishedStore, now func() time.Time) *Edge { return &Edge{store: store, now: now} }

// Published gives one page of what routes are made of.
func (e *Edge) Published(ctx context.Context, req clusterv1.PublishedRequest) (clusterv1.PublishedResponse, error) {
	if req.After != "" && !idPattern.MatchString(req.After) {
		return clusterv1.PublishedResponse{}, fault.New(fault.Invalid, "after_invalid", "a page begins after a cluster's id, and this is none").In("after")
	}
	rows, err := e.store.Published(ctx, req.After, clusterv1.MaxPublished+1)
	if err != nil {
		return clusterv1.PublishedResponse{}, err
	}
	more := len(rows) > clusterv1.MaxPublished
	if more {
		rows = rows[:clusterv1.MaxPublished]
	}
	return clusterv1.PublishedResponse{Clusters: rows, More: more}, nil
}

// Report stores what the edge found out. One report that says nothing of sense refuses them all, and nothing is stored then;
// one about a cluster that is gone or has moved on is ignored. Of two about one cluster the later one counts.
func (e *Edge) Report(ctx context.Context, req clusterv1.ReportEdgeRequest) (clusterv1.ReportEdgeResponse, error) {
	if n := len(req.Reports); n > clusterv1.MaxPublished {
		return clusterv1.ReportEdgeResponse{}, fault.New(fault.Invalid, "too_many_reports", "%d reports at once; at most %d are taken", n, clusterv1.MaxPublished).
			In("reports").Do("send them in several requests")
	}
	place := make(map[string]int, len(req.Reports))
	findings := make([]EdgeFinding, 0, len(req.Reports))
	for i, r := range req.Reports {
		if err := checkReport(i, &r); err != nil {
			return clusterv1.ReportEdgeResponse{}, err
		}
		now := e.now().UTC()
		if r.Since.IsZero() || r.Since.After(now) {
			r.Since = now
		}
		found := EdgeFinding{EdgeReport: r, Event: edgeEvent(r)}
		found.Event.At = now
		if at, twice := place[r.ID]; twice {
			findings[at] = found
			continue
		}
		place[r.ID] = len(findings)
		findings = append(findings, found)
	}
	if len(findings) == 0 {
		return clusterv1.ReportEdgeResponse{}, nil
	}
	return clusterv1.ReportEdgeResponse{}, e.store.SetEdge(ctx, findings)
}

// checkReport refuses what no edge would say, and cuts what it says at length. Ids and hosts that nothing has are only ignored.
func checkReport(i int, r *clusterv1.EdgeReport) error {
	wrong := func(text string) error {
		return fault.New(fault.Invalid, "report_invalid", "report %d: %s", i, text).In("reports")
	}
	if !utf8.ValidString(r.ID+r.Host) || strings.ContainsRune(r.ID+r.Host, 0) {
		return wrong("its id or host is no text")
	}
	switch r.State {
	case clusterv1.EdgeServing:
		if r.Reason != nil {
			return wrong("what is serving has no reason")
		}
		return nil
	case clusterv1.EdgePending, clusterv1.EdgeSkipped, clusterv1.EdgeFailed:
	default:
		return wrong("there is no such state")
	}
	if r.Reason == nil || !reasonCode.MatchString(r.Reason.Code) {
		return wrong("its reason has no code such as certificate_wrong")
	}
	reason := clusterv1.Reason{Code: r.Reason.Code, Message: line(r.Reason.Message, maxReportMessage), Action: line(r.Reason.Action, maxReportAction)}
	if reason.Message == "" {
		return wrong("its reason has no message")
	}
	r.Reason = &reason
	return nil
}

// line makes one printable line of at most limit bytes.
func line(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= limit {
		return text
	}
	const more = "…"
	cut := limit - len(more)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + more
}

// edgeEvent tells a change of the state in the timeline.
func edgeEvent(r clusterv1.EdgeReport) clusterv1.Event {
	e := clusterv1.Event{Level: clusterv1.Info, Code: EventEdgeServing}
	switch r.State {
	case clusterv1.EdgeServing:
		e.Message = fmt.Sprintf("the domain %s leads to the cluster", r.Host)
		return e
	case clusterv1.EdgePending:
		e.Code = EventEdgePending
	case clusterv1.EdgeSkipped:
		e.Level, e.Code = clusterv1.Warning, EventEdgeSkipped
		if r.Reason.Code == clusterv1.RouteRemoved {
			e.Level, e.Code = clusterv1.Info, EventRouteRemoved
		}
	case clusterv1.EdgeFailed:
		e.Level, e.Code = clusterv1.Error, EventEdgeFailed
	}
	e.Message, e.Action = r.Reason.Message, r.Reason.Action
	return e
}

// EdgeOf is what users see of what is stored of a published cluster's edge.
func EdgeOf(e clusterv1.Edge, why clusterv1.Reason) *clusterv1.Edge {
	e.Since = e.Since.UTC()
	switch {
	case why.Code == EdgeNotAsked:
		e.Reason = &clusterv1.Reason{Code: EdgeNotAsked, Message: "the edge has not taken it up yet"}
	case why.Code != "":
		e.Reason = &why
	}
	return &e
}
