package pgtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBinaries(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"9", "15", "17"} {
		dir := filepath.Join(root, v, "bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "postgres"), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := binaries(root); err != nil || got != filepath.Join(root, "17", "bin") {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("PATH", filepath.Join(root, "15", "bin"))
	if _, err := binaries(t.TempDir()); err == nil || !strings.Contains(err.Error(), "initdb is not installed") {
		t.Errorf("half an installation: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := binaries(t.TempDir()); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("no installation: %v", err)
	}
}
