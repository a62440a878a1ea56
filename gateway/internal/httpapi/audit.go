package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/audit"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// concerns names objects that the audit log finds the request under, besides those in its path: ids in their own form.
func concerns(r *http.Request, ids ...string) {
	if rec := recordOf(r); rec != nil {
		rec.objects = append(rec.objects, ids...)
	}
}

// mailForm leaves out what CheckEmail allows within a site, such as p@ssword.
var mailForm = regexp.MustCompile(`@[a-z0-9.-]+\.[a-z]{2,}$`)

// concernsEmail names an address that an attempt is for. What has not the form of an Internet address is left out: people
// type passwords into the wrong field.
func concernsEmail(r *http.Request, typed string) {
	if address := strings.ToLower(strings.TrimSpace(typed)); account.CheckEmail(address) == nil && mailForm.MatchString(address) {
		concerns(r, "email:"+address)
	}
}

// changes names the fields that a request means to change for the audit log. Values never go there.
func changes(r *http.Request, names ...string) {
	if rec := recordOf(r); rec != nil {
		rec.fields = append(rec.fields, names...)
	}
}

// given lists the fields of body, by the names of their JSON, that a request may leave out and has not.
func given(body any) (names []string) {
	value := reflect.ValueOf(body)
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	for i := range value.NumField() {
		switch name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ","); value.Field(i).Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			if !value.Field(i).IsNil() && name != "" && name != "-" {
				names = append(names, name)
			}
		}
	}
	return names
}

// audited writes the request's entry before the first byte of its answer leaves: what nobody can read in the audit log has
// no answer.
type audited struct {
	http.ResponseWriter
	write func(status int)
	done  bool
}

