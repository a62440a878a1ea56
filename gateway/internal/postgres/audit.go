package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/audit"
)

var _ audit.Store = (*Store)(nil)

// AddEvent implements audit.Store.
func (s *Store) AddEvent(ctx context.Context, e audit.Event) error {
	if e.Objects == nil {
		e.Objects = []string{}
	}
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `insert into audit_log (at, actor, credential, action, objects, client, outcome, status, code, trace_id, detail)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			e.At, e.Actor, e.Credential, e.Action, e.Objects, e.Client, e.Outcome, e.Status, e.Code, e.TraceID, e.Detail)
		return err
	})
}

// NewestEvents implements audit.Store.
func (s *Store) NewestEvents(ctx context.Context, f audit.Filter, before int64, limit int) ([]audit.Event, error) {
	where := narrow(f)
	if before > 0 {
		where.and("id < %s", before)
	}
	return s.events(ctx, where, "id desc", limit)
}

// OldestEvents implements audit.Store.
func (s *Store) OldestEvents(ctx context.Context, f audit.Filter, after, upTo int64, limit int) ([]audit.Event, error) {
	where := narrow(f)
	where.and("id > %s", after)
	where.and("id <= %s", upTo)
	return s.events(ctx, where, "id", limit)
}

// LastEventID implements audit.Store.
func (s *Store) LastEventID(ctx context.Context) (id int64, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select coalesce(max(id), 0) from audit_log`).Scan(&id)
	})
	return id, err
}

func (s *Store) events(ctx context.Context, where *condition, order string, limit int) (found []audit.Event, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, `select id, at, actor, credential, action, objects, client, outcome, status, code, trace_id, detail
			from audit_log where true`+where.text.String()+` order by `+order+fmt.Sprintf(` limit %d`, limit), where.values...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e audit.Event, err error) {
			err = row.Scan(&e.ID, &e.At, &e.Actor, &e.Credential, &e.Action, &e.Objects, &e.Client, &e.Outcome, &e.Status, &e.Code, &e.TraceID, &e.Detail)
			e.At = e.At.UTC()
			return e, err
		})
		return err
	})
	return found, err
}

// condition is what stands behind where. Each part is only there where it narrows, so that the planner sees the index for it.
type condition struct {
	text   strings.Builder
	values []any
}

// and adds a part of ours with one value; %s is the value's place.
func (c *condition) and(part string, value any) {
	c.values = append(c.values, value)
	c.text.WriteString(" and " + fmt.Sprintf(part, fmt.Sprintf("$%d", len(c.values))))
}

func narrow(f audit.Filter) *condition {
	c := &condition{}
	if !f.Since.IsZero() {
		c.and("at >= %s", f.Since)
	}
	if !f.Until.IsZero() {
		c.and("at < %s", f.Until)
	}
	if f.Actor != "" {
		c.and("actor = %s", f.Actor)
	}
	switch {
	case strings.HasSuffix(f.Action, "."):
		c.and(`action like %s`, strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(f.Action)+"%")
	case f.Action != "":
		c.and("action = %s", f.Action)
	}
	if f.Object != "" {
		c.and("objects @> array[%s::text]", f.Object)
	}
	if f.Client != "" {
		c.and("client = %s", f.Client)
	}
	if f.Outcome != "" {
		c.and("outcome = %s", f.Outcome)
	}
	if f.TraceID != "" {
		c.and("trace_id = %s", f.TraceID)
	}
	return c
}
