package dataplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/haproxytech/client-native/v5/models"
)

// session is a client that knows what its API speaks.
type session struct {
	*Client
	api string
}

func (c *Client) session(ctx context.Context) (*session, error) {
	name, err := c.negotiate(ctx)
	if err != nil {
		return nil, err
	}
	return &session{c, name}, nil
}

// apiVersion remembers what the API was found to speak, until a call fails.
type apiVersion struct {
	mu   sync.Mutex
	name string // v2 or v3
}

// call is one request to the API.
type call struct {
	method, path string
	query        url.Values
	kind         string // of the body
	body         []byte
	limit        int64 // of the answer
	timeout      time.Duration
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

// reload gives the id of the reload that a change causes.
func (r *reply) reload() string {
	if r.status != http.StatusAccepted {
		return ""
	}
	return r.header.Get("Reload-Id")
}

const (
	smallAnswer = 1 << 20
	// textAnswer is far above a configuration of ten thousand routes, and statsAnswer above its statistics.
	textAnswer  = 64 << 20
	statsAnswer = 256 << 20

	textPlain = "text/plain"
	asJSON    = "application/json"
)

// apiError is an answer that the API meant as a refusal.
type apiError struct {
	status  int
	message string
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the data plane answers %d: %s", e.status, oneLine(e.message))
}

// strangeError says that what answers is no Data Plane API.
type strangeError struct{ why string }

func (e *strangeError) Error() string { return "what answers is no Data Plane API: " + e.why }

// reloadError says that HAProxy could not start with the configuration.
type reloadError struct{ words string }

func (e *reloadError) Error() string { return "the reload failed: " + oneLine(e.words) }

// do sends one request below /v2 or /v3. Its errors hold no credentials.
func (c *session) do(ctx context.Context, in call) (*reply, error) {
	in.path = "/" + c.api + "/services/haproxy" + in.path
	out, err := c.send(ctx, in)
	if err != nil && !answered(err) {
		c.forget()
	}
	return out, err
}

// answered tells that an API of the version that we know has refused something.
func answered(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && refused.status < 500 && refused.status != http.StatusNotFound && refused.status != http.StatusUnauthorized
}

func (c *Client) send(ctx context.Context, in call) (*reply, error) {
	if in.limit == 0 {
		in.limit = smallAnswer
	}
	if in.timeout == 0 {
		in.timeout = readTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, in.timeout)
	defer cancel()
	target := *c.base
	target.Path += in.path
	target.RawQuery = in.query.Encode()
	r, err := http.NewRequestWithContext(ctx, in.method, target.String(), bytes.NewReader(in.body))
	if err != nil {
		return nil, fmt.Errorf("ask the data plane: %w", err)
	}
	if in.body != nil {
		r.Header.Set("Content-Type", in.kind)
	}
	if c.user != "" {
		r.SetBasicAuth(c.user, c.password)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("reach the data plane: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, in.limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("hear the data plane: %w", err)
	case int64(len(body)) > in.limit:
		return nil, &strangeError{why: "its answer has no end"}
	case resp.StatusCode >= 300 || resp.StatusCode < 200:
		return nil, &apiError{status: resp.StatusCode, message: messageOf(body)}
	}
	return &reply{status: resp.StatusCode, header: resp.Header, body: body}, nil
}

// messageOf reads models.Error, which the raw calls of v3 send as text in JSON.
func messageOf(body []byte) string {
	var text string
	if json.Unmarshal(body, &text) == nil {
		body = []byte(text)
	}
	var e models.Error
	if json.Unmarshal(body, &e) == nil && e.Message != nil {
		return *e.Message
	}
	return ""
}

// negotiate finds the API's version, the newer one first.
func (c *Client) negotiate(ctx context.Context) (string, error) {
	c.speaks.mu.Lock()
	defer c.speaks.mu.Unlock()
	if c.speaks.name != "" {
		return c.speaks.name, nil
	}
	var last error
	for _, name := range []string{"v3", "v2"} {
		got, err := c.send(ctx, call{method: http.MethodGet, path: "/" + name + "/info"})
		if err == nil {
			var info models.Info
			if json.Unmarshal(got.body, &info) != nil || info.API == nil {
				return "", &strangeError{why: "it tells no version"}
			}
			c.speaks.name = name
			return name, nil
		}
		var refused *apiError
		if !errors.As(err, &refused) || refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden {
			return "", err
		}
		last = err
	}
	var refused *apiError
	if errors.As(last, &refused) && refused.status < http.StatusInternalServerError {
		return "", &strangeError{why: "it has neither /v3/info nor /v2/info"}
	}
	return "", last
}

func (c *Client) forget() {
	c.speaks.mu.Lock()
	defer c.speaks.mu.Unlock()
	c.speaks.name = ""
}

func (c *session) v3() bool { return c.api == "v3" }

// get reads JSON.
func (c *session) get(ctx context.Context, path string, query url.Values, limit int64, into any) error {
	got, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query, limit: limit})
	if err != nil {
		return err
	}
	return got.decode(into)
}

