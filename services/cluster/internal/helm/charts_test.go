package helm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// archive packs a tiny chart.
func archive(t *testing.T, version string) []byte {
	t.Helper()
	path, err := chartutil.Save(&helmchart.Chart{
		Metadata:  &helmchart.Metadata{APIVersion: "v2", Name: "vcluster", Version: version},
		Templates: []*helmchart.File{{Name: "templates/a.yaml", Data: []byte("kind: ConfigMap\n")}},
	}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func repository(t *testing.T, digest string, fetched *atomic.Int32) string {
	t.Helper()
	data := archive(t, "0.33.0")
	if digest == "" {
		sum := sha256.Sum256(data)
		digest = hex.EncodeToString(sum[:])
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/charts/index.yaml", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "apiVersion: v1\nentries:\n  vcluster:\n  - {name: vcluster, version: 0.33.0, apiVersion: v2, digest: %s, urls: [files/vcluster-0.33.0.tgz]}\n", digest)
	})
	mux.HandleFunc("/charts/files/vcluster-0.33.0.tgz", func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		_, _ = bytes.NewReader(data).WriteTo(w)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/charts"
}

func load(t *testing.T, ref, version string) (*helmchart.Chart, error) {
	t.Helper()
	s, err := ParseSource(ref, version)
	if err != nil {
		t.Fatal(err)
	}
	return s.Load(context.Background())
}

func TestSources(t *testing.T) {
	var fetched atomic.Int32
	url := repository(t, "", &fetched)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "vcluster.tgz"), archive(t, "0.33.0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := chartutil.ExpandFile(folder, filepath.Join(folder, "vcluster.tgz")); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{url, url + "/files/vcluster-0.33.0.tgz", filepath.Join(folder, "vcluster.tgz"), filepath.Join(folder, "vcluster")} {
		c, err := load(t, ref, "0.33.0")
		if err != nil || c.Metadata.Name != "vcluster" || c.Metadata.Version != "0.33.0" {
			t.Errorf("%s: %v, %v", ref, c, err)
		}
	}
	s, err := ParseSource(url, "0.33.0")
	if err != nil {
		t.Fatal(err)
	}
	fetched.Store(0)
	for range 3 {
		if _, err := s.Load(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if fetched.Load() != 1 {
		t.Errorf("fetched %d times", fetched.Load())
	}
}

func TestSourceFailures(t *testing.T) {
	var fetched atomic.Int32
	for _, c := range []struct {
		ref, version, code string
		kind               fault.Kind
	}{
		{repository(t, "", &fetched), "9.9.9", "chart_version_unknown", fault.Precondition},
		{repository(t, strings.Repeat("0", 64), &fetched), "0.33.0", "chart_digest_wrong", fault.Unavailable},
		{"http://127.0.0.1:1/charts", "0.33.0", "chart_unavailable", fault.Unavailable},
		{"oci://127.0.0.1:1/charts/vcluster", "0.33.0", "chart_unavailable", fault.Unavailable},
	} {
		_, err := load(t, c.ref, c.version)
		if f := fault.From(err); err == nil || f.Code != c.code || f.Kind != c.kind {
			t.Errorf("%s: %v", c.ref, err)
		}
	}
}

func TestParseSource(t *testing.T) {
	for ref, want := range map[string]string{
		"": "https://charts.loft.sh (vcluster)", "vcluster-eks": "https://charts.loft.sh (vcluster-eks)",
		"oci://ghcr.io/loft-sh/vcluster": "oci://ghcr.io/loft-sh/vcluster", "https://user:pass@charts.example.com/x/": "https://user:xxxxx@charts.example.com/x (vcluster)",
	} {
		if s, err := ParseSource(ref, "0.33.0"); err != nil || s.String() != want {
			t.Errorf("%q: %v, %v", ref, s, err)
		}
	}
	broken := filepath.Join(t.TempDir(), "x.tgz")
	if err := os.WriteFile(broken, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"/no/such/chart", "./none.tgz", broken, "oci://", "oci://host", "https://", "Bad Name"} {
		if s, err := ParseSource(ref, "0.33.0"); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q is taken as %v, %v", ref, s, err)
		}
	}
	for _, version := range []string{"", "latest", "../1.0.0", "1.0.0/x", "0.33"} {
		if _, err := ParseSource("", version); err == nil {
			t.Errorf("version %q is taken", version)
		}
	}
}

// TestOCI pulls from a registry that speaks just what the distribution specification asks for a pull.
func TestOCI(t *testing.T) {
	layer, config := archive(t, "0.33.0"), []byte(`{"name":"vcluster","version":"0.33.0","apiVersion":"v2"}`)
	digest := func(data []byte) string { sum := sha256.Sum256(data); return "sha256:" + hex.EncodeToString(sum[:]) }
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":%q,"size":%d},
		"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip","digest":%q,"size":%d}]}`,
		digest(config), len(config), digest(layer), len(layer))
	served := map[string][]byte{
		"/v2/charts/vcluster/manifests/0.33.0": manifest, "/v2/charts/vcluster/manifests/" + digest(manifest): manifest,
		"/v2/charts/vcluster/blobs/" + digest(config): config, "/v2/charts/vcluster/blobs/" + digest(layer): layer,
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, found := served[r.URL.Path]
		if !found {
			http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not found"}]}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", digest(data))
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if r.Method != http.MethodHead {
			_, _ = w.Write(data)
		}
	}))
	t.Cleanup(server.Close)
	for version, code := range map[string]string{"0.33.0": "", "0.34.0": "chart_version_unknown"} {
		s, err := ParseSource("oci://"+strings.TrimPrefix(server.URL, "https://")+"/charts/vcluster", version)
		if err != nil {
			t.Fatal(err)
		}
		s.http = server.Client()
		c, err := s.Load(t.Context())
		if code == "" && (err != nil || c.Metadata.Version != version) || code != "" && (err == nil || fault.From(err).Code != code) {
			t.Errorf("%s: %v, %v", version, c, err)
		}
	}
}
