// Package config turns environment variables into a process's settings. A wrong value ends in one line that names the
// variable and says what it accepts. It must never repeat a secret's value, and never read the environment by itself.
package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/caarlos0/env/v11"

	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// Common is what every process takes; embed it.
type Common struct {
	LogFormat string `env:"KUBEBYON_LOG_FORMAT" envDefault:"text" enum:"text|json"`
	LogLevel  string `env:"KUBEBYON_LOG_LEVEL" envDefault:"info" enum:"debug|info|warn|error"`
}

// LogSettings are what telemetry.NewLogger takes.
func (c Common) LogSettings() (format, level string) { return c.LogFormat, c.LogLevel }

// Load fills a T from lookup, following the tags of github.com/caarlos0/env: `env:"NAME,required"`, `envDefault:"…"`,
// `envSeparator:","`. Two more tags are ours:
//
//	accepts:"an address such as :8080"   what a valid value looks like, for the error
//	enum:"text|json"                     the only values of a string (or of each element of a slice of strings)
//
// A variable that is set to the empty string counts as unset, as compose files write it. The error is one line about the
// first wrong variable; it repeats the value, shortened, unless the field is a telemetry.Secret, a DSN or `secret:"true"`,
// or the variable's name says that it is one.
func Load[T any](lookup func(string) (string, bool)) (T, error) {
	var zero T
	fields := describe(reflect.TypeFor[T]())
	set := map[string]string{}
	for _, f := range fields {
		if v, ok := lookup(f.key); ok && v != "" {
			set[f.key] = v
		}
	}
	for _, f := range fields {
		if v, ok := set[f.key]; ok && f.enum != nil {
			for _, part := range f.split(v) {
				if !f.allows(part) {
					return zero, f.wrong(v, errors.New("it is not one of the known values"))
				}
			}
		}
	}
	cfg, err := env.ParseAsWithOptions[T](env.Options{Environment: set})
	if err != nil {
		return zero, explain(err, fields, set)
	}
	return cfg, nil
}

// explain turns env's first error into ours.
func explain(err error, fields []field, set map[string]string) error {
	var all env.AggregateError
	if errors.As(err, &all) && len(all.Errors) > 0 {
		err = all.Errors[0]
	}
	var (
		parse   env.ParseError
		missing env.VarIsNotSetError
		empty   env.EmptyVarError
	)
	switch {
	case errors.As(err, &missing):
		return needed(missing.Key, fields)
	case errors.As(err, &empty):
		return needed(empty.Key, fields)
	case errors.As(err, &parse):
		for _, f := range fields {
			if v, ok := set[f.key]; ok && f.name == parse.Name && f.typ == parse.Type && !f.takes(v) {
				return f.wrong(v, parse.Err)
			}
		}
		for _, f := range fields {
			if v, ok := set[f.key]; ok && f.name == parse.Name {
				return f.wrong(v, parse.Err)
			}
		}
	}
	return fmt.Errorf("the configuration's own declaration is wrong: %T", err) // its text may repeat a value
}

// takes reports whether the value is one of the field's, where its type can say so: env names the struct's field alone, and two
// structs may have the same.
func (f field) takes(value string) bool {
	text, ok := reflect.New(f.typ).Interface().(encoding.TextUnmarshaler)
	return ok && text.UnmarshalText([]byte(value)) == nil
}

func needed(key string, fields []field) error {
	for _, f := range fields {
		if f.key == key {
			return fmt.Errorf("%s is not set and has no default; it accepts %s", key, f.describe())
		}
	}
	return fmt.Errorf("%s is not set and has no default", key)
}

// field is one variable of a configuration.
type field struct {
	key, name, accepts, separator string
	typ                           reflect.Type
	enum                          []string
	secret                        bool
}

var secretName = regexp.MustCompile(`(?i)(^|_)(DSN|PASSWORD|PASSWD|SECRET|TOKEN|KEY|CREDENTIALS?)$`)

// describe walks T as env does: embedded and nested structs, with their envPrefix.
func describe(t reflect.Type) []field { return walk(t, "") }

func walk(t reflect.Type, prefix string) []field {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var out []field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, _, _ := strings.Cut(sf.Tag.Get("env"), ",")
		if key == "" {
			out = append(out, walk(sf.Type, prefix+sf.Tag.Get("envPrefix"))...)
			continue
		}
		f := field{
			key: prefix + key, name: sf.Name, typ: sf.Type, accepts: sf.Tag.Get("accepts"), separator: sf.Tag.Get("envSeparator"),
			secret: sf.Tag.Get("secret") == "true" || secretName.MatchString(key) ||
				sf.Type == reflect.TypeFor[telemetry.Secret]() || sf.Type == reflect.TypeFor[DSN](),
		}
		if e := sf.Tag.Get("enum"); e != "" {
			f.enum = strings.Split(e, "|")
		}
		if f.separator == "" {
			f.separator = ","
		}
		out = append(out, f)
	}
	return out
}

func (f field) split(v string) []string {
	if f.typ.Kind() == reflect.Slice {
		return strings.Split(v, f.separator)
	}
	return []string{v}
}

func (f field) allows(v string) bool {
	for _, e := range f.enum {
		if v == e {
			return true
		}
	}
	return false
}

// wrong is the one line. cause is used for what kind of mistake it was, never for its text where that may hold the value.
func (f field) wrong(value string, cause error) error {
	shown := "its value"
	if !f.secret {
		shown = fmt.Sprintf("%.80q", value)
	}
	why := "is not valid"
	if m := reason(cause); m != "" && !f.secret {
		why += " (" + m + ")"
	}
	return fmt.Errorf("%s: %s %s; it accepts %s", f.key, shown, why, f.describe())
}

// reason is cause on one line, without the parser's name and the value that it repeats.
func reason(cause error) string {
	text := cause.Error()
	if strings.HasPrefix(text, "strconv.") || strings.Contains(text, "time: ") {
		return ""
	}
	return strings.Join(strings.Fields(text), " ")
}

// describe says what the variable accepts.
func (f field) describe() string {
	switch {
	case f.accepts != "":
		return f.accepts
	case f.enum != nil && f.typ.Kind() == reflect.Slice:
		return "a list, separated by " + f.separator + ", of " + strings.Join(f.enum, ", ")
	case f.enum != nil:
		return "one of " + strings.Join(f.enum, ", ")
	case f.typ == reflect.TypeFor[HostPort]():
		return "an address and a port, such as :8080 or 127.0.0.1:8080"
	case f.typ == reflect.TypeFor[DSN]():
		return "a PostgreSQL URL, such as postgresql://user:password@host:5432/database"
	case f.typ.PkgPath() == "time" && f.typ.Name() == "Duration":
		return "a duration, such as 90s or 5m"
	}
	switch f.typ.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	case reflect.Slice:
		return "a list separated by " + f.separator
	default:
		return "text"
	}
}
