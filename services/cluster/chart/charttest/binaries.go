package charttest

import (
	"os"
	"path/filepath"
	"testing"
)

// binaries is the folder with etcd and the kube-* programs of the development host's cache. There is no skipping: without
// them the test fails and says how to get them.
func binaries(tb testing.TB) string {
	tb.Helper()
	home, _ := os.UserHomeDir()
	cache := os.Getenv("KUBEBYON_CACHE") //nolint:forbidigo // the tests' helper
	if cache == "" {
		cache = filepath.Join(home, ".cache", "kubebyon")
	}
	folders, _ := filepath.Glob(filepath.Join(cache, "kubernetes", "*"))
	etcd, _ := filepath.Glob(filepath.Join(cache, "etcd", "*"))
	folders = append(folders, etcd...)
	joined := tb.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		found := false
		for _, folder := range folders {
			path := filepath.Join(folder, name)
			if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
				if err := os.Symlink(path, filepath.Join(joined, name)); err != nil {
					tb.Fatal(err)
				}
				found = true
				break
			}
		}
		if !found {
			tb.Fatalf("%s is not in %s: run `go run ./deploy/devhost up` once, or set KUBEBYON_CACHE", name, cache)
		}
	}
	return joined
}
