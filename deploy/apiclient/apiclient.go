// Package apiclient speaks to the gateway the way a person's script would: JSON over HTTP, and the session cookie or an API
// token. It must know nothing of the product beyond its HTTP API.
package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"time"
)

// Client keeps the session of whoever logs in with it.
type Client struct {
	Base  string // http://host:port
	Token string // an API token; where it is set, the gateway does not read the session
	HTTP  *http.Client
}

// New makes a client without a session; a nil transport is the default one.
func New(base string, transport http.RoundTripper) (*Client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	return &Client{Base: base, HTTP: &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}}, nil
}

// ProblemError is an application/problem+json answer.
type ProblemError struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Action  string `json:"action"`
	TraceID string `json:"trace_id"`
}

// Error implements error.
func (p *ProblemError) Error() string {
	text := fmt.Sprintf("HTTP %d %s: %s", p.Status, p.Code, p.Detail)
	if p.Action != "" {
		text += " (" + p.Action + ")"
	}
	return text
}

// Call sends in as JSON (nil: no body) and decodes the answer into out (nil: ignored). A non-2xx answer is a *ProblemError.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	body, err := c.Raw(ctx, method, path, in)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s %s answered something else than the JSON expected: %w", method, path, err)
	}
	return nil
}

// Raw is Call with the answer's body as it came, at most 16 MiB.
func (c *Client) Raw(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		p := &ProblemError{}
		if json.Unmarshal(answer, p) != nil || p.Code == "" {
			p = &ProblemError{Code: "unexpected_body", Detail: strings.TrimSpace(string(answer))}
		}
		p.Status = response.StatusCode
		return nil, fmt.Errorf("%s %s: %w", method, strings.SplitN(path, "?", 2)[0], p)
	}
	return answer, nil
}

// Poll calls done at once and then every interval until it is true, fails, or ctx ends.
func Poll(ctx context.Context, interval time.Duration, done func() (bool, error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
