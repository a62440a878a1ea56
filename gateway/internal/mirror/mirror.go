// Package mirror serves an operator's folder of files to worker machines. It must never serve anything but the
// regular files that its manifest names, with the content whose hash the manifest gives.
package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// rescanEvery bounds how long a changed folder goes unnoticed.
const rescanEvery = 5 * time.Second

// File is one entry of the manifest.
type File struct {
	Name   string // plain, or in the one folder: images/x.tar
	SHA256 string // hex
	Size   int64

	modified time.Time
}

// Mirror is one folder. The zero value is not usable; a Mirror without a folder has an empty manifest.
type Mirror struct {
	root *os.Root
	log  *slog.Logger

	once    sync.Once
	scanned chan struct{} // closed after the first scan
	mu      sync.RWMutex
	files   []File // ordered by name; replaced, never changed
	err     error  // why the last scan failed
}

// Open opens the folder; an empty dir means that there is no mirror. The hashes are made by Run.
func Open(dir string, log *slog.Logger) (*Mirror, error) {
	m := &Mirror{log: log, scanned: make(chan struct{})}
	if dir == "" {
		m.once.Do(func() { close(m.scanned) })
		return m, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	m.root = root
	return m, nil
}

// Close lets go of the folder.
func (m *Mirror) Close() error {
	if m.root == nil {
		return nil
	}
	return m.root.Close()
}

// Run hashes the folder, then looks for changes until ctx ends. It returns nil: a folder that cannot be read is
// reported by Manifest, and looked at again.
func (m *Mirror) Run(ctx context.Context) error {
	if m.root == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(rescanEvery)
	defer ticker.Stop()
	for {
		m.scan(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Manifest lists the files. It waits for the first scan until ctx ends; unavailable when the folder cannot be read.
func (m *Mirror) Manifest(ctx context.Context) ([]File, error) {
	select {
	case <-m.scanned:
	case <-ctx.Done():
		return nil, fault.New(fault.Unavailable, "mirror_starting", "the gateway is still reading its files for workers").
			Do("try again in a minute").Because(ctx.Err())
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.err != nil {
		return nil, fault.New(fault.Unavailable, "mirror_unreadable", "the gateway cannot read its files for workers").
			Do("the operator finds the reason in the gateway's log").Because(m.err)
	}
	return m.files, nil
}

// Open gives a file of the manifest to read; the caller closes it. Any other name is not_found, and a file that
// changed since it was hashed is unavailable until the next scan.
func (m *Mirror) Open(ctx context.Context, name string) (*os.File, File, error) {
	absent := fault.New(fault.NotFound, "mirror_file_not_found", "there is no such file for workers here")
	if !plain(name) {
		return nil, File{}, absent
	}
	files, err := m.Manifest(ctx)
	if err != nil {
		return nil, File{}, err
	}
	at, found := slices.BinarySearchFunc(files, name, func(f File, name string) int { return strings.Compare(f.Name, name) })
	if !found {
		return nil, File{}, absent
	}
	f, info, err := m.open(name)
	if err != nil || info.Size() != files[at].Size || !info.ModTime().Equal(files[at].modified) {
		if err == nil {
			_ = f.Close()
		}
		return nil, File{}, fault.New(fault.Unavailable, "mirror_file_changing", "this file is being changed").
			Do("try again in a minute").Because(err)
	}
	return f, files[at], nil
}

// Modified is the file's time on disk.
func (f File) Modified() time.Time { return f.modified }

// plain holds for what the join script takes for a name: one that it refused would keep every machine from joining.
func plain(name string) bool { return nameForm.MatchString(name) && !strings.Contains(name, "..") }

var nameForm = regexp.MustCompile(`^(images/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (m *Mirror) scan(ctx context.Context) {
	before := map[string]File{}
	m.mu.RLock()
	for _, f := range m.files {
		before[f.Name] = f
	}
	m.mu.RUnlock()
	start := time.Now()
	files, hashed, err := m.read(ctx, before)
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	failedBefore := m.err != nil
	m.files, m.err = files, err
	m.mu.Unlock()
	m.once.Do(func() { close(m.scanned) })
	switch {
	case err != nil && !failedBefore:
		m.log.ErrorContext(ctx, "mirror folder unreadable", slog.Any("error", err))
	case hashed > 0:
		m.log.InfoContext(ctx, "mirror folder read", slog.Int("files", len(files)), slog.Int("hashed", hashed),
			slog.Duration("took", time.Since(start)))
	}
}

// read lists the folder and hashes what is not in before with the same size and time.
func (m *Mirror) read(ctx context.Context, before map[string]File) ([]File, int, error) {
	var files []File
	hashed := 0
	for _, folder := range []string{".", "images"} {
		entries, err := fs.ReadDir(m.root.FS(), folder)
		if errors.Is(err, fs.ErrNotExist) && folder != "." {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		for _, entry := range entries {
			name := strings.TrimPrefix(folder+"/"+entry.Name(), "./")
			if !entry.Type().IsRegular() || !plain(name) {
				continue
			}
			info, err := entry.Info()
			if err != nil {
				continue // gone since it was listed
			}
			if old, ok := before[name]; ok && old.Size == info.Size() && old.modified.Equal(info.ModTime()) {
				files = append(files, old)
				continue
			}
			file, err := m.hash(ctx, name)
			switch {
			case ctx.Err() != nil:
				return nil, 0, ctx.Err()
			case err != nil:
				m.log.WarnContext(ctx, "mirror file left out", slog.String("file", name), slog.Any("error", err))
				continue
			}
			files = append(files, file)
			hashed++
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, hashed, nil
}

func (m *Mirror) hash(ctx context.Context, name string) (File, error) {
	f, info, err := m.open(name)
	if err != nil {
		return File{}, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	n, err := io.Copy(sum, readFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil { // a large file must not outlast the process
			return 0, err
		}
		return f.Read(p)
	}))
	if err != nil {
		return File{}, err
	}
	after, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if n != info.Size() || after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		return File{}, errors.New("it changed while it was read")
	}
	return File{Name: name, SHA256: hex.EncodeToString(sum.Sum(nil)), Size: n, modified: info.ModTime()}, nil
}

// open opens a regular file beneath the folder. A link to outside fails in os.Root, a pipe does not block, and
// neither it nor a device is let through.
func (m *Mirror) open(name string) (*os.File, os.FileInfo, error) {
	f, err := m.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
