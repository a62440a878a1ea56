package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// maxBody bounds a request's body, in bytes.
const maxBody = 64 << 10

// decode reads the one JSON object that the body must be. Every way to be wrong has its code, and names the field
// where there is one.
func decode[T any](w http.ResponseWriter, r *http.Request) (T, error) {
	var value T
	if err := checkJSON(r); err != nil {
		return value, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return value, err
	}
	if !utf8.Valid(body) {
		return value, fault.New(fault.Invalid, "invalid_json", "the body is not valid UTF-8")
	}
	if err := unmarshal(body, &value); err != nil {
		return value, err
	}
	return value, nil
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, fault.New(fault.TooLarge, "body_too_large", "the body is larger than %d bytes", maxBody)
	case err != nil:
		return nil, fault.New(fault.Invalid, "body_unreadable", "the body ended before its announced length").Because(err)
	}
	return body, nil
}

func checkJSON(r *http.Request) error {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == "application/json" && (params["charset"] == "" || strings.EqualFold(params["charset"], "utf-8")) {
		return nil
	}
	return fault.New(fault.Unsupported, "json_only", "the body must be JSON").In("Content-Type").
		Do("send it with the header Content-Type: application/json")
}

// checkForm refuses a write with what a form sends, where no body is read too.
func checkForm(r *http.Request) error {
	if _, given := r.Header["Content-Type"]; reads(r) || !given {
		return nil
	}
	return checkJSON(r)
}

// decodeOptional is decode for a body that may be left out.
func decodeOptional[T any](w http.ResponseWriter, r *http.Request) (T, error) {
	if r.ContentLength == 0 {
		var value T
		return value, nil
	}
	return decode[T](w, r)
}

func unmarshal(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return fault.New(fault.Invalid, "invalid_json", "the body is empty; it must be a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	var object map[string]json.RawMessage
	if err := decoder.Decode(&object); err != nil {
		return explain(err)
	}
	if object == nil {
		return fault.New(fault.Invalid, "wrong_type", "the body must be a JSON object, not null")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "trailing_data", "there is something after the JSON object")
	}
	// encoding/json takes NAME for name; the description does not.
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if hasField(reflect.TypeOf(into).Elem(), name) {
			continue
		}
		if fixed, ok := into.(immutable); ok && fixed.immutable(name) {
			return fieldImmutable(name)
		}
		return unknownField(name)
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err != nil {
		return explain(err)
	}
	return nil
}

// immutable is a body that changes something of which certain fields stay what they are for good.
type immutable interface{ immutable(field string) bool }

func fieldImmutable(name string) error {
	return fault.New(fault.Invalid, "field_immutable", "%s stays what it is for good", name).In(name).
		Do("leave it out; where it has to be another one, make another one and delete this")
}

func explain(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		got, _, _ := strings.Cut(kind.Value, " ")
		if kind.Field == "" {
			return fault.New(fault.Invalid, "wrong_type", "the body must be a JSON object, not %s", article(got))
		}
		if _, number, ok := strings.Cut(kind.Value, " "); ok {
			return fault.New(fault.Invalid, "wrong_type", "%s must be %s; %.40s is not possible", kind.Field, expected(kind.Type), number).In(kind.Field)
		}
		return fault.New(fault.Invalid, "wrong_type", "%s must be %s, not %s", kind.Field, expected(kind.Type), article(got)).In(kind.Field)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return unknownField(strings.Trim(name, `"`))
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fault.New(fault.Invalid, "invalid_json", "the body is not valid JSON, at byte %d: %s", syntax.Offset, syntax.Error())
	}
	return fault.New(fault.Invalid, "invalid_json", "the body is not valid JSON: it ends too early").Because(err)
}

func unknownField(name string) error {
	if len(name) > 60 {
		name = strings.ToValidUTF8(name[:60], "") + "…"
	}
	return fault.New(fault.Invalid, "unknown_field", "there is no field %q here", name).In(name)
}

func hasField(t reflect.Type, name string) bool {
	for i := range t.NumField() {
		tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if tag == name && tag != "-" && tag != "" {
			return true
		}
	}
	return false
}

func expected(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "an array"
	default:
		return "an object"
	}
}

func article(kind string) string {
	switch kind {
	case "bool":
		return "true or false"
	case "array", "object":
		return "an " + kind
	default:
		return "a " + kind
	}
}
