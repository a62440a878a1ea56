// Package dataplane keeps the routes in one HAProxy through the Data Plane API, version 2 or 3: a real one, or the embedded one. It
// owns the sections that are named kubebyon and the backends of the routes; whatever else stands in the configuration is
// others', and it must never lose a byte of it. It never tells its credentials to anybody but the API.
package dataplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// Options of a Client. URL and Log are required.
type Options struct {
	// URL is where the API is, without /v2 or /v3. A user and a password in it are taken where User is empty.
	URL            string
	User, Password string
	// CA, as PEM, is what the API's certificate is checked against instead of the system's.
	CA []byte
	// Transport carries the requests instead of the network; see InProcess.
	Transport http.RoundTripper
	Settings  Settings
	Log       *slog.Logger
}

// Client implements edge.Plane. It may be used by several goroutines; changes wait for one another.
type Client struct {
	base     *url.URL
	user     string
	password string
	http     *http.Client
	settings Settings
	log      *slog.Logger

	speaks apiVersion

	mu      sync.Mutex // of Apply
	written written

	seen struct {
		sync.Mutex
		mode string // as Apply last left it
	}
}

// written is our last change, and how the API wrote it down.
type written struct {
	version int64
	asked   string // digest of what was asked for
	became  string // digest of what we then read, once it was not what we had asked for
}

const (
	maxAttempts = 12
	// inCalls is how many attempts are made call by call: where others keep writing, one text leaves them less time in between.
	inCalls = 3
	// readTimeout and writeTimeout are for one call; a write waits for HAProxy's check of the whole configuration.
	readTimeout  = 20 * time.Second
	writeTimeout = 90 * time.Second
	// reloadTimeout is how long a reload may take; a Data Plane API gathers them for some seconds first.
	reloadTimeout = 90 * time.Second
	// few routes are changed one by one.
	few = 8
	// typedUpTo is the number of routes above which the whole text is faster than a few calls, each of which costs the API as much.
	typedUpTo = 200
)

