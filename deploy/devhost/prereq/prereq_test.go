package prereq

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{file: true, file + "x": false, "sh": true, "no-such-command": false} {
		if got := has(path); got != want {
			t.Errorf("has(%q) = %t", path, got)
		}
	}
}

func TestLastLines(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "c", 2: "b\nc", 9: "a\nb\nc"} {
		if got := lastLines([]byte("a\nb\nc\n"), n); got != want {
			t.Errorf("last %d: %q", n, got)
		}
	}
}

// The packages that the list names must be the ones that hold the files: this machine has them installed.
func TestNothingMissing(t *testing.T) {
	if err := Ensure(t.Context(), t.Logf); err != nil {
		t.Fatal(err)
	}
	if missing := Missing(); len(missing) > 0 {
		t.Errorf("missing after Ensure: %q", missing)
	}
}
