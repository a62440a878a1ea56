package certificate

import (
	"context"
	"crypto/rand"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// lease is how long a lock outlives a holder that is gone, and extendEvery how often one that lives extends it.
	lease       = 30 * time.Second
	extendEvery = 10 * time.Second
	// askEvery is how often a lock that somebody else holds is asked for.
	askEvery = 500 * time.Millisecond
)

// Store keeps sealed files by their paths, a/b/c, for all replicas, and their locks.
type Store interface {
	PutFile(ctx context.Context, path string, sealed []byte) error
	// File fails with a fault of the kind NotFound.
	File(ctx context.Context, path string) (sealed []byte, modified time.Time, err error)
	// DeleteFiles deletes path and everything below; nothing there is no failure.
	DeleteFiles(ctx context.Context, path string) error
	// FilesBelow gives everything below path, in order; empty: everything.
	FilesBelow(ctx context.Context, path string) ([]string, error)
	// Hold takes the lock where it is free, or extends holder's own.
	Hold(ctx context.Context, name, holder string, lease time.Duration) (bool, error)
	LetGo(ctx context.Context, name, holder string) error
}

// Keys seal what is stored, and open it with the place that it was sealed for.
type Keys interface {
	Seal(plain, place string) ([]byte, error)
	Open(sealed []byte, place string) (string, error)
}

// Storage is a Store as certmagic takes it; what gets into the store is sealed, bound to its path.
type Storage struct {
	store Store
	keys  Keys
	log   *slog.Logger

	mu   sync.Mutex
	held map[string]*hold
}

type hold struct {
	holder string
	stop   context.CancelFunc
	ended  chan struct{}
}

var _ certmagic.Storage = (*Storage)(nil)

// NewStorage is to be closed.
func NewStorage(store Store, keys Keys, log *slog.Logger) *Storage {
	return &Storage{store: store, keys: keys, log: log, held: map[string]*hold{}}
}

func place(path string) string { return "certificate_files.sealed/" + path }

// Store implements certmagic.Storage.
func (s *Storage) Store(ctx context.Context, path string, value []byte) error {
	sealed, err := s.keys.Seal(string(value), place(path))
	if err != nil {
		return err
	}
	return s.store.PutFile(ctx, path, sealed)
}

// Load implements certmagic.Storage.
func (s *Storage) Load(ctx context.Context, path string) ([]byte, error) {
	sealed, _, err := s.store.File(ctx, path)
	if err != nil {
		return nil, absent(path, err)
	}
	value, err := s.keys.Open(sealed, place(path))
	return []byte(value), err
}

// Delete implements certmagic.Storage.
func (s *Storage) Delete(ctx context.Context, path string) error {
	return s.store.DeleteFiles(ctx, path)
}

// Exists implements certmagic.Storage.
func (s *Storage) Exists(ctx context.Context, path string) bool {
	_, err := s.Stat(ctx, path)
	return err == nil
}

// List implements certmagic.Storage.
func (s *Storage) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	below, err := s.store.FilesBelow(ctx, path)
	if err != nil {
		return nil, err
	}
	if len(below) == 0 {
		return nil, absent(path, fault.New(fault.NotFound, "not_found", "nothing is there"))
	}
	if recursive {
		return below, nil
	}
	start := 0
	if path != "" {
		start = len(path) + 1
	}
	var children []string
	for _, file := range below {
		name, _, _ := strings.Cut(file[start:], "/")
		if child := file[:start] + name; len(children) == 0 || children[len(children)-1] != child {
			children = append(children, child)
		}
	}
	return children, nil
}

// Stat implements certmagic.Storage.
func (s *Storage) Stat(ctx context.Context, path string) (certmagic.KeyInfo, error) {
	sealed, modified, err := s.store.File(ctx, path)
	if err == nil {
		return certmagic.KeyInfo{Key: path, Modified: modified, Size: int64(len(sealed)), IsTerminal: true}, nil
	}
	if !fault.Is(err, fault.NotFound) {
		return certmagic.KeyInfo{}, err
	}
	if below, err := s.store.FilesBelow(ctx, path); err != nil || len(below) == 0 {
		return certmagic.KeyInfo{}, cmpErr(err, absent(path, fault.New(fault.NotFound, "not_found", "nothing is there")))
	}
	return certmagic.KeyInfo{Key: path}, nil
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func absent(path string, err error) error {
	if fault.Is(err, fault.NotFound) {
		return &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return err
}

// Lock implements certmagic.Locker. It waits for a lock that another replica holds, and keeps its own until Unlock.
func (s *Storage) Lock(ctx context.Context, name string) error {
	holder := rand.Text()
	for {
		ok, err := s.store.Hold(ctx, name, holder, lease)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(askEvery):
		}
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	h := &hold{holder: holder, stop: stop, ended: make(chan struct{})}
	go s.keep(keeping, name, h)
	s.mu.Lock()
	before := s.held[name]
	s.held[name] = h
	s.mu.Unlock()
	if before != nil { // its lease ran out, and nobody has unlocked it yet
		before.stop()
		<-before.ended
	}
	return nil
}

func (s *Storage) keep(ctx context.Context, name string, h *hold) {
	defer close(h.ended)
	ticker := time.NewTicker(extendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// What is done under the lock stays right without it, and costs an order too many.
			if ok, err := s.store.Hold(ctx, name, h.holder, lease); ctx.Err() == nil && (err != nil || !ok) {
				s.log.WarnContext(ctx, "the lock of a certificate could not be kept", slog.String("lock", name), slog.Any("error", err))
			}
		}
	}
}

// Unlock implements certmagic.Locker.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	h := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if h == nil {
		return nil
	}
	h.stop()
	<-h.ended
	return s.store.LetGo(ctx, name, h.holder)
}

// Close waits for what keeps locks.
func (s *Storage) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.held {
		h.stop()
		<-h.ended
	}
}
