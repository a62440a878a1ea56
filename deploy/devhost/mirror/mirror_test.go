package mirror

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	files := []string{write(t, filepath.Join(dir, "runc"), "r"), write(t, filepath.Join(dir, "ctr"), "c")}
	target := filepath.Join(dir, "archives", "x.tgz")
	if err := archive(target, files); err != nil {
		t.Fatal(err)
	}
	got := read(t, target)
	if got["runc"] != "r" || got["ctr"] != "c" || len(got) != 2 {
		t.Errorf("archive holds %v", got)
	}
	first, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := archive(target, files); err != nil {
		t.Fatal(err)
	}
	if second, err := os.Stat(target); err != nil || !os.SameFile(first, second) {
		t.Errorf("written again though nothing changed (%v)", err)
	}
	write(t, files[0], "newer")
	if err := archive(target, files); err != nil {
		t.Fatal(err)
	}
	if got := read(t, target); got["runc"] != "newer" {
		t.Errorf("archive holds %v", got)
	}
	if err := archive(target, []string{filepath.Join(dir, "absent")}); err == nil {
		t.Error("a missing file went unnoticed")
	}
}

func read(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil || h.Mode != 0o755 {
			t.Fatalf("%s: mode %o, error %v", h.Name, h.Mode, err)
		}
		files[h.Name] = string(b)
	}
}

// A mirror that is being served is filled again: who has a file open keeps it whole.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	source, target := write(t, filepath.Join(dir, "source"), "one"), filepath.Join(dir, "target")
	for range 2 {
		if err := link(source, target); err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	write(t, source, "two")
	if err := link(source, target); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(open); err != nil || string(b) != "one" {
		t.Errorf("the open file holds %q, error %v", b, err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "two" {
		t.Errorf("the mirror holds %q, error %v", b, err)
	}
	if left, _ := filepath.Glob(target + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
