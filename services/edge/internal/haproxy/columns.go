package haproxy

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-openapi/strfmt"
	"github.com/haproxytech/client-native/v5/models"
)

// columns says which field of client-native's models holds what HAProxy names so.
type columns struct {
	statOf map[string]int // by the header of show stat
	infoOf map[string]int // by the name in show info, small and without separators
}

func newColumns() columns {
	c := columns{statOf: map[string]int{}, infoOf: map[string]int{}}
	for i, field := range reflect.VisibleFields(reflect.TypeFor[models.NativeStatStats]()) {
		c.statOf[jsonName(field)] = i
	}
	for i, field := range reflect.VisibleFields(reflect.TypeFor[models.ProcessInfoItem]()) {
		c.infoOf[bare(jsonName(field))] = i
	}
	for haproxy, model := range map[string]string{
		"uptimesec": "uptime", "sslfrontendsessionreusepct": "sslfrontendsessionreuse", "unstoppablejobs": "unstoppable",
	} {
		c.infoOf[haproxy] = c.infoOf[model]
	}
	return c
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

func bare(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
}

// set gives a field its value; what is no value for it is left out.
func set(field reflect.Value, text string) {
	switch to := field.Addr().Interface().(type) {
	case *string:
		*to = text
	case **string:
		*to = &text
	case **int64:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			*to = &n
		}
	case *strfmt.Date:
		if day, err := time.Parse("2006/01/02", text); err == nil {
			*to = strfmt.Date(day)
		}
	}
}

// stats reads the answer to show stat: a header that begins with "# ", then one line each. Texts may be quoted and hold commas.
func (c columns) stats(text string) ([]*models.NativeStat, error) {
	text, ok := strings.CutPrefix(text, "# ")
	if !ok {
		return nil, fmt.Errorf("show stat: %.80q", text)
	}
	lines := csv.NewReader(strings.NewReader(strings.TrimRight(text, "\n")))
	lines.FieldsPerRecord, lines.LazyQuotes, lines.ReuseRecord = -1, true, true
	first, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("show stat: %w", err)
	}
	header := append([]string(nil), first...)
	kindAt := -1
	for i, name := range header {
		if name == "type" {
			kindAt = i
		}
	}
	if kindAt < 0 || len(header) < 2 || header[0] != "pxname" || header[1] != "svname" {
		return nil, errors.New("show stat: an unknown header")
	}
	var out []*models.NativeStat
	for {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("show stat: %w", err)
		}
		if len(line) <= kindAt {
			continue
		}
		one := &models.NativeStat{Name: line[0], Stats: &models.NativeStatStats{}}
		switch line[kindAt] {
		case "0":
			one.Type = models.NativeStatTypeFrontend
		case "1":
			one.Type = models.NativeStatTypeBackend
		case "2":
			one.Type, one.Name, one.BackendName = models.NativeStatTypeServer, line[1], line[0]
		default: // a listener
			continue
		}
		fields := reflect.ValueOf(one.Stats).Elem()
		for i, value := range line {
			if i < len(header) && value != "" {
				if at, ok := c.statOf[header[i]]; ok {
					set(fields.Field(at), value)
				}
			}
		}
		out = append(out, one)
	}
}

// info reads the answer to show info typed, lines of 6.Pid.1:MGP:u32:2985.
func (c columns) info(text string) (*models.ProcessInfoItem, error) {
	out := &models.ProcessInfoItem{}
	fields := reflect.ValueOf(out).Elem()
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimRight(line, "\r\n"), ":", 4)
		if len(parts) != 4 {
			continue
		}
		name := strings.Split(parts[0], ".")
		if len(name) < 2 {
			continue
		}
		if at, ok := c.infoOf[bare(name[1])]; ok {
			set(fields.Field(at), parts[3])
		}
	}
	if out.Version == "" || out.Pid == nil {
		return nil, fmt.Errorf("show info: %.80q", text)
	}
	return out, nil
}
