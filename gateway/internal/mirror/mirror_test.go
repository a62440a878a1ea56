package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func openMirror(t *testing.T, dir string) *Mirror {
	t.Helper()
	m, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestManifestNamesRegularFilesOnly(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	put(t, outside, "secret", "outside")
	put(t, dir, "kubelet-v1.37.2-linux-amd64", "kubelet")
	put(t, dir, "images/pause-linux-amd64.tar", "pause")
	for _, name := range []string{".hidden", "with space", "new\nline", "quote'", "deep/er/file", "other/file", "images/.part", "-rf", "a+b", "a..b",
		strings.Repeat("x", 129)} {
		put(t, dir, name, "no")
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("kubelet-v1.37.2-linux-amd64", filepath.Join(dir, "inner-link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := openMirror(t, dir)
	m.scan(t.Context())
	files, err := m.Manifest(t.Context())
	if err != nil || len(files) != 2 || files[0].Name != "images/pause-linux-amd64.tar" || files[1].Name != "kubelet-v1.37.2-linux-amd64" {
		t.Fatalf("%+v, %v", files, err)
	}
	sum := sha256.Sum256([]byte("kubelet"))
	if files[1].SHA256 != hex.EncodeToString(sum[:]) || files[1].Size != 7 {
		t.Errorf("%+v", files[1])
	}
	for _, name := range []string{
		"link", "inner-link", "pipe", ".hidden", "with space", "other/file", "deep/er/file", "", ".", "..", "images", "images/", "../secret", "/etc/passwd",
		"images/../kubelet-v1.37.2-linux-amd64", "images//pause-linux-amd64.tar", "./kubelet-v1.37.2-linux-amd64", "kubelet-v1.37.2-linux-amd64/", "kubelet\x00",
	} {
		if f, _, err := m.Open(t.Context(), name); !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v, %v", name, f, err)
		}
	}
	f, entry, err := m.Open(t.Context(), "images/pause-linux-amd64.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "pause" || entry.Size != 5 {
		t.Errorf("%q, %+v, %v", text, entry, err)
	}
}

func TestChangedFilesAreHashedAgain(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	put(t, outside, "secret", "five!")
	put(t, dir, "a", "five.")
	put(t, dir, "b", "stays")
	m := openMirror(t, dir)
	m.scan(t.Context())
	put(t, dir, "a", "longer than before")
	if _, _, err := m.Open(t.Context(), "a"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("content that does not have the promised hash: %v", err)
	}
	if _, hashed, err := m.read(t.Context(), map[string]File{"b": m.files[1]}); err != nil || hashed != 1 {
		t.Errorf("%d files hashed, %v", hashed, err)
	}
	m.scan(t.Context())
	f, entry, err := m.Open(t.Context(), "a")
	if err != nil || entry.Size != 18 {
		t.Fatal(entry, err)
	}
	_ = f.Close()

	// A link put in a file's place afterwards leads nowhere.
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Open(t.Context(), "a"); err == nil {
		t.Error("followed a link out of the folder")
	}
	m.scan(t.Context())
	if files, err := m.Manifest(t.Context()); err != nil || len(files) != 1 || files[0].Name != "b" {
		t.Errorf("%+v, %v", files, err)
	}
}

func TestManifestWaitsForTheFirstScan(t *testing.T) {
	m := openMirror(t, t.TempDir())
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := m.Manifest(short); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("before the scan: %v", err)
	}
	running, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(running) }()
	if files, err := m.Manifest(t.Context()); err != nil || len(files) != 0 {
		t.Fatal(files, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestNoFolder(t *testing.T) {
	m := openMirror(t, "")
	if files, err := m.Manifest(t.Context()); err != nil || len(files) != 0 {
		t.Fatal(files, err)
	}
	if _, _, err := m.Open(t.Context(), "kubelet"); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	if _, err := Open("/nonexistent", slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("opened nothing")
	}
}

func TestFolderGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mirror")
	put(t, dir, "a", "x")
	m := openMirror(t, dir)
	m.scan(t.Context())
	_ = m.root.Close() // as a lost disk would
	m.scan(t.Context())
	if _, err := m.Manifest(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
}