func (r *reply) decode(into any) error {
	if err := json.Unmarshal(r.body, into); err != nil {
		return &strangeError{why: "its answer is not the JSON that it should be"}
	}
	return nil
}

// read gives the configuration. The version is asked for first: where somebody writes in between, it is too old, and our change will
// be refused instead of undoing theirs.
func (c *session) read(ctx context.Context) (*snapshot, error) {
	var version int64
	if err := c.get(ctx, "/configuration/version", nil, 0, &version); err != nil {
		return nil, err
	}
	got, err := c.do(ctx, call{method: http.MethodGet, path: "/configuration/raw", limit: textAnswer})
	if err != nil {
		return nil, err
	}
	if c.v3() {
		if strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			return nil, &strangeError{why: "its configuration is a page"}
		}
		return newSnapshot(version, string(got.body)), nil
	}
	var raw struct {
		Data *string `json:"data"`
	}
	if err := got.decode(&raw); err != nil {
		return nil, err
	}
	if raw.Data == nil {
		return nil, &strangeError{why: "its configuration has no text"}
	}
	return newSnapshot(version, *raw.Data), nil
}

// postRaw replaces the whole configuration; quietly is without a reload.
func (c *session) postRaw(ctx context.Context, version int64, text string, quietly bool) (reload string, newVersion int64, err error) {
	query := versionQuery(version)
	if quietly {
		query.Set("skip_reload", "true")
	}
	got, err := c.do(ctx, call{
		method: http.MethodPost, path: "/configuration/raw", query: query,
		kind: textPlain, body: []byte(text), limit: textAnswer, timeout: writeTimeout,
	})
	if err != nil {
		return "", 0, err
	}
	return got.reload(), version + 1, nil
}

func versionQuery(version int64) url.Values {
	return url.Values{"version": {strconv.FormatInt(version, 10)}}
}

// follow waits for the end of a reload.
func (c *session) follow(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	missing := 0
	for wait := 10 * time.Millisecond; ; wait = min(wait*3/2, 300*time.Millisecond) {
		var now models.Reload
		err := c.get(ctx, "/reloads/"+url.PathEscape(id), nil, 0, &now)
		var refused *apiError
		switch {
		case errors.As(err, &refused) && refused.status == http.StatusNotFound && missing < 5:
			missing++
		case err != nil:
			if errors.As(err, &refused) { // the change is made: reading again would not tell what became of it
				return &strangeError{why: "it does not know its own reload"}
			}
			return err
		case now.Status == models.ReloadStatusSucceeded:
			return nil
		case now.Status == models.ReloadStatusFailed:
			return &reloadError{words: now.Response}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the reload: %w", ctx.Err())
		case <-timer.C:
		}
	}
}

// upload stores a map that no configuration names yet, and gives its path.
func (c *session) upload(ctx context.Context, name, text string) (string, error) {
	stored, err := c.maps(ctx)
	if err != nil {
		return "", err
	}
	if file, is := stored[name]; is {
		_, err := c.do(ctx, call{
			method: http.MethodPut, path: "/storage/maps/" + name, query: url.Values{"skip_reload": {"true"}},
			kind: textPlain, body: []byte(text), timeout: writeTimeout,
		})
		return file, err
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file_upload", name)
	if err == nil {
		_, err = io.WriteString(part, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", fmt.Errorf("write the map: %w", err)
	}
	got, err := c.do(ctx, call{
		method: http.MethodPost, path: "/storage/maps", kind: w.FormDataContentType(), body: form.Bytes(), timeout: writeTimeout,
	})
	if err != nil {
		return "", err
	}
	var m models.Map
	if err := got.decode(&m); err != nil {
		return "", err
	}
	if mapNameOf(m.File) != name {
		return "", &strangeError{why: "it stores a map under another name"}
	}
	return m.File, nil
}

// maps gives the paths of the stored maps by name.
func (c *session) maps(ctx context.Context) (map[string]string, error) {
	var stored models.Maps
	err := c.get(ctx, "/storage/maps", nil, 0, &stored)
	var refused *apiError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(stored))
	for _, m := range stored {
		if m != nil {
			out[mapNameOf(m.File)] = m.File
		}
	}
	return out, nil
}

// tidyMaps deletes the maps of ours that the configuration no longer names. One that stays costs nothing but its bytes.
func (c *session) tidyMaps(ctx context.Context, keep string) {
	stored, err := c.maps(ctx)
	if err != nil {
		return
	}
	for name := range stored {
		if name != keep && strings.HasPrefix(name, mapPrefix) && strings.HasSuffix(name, mapSuffix) {
			_, _ = c.do(ctx, call{method: http.MethodDelete, path: "/storage/maps/" + url.PathEscape(name)})
		}
	}
}

// sortedKeys makes calls come in the same order every time.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
