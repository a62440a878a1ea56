package build

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

func TestDownload(t *testing.T) {
	const content = "a kubelet"
	sum := sha256.Sum256([]byte(content))
	mux := http.NewServeMux()
	serve := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
	}
	serve("/good", content)
	serve("/good.sha256", hex.EncodeToString(sum[:])+"\n")
	serve("/wrong", content)
	serve("/wrong.sha256", strings.Repeat("0", 64))
	serve("/page", content)
	serve("/page.sha256", "<html>log in</html>")
	serve("/alone", content)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, c := range []struct {
		name  string
		ok    bool
		wrong bool
	}{{"good", true, false}, {"wrong", false, true}, {"page", false, false}, {"alone", false, false}, {"absent", false, false}} {
		file := filepath.Join(t.TempDir(), c.name)
		err := download(t.Context(), server.URL+"/"+c.name, file)
		if (err == nil) != c.ok || errors.Is(err, errChecksum) != c.wrong {
			t.Errorf("%s: error %v", c.name, err)
		}
		if b, _ := os.ReadFile(file); (string(b) == content) != c.ok {
			t.Errorf("%s: file holds %q", c.name, b)
		}
		if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
			t.Errorf("%s: left behind %v", c.name, left)
		}
	}
}

// Every program's module must stand where it is looked for, or a change of the tree shows only on a fresh machine.
func TestModulesArePinned(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := layout.Root(dir)
	if err != nil {
		t.Fatal(err)
	}
	l := layout.Layout{Source: filepath.Join(root, "deploy/devhost")}
	for _, s := range sets() {
		if _, err := s.inputs(l); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		b, err := os.ReadFile(filepath.Join(s.dir(l), "go.mod"))
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if s.name != "pause" && s.name != "flannel-cni" && !strings.Contains(string(b), " "+s.version) {
			t.Errorf("%s: go.mod does not require %s", s.name, s.version)
		}
	}
	if all := All(); !slices.Contains(all, "kubelet") || !slices.Contains(all, "coredns") {
		t.Errorf("programs are %q", all)
	}
}

func TestUnknownProgram(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), Source: filepath.Dir(must(os.Getwd()))}
	if _, err := Ensure(t.Context(), l, []string{"kubeadm"}, t.Logf); err == nil {
		t.Error("an unknown program was accepted")
	}
}

// The smallest program goes through the whole way: built once, then found.
func TestEnsure(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), Source: filepath.Dir(must(os.Getwd()))}
	built := 0
	say := func(string, ...any) { built++ }
	for range 2 {
		p, err := Ensure(t.Context(), l, []string{"pause"}, say)
		if err != nil {
			t.Fatal(err)
		}
		if i, err := os.Stat(p.Path("pause")); err != nil || i.Mode()&0o111 == 0 {
			t.Errorf("%v, error %v", i, err)
		}
	}
	if built != 1 {
		t.Errorf("built %d times", built)
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}