func (a *audited) WriteHeader(status int) {
	if status >= http.StatusOK {
		a.settle(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *audited) Write(b []byte) (int, error) {
	a.settle(http.StatusOK)
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *audited) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *audited) settle(status int) {
	if !a.done {
		a.done = true
		a.write(status)
	}
}

// audit has the request's entry written, once, for a route that has an action. end is to be deferred: it settles what did
// not answer, and a panic.
func (s *Server) audit(w http.ResponseWriter, r *http.Request, rt route) (out http.ResponseWriter, end func()) {
	if rt.Action == "" {
		return w, func() {}
	}
	a := &audited{ResponseWriter: w, write: func(status int) { s.record(r, rt, status) }}
	return a, func() {
		if a.done {
			return
		}
		// recover belongs to observe, which wants the stack. A handler that returns has its error kept, or none.
		if rec := recordOf(r); rec != nil && !rec.returned {
			rec.err = fault.New(fault.Internal, "internal", "something went wrong on our side")
			a.settle(http.StatusInternalServerError)
			return
		}
		a.settle(http.StatusOK)
	}
}

func (s *Server) record(r *http.Request, rt route, status int) {
	rec := recordOf(r)
	if rec == nil {
		return
	}
	e := audit.Event{
		At: time.Now().UTC(), Actor: rec.user, Credential: rec.credential, Action: rt.Action, Client: clientAddress(r).String(),
		Status: status, TraceID: traceID(r.Context()), Detail: audit.Detail{Fields: rec.fields, Replayed: rec.replayed}, Objects: unique(rec.ids, rec.objects),
	}
	worst := status
	if f := fault.From(rec.err); f != nil {
		e.Code = f.Code
		worst = max(worst, statusOf(f.Kind)) // a join script that only fails has status 200
	}
	switch {
	case worst == http.StatusTooManyRequests:
		return // there may be any number of them; the limits are counted elsewhere
	case worst >= 500:
		e.Outcome = audit.Failed
	case worst >= 400:
		e.Outcome = audit.Refused
	default:
		e.Outcome = audit.OK
	}
	if id := s.identity.Load(); id != nil && id.Audit != nil {
		id.Audit.Record(r.Context(), e)
		return
	}
	audit.RecordWithoutStore(r.Context(), s.log, e)
}

func unique(lists ...[]string) []string {
	all := []string{}
	for _, ids := range lists {
		for _, id := range ids {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// auditFilters are the parameters by which the audit log is searched.
var auditFilters = []string{"since", "until", "actor", "action", "object", "client", "outcome", "trace_id"}

// Limits of a page of the audit log.
const (
	auditPage    = 100
	auditPageMax = 500
)

type auditBody struct {
	Events     []audit.Event `json:"events"`
	NextCursor string        `json:"next_cursor"` // empty: there is no more
}

func (s *Server) searchAudit(w http.ResponseWriter, r *http.Request) error {
	asked, filter, err := readFilter(r)
	if err != nil {
		return err
	}
	limit, cursor := auditPage, int64(0)
	if text, ok := asked["limit"]; ok {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > auditPageMax {
			return wrongParameter("limit", "a whole number from 1 to 500")
		}
	}
	if text, ok := asked["cursor"]; ok {
		if cursor, err = strconv.ParseInt(text, 10, 64); err != nil || cursor < 1 {
			return wrongParameter("cursor", "the next_cursor of the answer before")
		}
	}
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	found, next, err := id.Audit.Search(r.Context(), filter, cursor, limit)
	if err != nil {
		return err
	}
	body := auditBody{Events: list(found)}
	if next > 0 {
		body.NextCursor = strconv.FormatInt(next, 10)
	}
	return writeJSON(w, http.StatusOK, body)
}

// exportAudit sends entries as they are read: neither their number nor a slow reader takes memory. What fails on the way
// cuts the connection, so that a part does not look like the whole.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request) error {
	asked, filter, err := readFilter(r)
	if err != nil {
		return err
	}
	for _, name := range auditFilters {
		if _, ok := asked[name]; ok {
			changes(r, name)
		}
	}
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	out := &downloadWriter{ResponseWriter: w, control: control}
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	begun := false
	err = id.Audit.Export(r.Context(), filter, func(page []audit.Event) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.Header().Set("Content-Disposition", `attachment; filename=audit.ndjson`)
			out.WriteHeader(http.StatusOK)
		}
		for _, e := range page {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return control.Flush()
	})
	if err != nil && begun {
		s.log.WarnContext(context.WithoutCancel(r.Context()), "export of the audit log cut off", slog.Any("error", err))
		panic(http.ErrAbortHandler)
	}
	return err
}

var (
	userIDForm  = regexp.MustCompile(`^usr_[a-z0-9]{20}$`)
	actionForm  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,60}\.([a-z][a-z0-9_]{0,60})?$`)
	objectForm  = regexp.MustCompile(`^[!-~]{1,300}$`)
	traceIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// readFilter checks every parameter by which the audit log is searched; it gives them as they came too.
func readFilter(r *http.Request) (asked map[string]string, f audit.Filter, err error) {
	values, err := query(r)
	if err != nil {
		return nil, f, err
	}
	if asked, err = single(values); err != nil {
		return nil, f, err
	}
	for name, into := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text, ok := asked[name]; ok {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return nil, f, wrongParameter(name, "a time like 2026-12-01T00:00:00Z")
			}
			*into = at
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return nil, f, wrongParameter("until", "a time after since")
	}
	for _, c := range []struct {
		name, want string
		form       *regexp.Regexp
		into       *string
	}{
		{"actor", "a user's id, usr_…", userIDForm, &f.Actor},
		{"action", "an action such as cluster.delete, or the beginning of some with a dot at its end, such as cluster.", actionForm, &f.Action},
		{"object", "an object's id, such as cl_…", objectForm, &f.Object},
		{"outcome", "ok, refused or failed", regexp.MustCompile(`^(ok|refused|failed)$`), (*string)(&f.Outcome)},
		{"trace_id", "32 hexadecimal digits", traceIDForm, &f.TraceID},
	} {
		if text, ok := asked[c.name]; ok {
			if !c.form.MatchString(text) {
				return nil, f, wrongParameter(c.name, c.want)
			}
			*c.into = text
		}
	}
	if text, ok := asked["client"]; ok {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return nil, f, wrongParameter("client", "an IP address")
		}
		f.Client = address.Unmap().String()
	}
	return asked, f, nil
}

func single(values url.Values) (map[string]string, error) {
	one := map[string]string{}
	for name, all := range values {
		if len(all) > 1 && (slices.Contains(auditFilters, name) || name == "limit" || name == "cursor") {
			return nil, wrongParameter(name, "given once")
		}
		one[name] = all[0]
	}
	return one, nil
}

func wrongParameter(name, want string) error {
	return fault.New(fault.Invalid, "parameter_invalid", "%s must be %s", name, want).In(name)
}
