package helm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"
	"oras.land/oras-go/v2/registry/remote/auth"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	defaultRepository = "https://charts.loft.sh"
	defaultChart      = "vcluster"
	// SourceAccepts says in one line what KUBEBYON_VCLUSTER_CHART may be.
	SourceAccepts = "a chart's name in https://charts.loft.sh, the https:// URL of a repository or of a .tgz, an oci:// reference, or the path of a chart's folder or .tgz"

	maxIndex     = 32 << 20
	maxChart     = 16 << 20
	fetchTimeout = time.Minute
)

// Source is where the vendor's chart comes from. An archive that was fetched is kept in memory: a version never changes.
type Source struct {
	version string
	local   string // a path
	oci     string // without a tag
	archive string // the URL of a .tgz
	repo    string // the URL of a repository
	chart   string // its name there
	http    *http.Client

	mu   sync.Mutex
	data []byte
}

var (
	chartName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	chartVersion = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.-]+)?$`)
)

// ParseSource reads a reference; see SourceAccepts. An empty one is the vendor's own. A local path must hold a chart.
func ParseSource(ref, version string) (*Source, error) {
	s := &Source{version: version, http: &http.Client{Timeout: fetchTimeout}}
	if !chartVersion.MatchString(version) {
		return nil, fmt.Errorf("%q is no chart version, such as 0.33.0", version)
	}
	parsed, err := url.Parse(ref)
	switch {
	case ref == "":
		s.repo, s.chart = defaultRepository, defaultChart
	case strings.HasPrefix(ref, "oci://"):
		if err != nil || parsed.Host == "" || len(parsed.Path) < 2 || parsed.User != nil || parsed.RawQuery != "" {
			return nil, fmt.Errorf("%q is no OCI reference such as oci://registry.example.com/charts/vcluster", ref)
		}
		s.oci = parsed.Host + strings.TrimSuffix(parsed.Path, "/")
	case strings.HasPrefix(ref, "https://"), strings.HasPrefix(ref, "http://"):
		if err != nil || parsed.Host == "" || parsed.RawQuery != "" {
			return nil, errors.New("its URL cannot be read")
		}
		if strings.HasSuffix(parsed.Path, ".tgz") {
			s.archive = ref
		} else {
			s.repo, s.chart = strings.TrimSuffix(ref, "/"), defaultChart
		}
	case strings.ContainsAny(ref, "/.") || exists(ref):
		s.local = ref
		if _, err := s.Load(context.Background()); err != nil {
			return nil, errors.New(fault.From(err).Message)
		}
	case chartName.MatchString(ref):
		s.repo, s.chart = defaultRepository, ref
	default:
		return nil, fmt.Errorf("%q is none of them", ref)
	}
	return s, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// String names the source without credentials.
func (s *Source) String() string {
	switch {
	case s.local != "":
		return s.local
	case s.oci != "":
		return "oci://" + s.oci
	case s.archive != "":
		return redact(s.archive)
	}
	return redact(s.repo) + " (" + s.chart + ")"
}

func redact(raw string) string {
	if parsed, err := url.Parse(raw); err == nil {
		return parsed.Redacted()
	}
	return "its URL"
}

// Load gives the chart, each call its own copy. The faults are chart_unavailable (unavailable: worth another try),
// chart_version_unknown and chart_broken.
func (s *Source) Load(ctx context.Context) (*helmchart.Chart, error) {
	if s.local != "" {
		if !exists(s.local) {
			return nil, fault.New(fault.Precondition, "chart_missing", "there is no chart at %q", filepath.Clean(s.local))
		}
		loaded, err := loader.Load(s.local)
		if err != nil {
			return nil, broken(s, err)
		}
		return loaded, nil
	}
	data, err := s.bytes(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(data))
	if err != nil {
		return nil, broken(s, err)
	}
	return loaded, nil
}

func broken(s *Source, cause error) error {
	return fault.New(fault.Precondition, "chart_broken", "what is at %s is no Helm chart", s).
		Do("the operator has to correct KUBEBYON_VCLUSTER_CHART").Because(cause)
}

// bytes fetches once; several that ask at once wait for the one that fetches.
func (s *Source) bytes(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data != nil {
		return s.data, nil
	}
	data, err := s.fetch(ctx)
	if err == nil {
		s.data = data
	}
	return data, err
}

func (s *Source) fetch(ctx context.Context) ([]byte, error) {
	switch {
	case s.oci != "":
		return s.pull()
	case s.archive != "":
		return s.get(ctx, s.archive, maxChart)
	}
	text, err := s.get(ctx, s.repo+"/index.yaml", maxIndex)
	if err != nil {
		return nil, err
	}
	var index repo.IndexFile
	if err := yaml.Unmarshal(text, &index); err != nil || index.APIVersion == "" {
		return nil, fault.New(fault.Precondition, "chart_repository_broken", "%s has no readable index.yaml", redact(s.repo)).
			Do("the operator has to correct KUBEBYON_VCLUSTER_CHART").Because(err)
	}
	index.SortEntries()
	entry, err := index.Get(s.chart, s.version)
	if err != nil || len(entry.URLs) == 0 {
		return nil, s.unknown(err)
	}
	at, err := repo.ResolveReferenceURL(s.repo, entry.URLs[0])
	if err != nil {
		return nil, broken(s, err)
	}
	data, err := s.get(ctx, at, maxChart)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); entry.Digest != "" && !strings.EqualFold(strings.TrimPrefix(entry.Digest, "sha256:"), hex.EncodeToString(sum[:])) {
		return nil, fault.New(fault.Unavailable, "chart_digest_wrong", "the chart that %s sent is not the one that its index promises", s)
	}
	return data, nil
}

func (s *Source) unknown(cause error) error {
	return fault.New(fault.Precondition, "chart_version_unknown", "%s has no version %s", s, s.version).
		Do("the operator has to correct KUBEBYON_VCLUSTER_CHART_VERSION").Because(cause)
}

func (s *Source) unavailable(cause error) error {
	return fault.New(fault.Unavailable, "chart_unavailable", "the chart cannot be fetched from %s", s).
		Do("let this host reach it, or point KUBEBYON_VCLUSTER_CHART at a local copy").Because(cause)
}

func (s *Source) get(ctx context.Context, at string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, s.unavailable(err)
	}
	req.Header.Set("User-Agent", "kubebyon-cluster")
	res, err := s.http.Do(req)
	if err != nil {
		return nil, s.unavailable(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, s.unavailable(fmt.Errorf("HTTP %d", res.StatusCode))
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, s.unavailable(err)
	}
	if int64(len(data)) > limit {
		return nil, broken(s, errors.New("it is too large"))
	}
	return data, nil
}

// pull is anonymous: a log-in would be kept in a file that other programs share.
func (s *Source) pull() ([]byte, error) {
	client, err := registry.NewClient(registry.ClientOptWriter(io.Discard), registry.ClientOptHTTPClient(s.http),
		registry.ClientOptCredentialsFile(filepath.Join(os.TempDir(), "kubebyon-no-registry-credentials.json")),
		registry.ClientOptAuthorizer(auth.Client{Client: s.http}))
	if err != nil {
		return nil, s.unavailable(err)
	}
	res, err := client.Pull(s.oci+":"+strings.ReplaceAll(s.version, "+", "_"), registry.PullOptWithChart(true))
	if err != nil {
		if strings.Contains(err.Error(), "not found") {
			return nil, s.unknown(err)
		}
		return nil, s.unavailable(err)
	}
	return res.Chart.Data, nil
}
