package images

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kubebyon/kubebyon/deploy/devhost/build"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// programs are stand-ins with the given text.
func programs(t *testing.T, text string) build.Programs {
	t.Helper()
	p := make(build.Programs)
	for _, n := range Programs(Names()) {
		p[n] = filepath.Join(t.TempDir(), n)
		if err := os.WriteFile(p[n], []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// contents gives an image's files: text of regular ones, "→ target" of links, "/" of folders.
func contents(t *testing.T, i Image) map[string]string {
	t.Helper()
	tag, err := name.NewTag(i.Ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(i.Tarball, &tag)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, error %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	files := make(map[string]string)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			files[h.Name] = "/"
		case tar.TypeSymlink:
			files[h.Name] = "→ " + h.Linkname
		default:
			b, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(b)
		}
	}
}

func TestEnsure(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir()}
	written := 0
	say := func(string, ...any) { written++ }
	names := []string{Pause, APIServer}
	one := programs(t, "one")
	made, err := Ensure(t.Context(), l, one, names, say)
	if err != nil || written != 2 {
		t.Fatalf("%d written, error %v", written, err)
	}
	if made[1].Ref != "registry.k8s.io/kube-apiserver:v1.37.2" {
		t.Errorf("reference %s", made[1].Ref)
	}
	files := contents(t, made[1])
	if files["usr/local/bin/kube-apiserver"] != "one" || files["usr/local/"] != "/" || files["tmp/"] != "/" || len(files) != 5 {
		t.Errorf("files %v", files)
	}
	again, err := Ensure(t.Context(), l, one, names, say)
	if err != nil || written != 2 || again[0] != made[0] {
		t.Errorf("%d written, error %v: nothing had changed", written, err)
	}
	other, err := Ensure(t.Context(), l, programs(t, "two, longer"), names[:1], say)
	if err != nil || written != 3 || other[0].Inputs == made[0].Inputs {
		t.Errorf("%d written, error %v: the program had changed", written, err)
	}
	if got := contents(t, other[0])["pause"]; got != "two, longer" {
		t.Errorf("the image holds %q", got)
	}
	if _, err := Ensure(t.Context(), l, one, []string{"nginx"}, say); err == nil {
		t.Error("an unknown image was accepted")
	}
	if _, err := Ensure(t.Context(), l, build.Programs{}, names, say); err == nil {
		t.Error("an image without its program was made")
	}
}

// The images that write packet filter rules carry what they run, with every library.
func TestPacketFilter(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir()}
	made, err := Ensure(t.Context(), l, programs(t, "x"), []string{Proxy}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, made[0])
	if files["usr/sbin/iptables-restore"] != "→ iptables-wrapper" || files["bin/sh"] != "→ busybox" {
		t.Errorf("iptables-restore is %q, sh is %q", files["usr/sbin/iptables-restore"], files["bin/sh"])
	}
	libraries, err := libraries([]string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/conntrack"})
	if err != nil || len(libraries) < 4 {
		t.Fatalf("libraries %v, error %v", libraries, err)
	}
	for path := range libraries {
		if files[path[1:]] == "" {
			t.Errorf("%s is missing", path)
		}
	}
}
