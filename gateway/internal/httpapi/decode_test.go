package httpapi

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestDecode(t *testing.T) {
	type body struct {
		Name       string  `json:"name"`
		TTLSeconds *int64  `json:"ttl_seconds"`
		Mode       *string `json:"mode"`
		Settings   *struct {
			URL *string `json:"url"`
		} `json:"settings"`
	}
	for _, c := range []struct{ in, code, field, detail string }{
		{`{"name":"demo","ttl_seconds":60}`, "", "", ""},
		{" {}\n", "", "", ""},
		{`{"ttl_seconds":null}`, "", "", ""},
		{`{"ttl_seconds":"7200"}`, "wrong_type", "ttl_seconds", "ttl_seconds must be a whole number, not a string"},
		{`{"ttl_seconds":1.5}`, "wrong_type", "ttl_seconds", "ttl_seconds must be a whole number; 1.5 is not possible"},
		{`{"ttl_seconds":99999999999999999999}`, "wrong_type", "ttl_seconds", "ttl_seconds must be a whole number; 99999999999999999999 is not possible"},
		{`{"ttl_seconds":true}`, "wrong_type", "ttl_seconds", "ttl_seconds must be a whole number, not true or false"},
		{`{"ttl_seconds":{}}`, "wrong_type", "ttl_seconds", "ttl_seconds must be a whole number, not an object"},
		{`{"name":5}`, "wrong_type", "name", "name must be a string, not a number"},
		{`{"name":["a"]}`, "wrong_type", "name", "name must be a string, not an array"},
		{`{"settings":{"url":5}}`, "wrong_type", "settings.url", ""},
		{`{"settings":"x"}`, "wrong_type", "settings", "settings must be an object, not a string"},
		{`{"naem":"demo"}`, "unknown_field", "naem", `there is no field "naem" here`},
		{`{"NAME":"demo"}`, "unknown_field", "NAME", ""},
		{`{"":"demo"}`, "unknown_field", "", ""},
		{`{"settings":{"nope":1}}`, "unknown_field", "nope", ""},
		{`{"` + strings.Repeat("ü", 500) + `":1}`, "unknown_field", strings.Repeat("ü", 30) + "…", ""},
		{`{"name":"a"}{"name":"b"}`, "trailing_data", "", ""},
		{`{"name":"a"} x`, "trailing_data", "", ""},
		{`[]`, "wrong_type", "", "the body must be a JSON object, not an array"},
		{`"x"`, "wrong_type", "", "the body must be a JSON object, not a string"},
		{`5`, "wrong_type", "", "the body must be a JSON object, not a number"},
		{`null`, "wrong_type", "", ""},
		{``, "invalid_json", "", ""},
		{"  \n", "invalid_json", "", ""},
		{`{"name":"a"`, "invalid_json", "", ""},
		{`{"name":'a'}`, "invalid_json", "", ""},
		{`{name:"a"}`, "invalid_json", "", ""},
		{`{"name":"a",}`, "invalid_json", "", ""},
		{"{\"name\":\"\xff\"}", "invalid_json", "", ""},
		{"\ufeff{}", "invalid_json", "", ""},
		{strings.Repeat("[", 20000), "invalid_json", "", ""},
		{`{"name":"` + strings.Repeat("x", maxBody) + `"}`, "body_too_large", "", ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.in))
		r.Header.Set("Content-Type", "application/json; charset=UTF-8")
		_, err := decode[body](httptest.NewRecorder(), r)
		if c.code == "" {
			if err != nil {
				t.Errorf("%.80q: %v", c.in, err)
			}
			continue
		}
		f := fault.From(err)
		if err == nil || f.Code != c.code || f.Field != c.field || (c.detail != "" && f.Message != c.detail) {
			t.Errorf("%.80q: %v (in %q), want %s in %q: %s", c.in, err, fieldOf(f), c.code, c.field, c.detail)
		}
	}
}

func fieldOf(f *fault.Error) string {
	if f == nil {
		return ""
	}
	return f.Field
}

func TestDecodeWantsJSON(t *testing.T) {
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx",
		"application/json; charset=utf-16", "text/plain; application/json", "application/json,text/plain"} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{}`))
		r.Header.Set("Content-Type", kind)
		if _, err := decode[struct{}](httptest.NewRecorder(), r); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%q: %v", kind, err)
		}
	}
}

func TestDecodeOptional(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	if _, err := decodeOptional[struct{}](httptest.NewRecorder(), r); err != nil {
		t.Error(err)
	}
	r = httptest.NewRequest(http.MethodPost, "/", io.NopCloser(strings.NewReader(`{"a":1}`)))
	r.ContentLength = -1 // chunked
	r.Header.Set("Content-Type", "application/json")
	if _, err := decodeOptional[struct{}](httptest.NewRecorder(), r); fault.From(err).Code != "unknown_field" {
		t.Error(err)
	}
}

// What decodes is what encoding/json makes of it, and every refusal is the client's fault, in printable words.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"name":"demo"}`, `{"name":1}`, `{"x":{}}`, `[]`, ``, `{"name":"a"}}`, "{\"\\u0000\":1}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		got, err := decode[clusterv1.CreateRequest](httptest.NewRecorder(), r)
		if err == nil {
			var want clusterv1.CreateRequest
			if json.Unmarshal([]byte(text), &want) != nil || got != want {
				t.Fatalf("%q became %+v", text, got)
			}
			return
		}
		if status := statusOf(fault.From(err).Kind); status < 400 || status >= 500 {
			t.Fatalf("%q: status %d: %v", text, status, err)
		}
	})
}
