package haproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	oaerrors "github.com/go-openapi/errors"
	"github.com/go-openapi/strfmt"
	"github.com/haproxytech/client-native/v5/configuration"
	"github.com/haproxytech/client-native/v5/models"
)

// maxBody is far above a configuration of ten thousand routes.
const maxBody = 32 << 20

// answer is what a handler gives: a status, headers and a body that becomes JSON; nil is none.
type answer struct {
	status int
	reload string // the id of the reload that the change has caused
	header http.Header
	body   any
}

// route answers one method of one path; a part of the path in braces is a parameter, read with r.PathValue.
type route struct {
	method, path string
	serve        func(context.Context, *http.Request) (answer, error)
}

const services = "/v2/services/haproxy"

func (p *Plane) routes() []route {
	return []route{
		{http.MethodGet, "/v2/info", p.getInfo},
		{http.MethodGet, services + "/configuration/version", p.getVersion},
		{http.MethodGet, services + "/configuration/raw", p.getRaw},
		{http.MethodPost, services + "/configuration/raw", p.postRaw},
		{http.MethodGet, services + "/transactions", p.getTransactions},
		{http.MethodPost, services + "/transactions", p.postTransaction},
		{http.MethodGet, services + "/transactions/{id}", p.getTransaction},
		{http.MethodPut, services + "/transactions/{id}", p.putTransaction},
		{http.MethodDelete, services + "/transactions/{id}", p.deleteTransaction},
		{http.MethodGet, services + "/configuration/backends", p.getBackends},
		{http.MethodPost, services + "/configuration/backends", p.postBackend},
		{http.MethodGet, services + "/configuration/backends/{name}", p.getBackend},
		{http.MethodDelete, services + "/configuration/backends/{name}", p.deleteBackend},
		{http.MethodGet, services + "/configuration/servers", p.getServers},
		{http.MethodPost, services + "/configuration/servers", p.postServer},
		{http.MethodGet, services + "/configuration/servers/{name}", p.getServer},
		{http.MethodPut, services + "/configuration/servers/{name}", p.putServer},
		{http.MethodDelete, services + "/configuration/servers/{name}", p.deleteServer},
		{http.MethodGet, services + "/configuration/backend_switching_rules", p.getRules},
		{http.MethodPost, services + "/configuration/backend_switching_rules", p.postRule},
		{http.MethodGet, services + "/configuration/backend_switching_rules/{index}", p.getRule},
		{http.MethodDelete, services + "/configuration/backend_switching_rules/{index}", p.deleteRule},
		{http.MethodGet, services + "/runtime/info", p.getProcesses},
		{http.MethodGet, services + "/stats/native", p.getStats},
		{http.MethodGet, services + "/storage/maps", p.getMaps},
		{http.MethodPost, services + "/storage/maps", p.postMap},
		{http.MethodGet, services + "/storage/maps/{name}", p.getMap},
		{http.MethodPut, services + "/storage/maps/{name}", p.putMap},
		{http.MethodDelete, services + "/storage/maps/{name}", p.deleteMap},
		{http.MethodGet, services + "/reloads", p.getReloads},
		{http.MethodGet, services + "/reloads/{id}", p.getReload},
	}
}

// handler tells paths and methods apart as the Data Plane API does, with its errors.
func (p *Plane) handler() http.Handler {
	routes := p.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, one := range routes {
			values, ok := match(one.path, r.URL.EscapedPath())
			if !ok {
				continue
			}
			if one.method != r.Method {
				allowed = append(allowed, one.method)
				continue
			}
			for name, value := range values {
				r.SetPathValue(name, value)
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			got, err := p.serve(r, one)
			p.reply(w, got, err)
			return
		}
		if allowed == nil {
			p.reply(w, answer{}, refuse(http.StatusNotFound, "path %s was not found", r.URL.Path))
			return
		}
		slices.Sort(allowed)
		got := answer{header: http.Header{"Allow": {strings.Join(allowed, ",")}}}
		p.reply(w, got, refuse(http.StatusMethodNotAllowed, "method %s is not allowed, but [%s] are", r.Method, strings.Join(allowed, ",")))
	})
}

func match(pattern, path string) (map[string]string, bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(strings.TrimSuffix(path, "/"), "/")
	if len(want) != len(have) {
		return nil, false
	}
	values := map[string]string{}
	for i, part := range want {
		value, err := url.PathUnescape(have[i])
		switch {
		case err != nil:
			return nil, false
		case strings.HasPrefix(part, "{") && value != "":
			values[strings.Trim(part, "{}")] = value
		case part != value:
			return nil, false
		}
	}
	return values, true
}

// serve waits until Run has taken over; nothing changes after it has ended.
func (p *Plane) serve(r *http.Request, one route) (answer, error) {
	ctx := r.Context()
	select {
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-p.ended:
		return answer{}, errStopped
	case <-p.ready:
	}
	select {
	case <-p.ended:
		return answer{}, errStopped
	default:
		return one.serve(ctx, r)
	}
}