// New makes a client. It asks nobody anything yet.
func New(opts Options) (*Client, error) {
	base, err := url.Parse(opts.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, errors.New("the URL of the Data Plane API is none of http or https") // not the URL: it may hold a password
	}
	if base.User != nil && opts.User == "" {
		opts.User = base.User.Username()
		opts.Password, _ = base.User.Password()
	}
	settings, err := opts.Settings.withDefaults()
	if err != nil {
		return nil, err
	}
	if opts.Transport == nil {
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			return nil, errors.New("the default transport is not net/http's")
		}
		transport = transport.Clone()
		transport.Proxy = nil // it is a neighbour
		if len(opts.CA) > 0 {
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(opts.CA) {
				return nil, errors.New("the CA of the Data Plane API holds no certificate")
			}
			transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		opts.Transport = transport
	}
	return &Client{
		base: &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/")},
		user: opts.User, password: opts.Password,
		http: &http.Client{
			Transport: opts.Transport,
			// A redirect would take the password along.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		settings: settings, log: opts.Log,
	}, nil
}

// Apply implements edge.Plane.
func (c *Client) Apply(ctx context.Context, routes []edge.Route) (edge.Applied, error) {
	want, err := plan(c.settings, routes)
	if err != nil {
		return edge.Applied{}, fault.New(fault.Invalid, "route_invalid", "a route cannot be written down: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for attempt := 1; ; attempt++ {
		applied, err := c.attempt(ctx, want, attempt > inCalls)
		if err == nil {
			return applied, nil
		}
		if !mends(err) || attempt == maxAttempts || ctx.Err() != nil {
			return edge.Applied{}, c.explain(ctx, err)
		}
		c.log.DebugContext(ctx, "the configuration changed meanwhile, or so the data plane says", slog.Any("error", err), slog.Int("attempt", attempt))
		if !pause(ctx, attempt) {
			return edge.Applied{}, c.explain(ctx, ctx.Err())
		}
	}
}

// pause is short at first: whoever comes back soonest is the next to be heard.
func pause(ctx context.Context, attempt int) bool {
	most := min(20*time.Millisecond<<attempt, 500*time.Millisecond)
	timer := time.NewTimer(most/4 + rand.N(most)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (c *Client) attempt(ctx context.Context, want *layout, whole bool) (edge.Applied, error) {
	s, err := c.session(ctx)
	if err != nil {
		return edge.Applied{}, err
	}
	return s.apply(ctx, want, whole)
}

// apply is one attempt, from reading to the end of the reload; whole is by one text and no single calls.
func (c *session) apply(ctx context.Context, want *layout, whole bool) (edge.Applied, error) {
	was, err := c.read(ctx)
	if err != nil {
		return edge.Applied{}, err
	}
	if len(want.routes) == 0 && !was.ours() {
		return edge.Applied{}, nil // an empty plane stays as it is until there is a route
	}
	path := was.mapPath
	if want.mode == modeMap && mapNameOf(path) != want.mapName {
		if path, err = c.upload(ctx, want.mapName, want.mapText); err != nil {
			return edge.Applied{}, err
		}
	}
	sections, err := want.all(path)
	if err != nil {
		return edge.Applied{}, &apiError{status: http.StatusOK, message: err.Error()}
	}
	asked := digest(sections)
	todo := compare(was, want, sections)
	if todo.nothing() || c.settled(was, asked) {
		c.remember(want)
		return edge.Applied{}, nil
	}
	reload, version, err := c.change(ctx, was, want, sections, todo, whole || was.apart)
	if err != nil {
		return edge.Applied{}, err
	}
	if reload != "" {
		if err := c.follow(ctx, reload); err != nil {
			var failed *reloadError
			if errors.As(err, &failed) {
				c.putBack(ctx, was)
			}
			return edge.Applied{}, err
		}
	}
	c.written = written{version: version, asked: asked}
	c.remember(want)
	if want.mode == modeMap || was.mapPath != "" {
		c.tidyMaps(ctx, want.mapName)
	}
	return edge.Applied{Changed: true, Reloaded: reload != ""}, nil
}

// settled tells that the configuration is our own last change, in the API's words: a release that writes something down in another
// way than we know must not have us write it again and again.
func (c *Client) settled(now *snapshot, asked string) bool {
	if c.written.asked != asked {
		return false
	}
	found := now.digest()
	if c.written.became == "" && c.written.version == now.version {
		c.written.became = found
	}
	return c.written.became == found
}

// change brings the configuration to sections in the way that disturbs least, and gives the reload that it causes, if any, and the
// new version.
func (c *session) change(ctx context.Context, was *snapshot, want *layout, sections []section, todo *changes, whole bool) (string, int64, error) {
	if !whole && todo.readdressed() {
		return c.readdress(ctx, was.version, want, todo)
	}
	if !whole && len(want.routes) <= typedUpTo && want.mode == modeRules && todo.small() {
		reload, version, err := c.transact(ctx, was, want, todo)
		if !tooMany(err) {
			return reload, version, err
		}
	}
	return c.postRaw(ctx, was.version, merge(was.text, sections), false)
}

// putBack undoes our change after a reload that failed, where the API has not done so, in its file and in its mind: the next reload, for
// whatever reason, would fail again. What others wrote meanwhile stays. HAProxy still runs with what was before.
func (c *session) putBack(ctx context.Context, was *snapshot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		now, err := c.read(ctx)
		if err == nil && !now.apart && now.digest() == was.digest() {
			return
		}
		if err == nil {
			_, _, err = c.postRaw(ctx, now.version, merge(now.text, was.sections()), true)
		}
		if err == nil {
			return
		}
		if !mends(err) || !pause(ctx, attempt) {
			c.log.ErrorContext(ctx, "the configuration before the one that failed could not be put back", slog.Any("error", err))
			return
		}
	}
}

func (c *Client) remember(l *layout) {
	c.seen.Lock()
	defer c.seen.Unlock()
	c.seen.mode = l.mode
}

func digest(sections []section) string {
	var b strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&b, "%s\n%s\n", s.header, strings.Join(s.lines, "\n"))
	}
	return sum(b.String())
}