func (p *Plane) reply(w http.ResponseWriter, got answer, err error) {
	for name, values := range got.header {
		w.Header()[name] = values
	}
	if err != nil {
		got.status, got.body = p.explain(err)
	}
	w.Header().Set("Configuration-Version", strconv.FormatInt(p.version.Load(), 10))
	if got.reload != "" {
		w.Header().Set("Reload-Id", got.reload)
	}
	if raw, ok := got.body.([]byte); ok {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(got.status)
		_, _ = w.Write(raw)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(got.status)
	if got.body != nil {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(got.body) // the client has gone
	}
}

// refusal is an answer that is an error of the request. Its code is the body's; a code of the validation, above 600, leaves as 422.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// Codes of the validation, as the Data Plane API has them.
const (
	codeType     = 601
	codeRequired = 602
	codePattern  = 605
	codeEnum     = 606
)

// explain gives the status and the body of an error.
func (p *Plane) explain(err error) (int, *models.Error) {
	code, text := http.StatusInternalServerError, err.Error()
	var (
		refused    *refusal
		missing    *MissingError
		stale      *conflict
		checked    *CheckError
		load       *LoadError
		conf       *configuration.ConfError
		tooLarge   *http.MaxBytesError
		validation oaerrors.Error
	)
	switch {
	case errors.As(err, &refused):
		code = refused.code
	case errors.As(err, &missing):
		code, text = http.StatusServiceUnavailable, missing.Error()
	case errors.Is(err, errStopped), errors.Is(err, context.Canceled):
		code = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		code = http.StatusGatewayTimeout
	case errors.As(err, &stale):
		code = http.StatusConflict
	case errors.As(err, &checked):
		code, text = http.StatusBadRequest, "validation error: "+checked.Status+":"
		for _, alert := range checked.Alerts {
			text += " \nmsg=" + strconv.Quote(alert)
		}
	case errors.As(err, &load):
		code, text = http.StatusBadRequest, "Reload failed: "+load.Words
	case errors.As(err, &tooLarge):
		code = http.StatusRequestEntityTooLarge
	case errors.As(err, &conf):
		code = confCode(conf)
	case errors.As(err, &validation):
		code = int(validation.Code())
	}
	if code == http.StatusInternalServerError {
		p.log.Error("a call of the data plane failed", "error", err)
	}
	body := int64(code)
	if code >= 600 {
		code = http.StatusUnprocessableEntity
	}
	return code, &models.Error{Code: &body, Message: &text}
}

// confCode is the status of an error of client-native.
func confCode(err error) int {
	for code, kinds := range map[int][]error{
		http.StatusNotFound: {configuration.ErrObjectDoesNotExist},
		http.StatusConflict: {configuration.ErrObjectAlreadyExists, configuration.ErrVersionMismatch, configuration.ErrTransactionAlreadyExists},
		http.StatusBadRequest: {
			configuration.ErrObjectIndexOutOfRange, configuration.ErrValidationError, configuration.ErrBothVersionTransaction,
			configuration.ErrNoVersionTransaction, configuration.ErrNoParentSpecified, configuration.ErrParentDoesNotExist,
			configuration.ErrTransactionDoesNotExist, configuration.ErrGeneralError,
		},
		http.StatusServiceUnavailable: {configuration.ErrCannotFindHAProxy},
	} {
		for _, kind := range kinds {
			if errors.Is(err, kind) {
				return code
			}
		}
	}
	return http.StatusInternalServerError
}

// query reads a whole number, or a flag, from the address.
func queryInt(r *http.Request, name string) (value int64, given bool, err error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, false, nil
	}
	value, err = strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, true, refuse(codeType, "%s in query must be of type int64: %q", name, text)
	}
	return value, true, nil
}

func queryBool(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, refuse(codeType, "%s in query must be of type bool: %q", name, text)
	}
	return value, nil
}

// queryString reads a parameter that must be there.
func queryString(r *http.Request, name string) (string, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return "", refuse(codeRequired, "%s in query is required", name)
	}
	return text, nil
}

// readText reads a body of text/plain.
func readText(r *http.Request) (string, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return "", refuse(http.StatusUnsupportedMediaType, "unsupported media type %q, only [text/plain] are allowed", r.Header.Get("Content-Type"))
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if len(raw) == 0 {
		return "", refuse(codeRequired, "data in body is required")
	}
	return string(raw), nil
}

// readJSON reads a model and validates it as the Data Plane API does.
func readJSON(r *http.Request, into interface{ Validate(strfmt.Registry) error }) error {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		return refuse(codeRequired, "data in body is required")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return refuse(http.StatusBadRequest, "parsing data body from %q failed, because %s", "", err)
	}
	err = into.Validate(strfmt.Default)
	for {
		var several *oaerrors.CompositeError
		if !errors.As(err, &several) || len(several.Errors) == 0 {
			break
		}
		err = several.Errors[0]
	}
	if err == nil {
		return nil
	}
	code := http.StatusUnprocessableEntity
	var one oaerrors.Error
	if errors.As(err, &one) {
		code = int(one.Code())
	}
	return refuse(code, "%s", err)
}
