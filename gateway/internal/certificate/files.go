package certificate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// warnEvery is how often a certificate that is about to expire is warned of.
const warnEvery = 12 * time.Hour

// FileOptions name a certificate's files.
type FileOptions struct {
	Certificate string // PEM: the certificate, then those that lead to its authority
	Key         string // PEM
	Domain      string // what the certificate must be for; empty: anything
	Log         *slog.Logger
	Every       time.Duration // how often the files are looked at
	Now         func() time.Time
}

// FileError names the file that is at fault.
type FileError struct {
	OfKey bool
	Path  string
	Err   error
}

func (e *FileError) Error() string { return fmt.Sprintf("%.200q %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Files is the certificate of two files. The files are looked at again and again: a pair that is whole and fits takes the place of
// the last one, anything else is logged, once, and the last one stays.
type Files struct {
	FileOptions
	current atomic.Pointer[tls.Certificate]
	seen    [sha256.Size]byte // of what the files held last, good or bad
	warned  time.Time
}

// OpenFiles fails with a FileError where the files hold no pair that can be used.
func OpenFiles(o FileOptions) (*Files, error) {
	f := &Files{FileOptions: o}
	pair, seen, err := f.read()
	if err != nil {
		return nil, err
	}
	f.seen = seen
	f.current.Store(pair)
	return f, nil
}

// TLS is for a listener.
func (f *Files) TLS() *tls.Config {
	config := base()
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.current.Load(), nil }
	return config
}

// Run looks at the files until ctx ends.
func (f *Files) Run(ctx context.Context) error {
	f.Log.InfoContext(ctx, "certificate read from its files", described(f.current.Load().Leaf)...)
	f.warn(ctx)
	ticker := time.NewTicker(f.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.look(ctx)
			f.warn(ctx)
		}
	}
}

func (f *Files) look(ctx context.Context) {
	pair, seen, err := f.read()
	if seen == f.seen {
		return
	}
	f.seen = seen
	if err != nil {
		f.Log.WarnContext(ctx, "the certificate's files cannot be used; the certificate that was read before stays", slog.String("error", err.Error()),
			slog.Time("expires", f.current.Load().Leaf.NotAfter.UTC()))
		return
	}
	if old := f.current.Load(); bytes.Equal(old.Leaf.Raw, pair.Leaf.Raw) {
		f.current.Store(pair) // what leads to the authority may have changed
		return
	}
	f.current.Store(pair)
	f.warned = time.Time{}
	f.Log.InfoContext(ctx, "certificate replaced from its files", described(pair.Leaf)...)
}

func (f *Files) warn(ctx context.Context) {
	leaf, now := f.current.Load().Leaf, f.Now()
	if !soon(leaf, now) || now.Sub(f.warned) < warnEvery {
		return
	}
	f.warned = now
	if now.After(leaf.NotAfter) {
		f.Log.ErrorContext(ctx, "the certificate has expired: put a new pair into its files", described(leaf)...)
		return
	}
	f.Log.WarnContext(ctx, "the certificate expires soon: put a new pair into its files", described(leaf)...)
}

// read gives the pair, and a mark of what the files hold, also where that is no pair: an error counts by its words.
func (f *Files) read() (*tls.Certificate, [sha256.Size]byte, error) {
	certificate, err := readFile(f.Certificate)
	if err != nil {
		err = &FileError{Path: f.Certificate, Err: err}
		return nil, sha256.Sum256([]byte(err.Error())), err
	}
	key, err := readFile(f.Key)
	if err != nil {
		err = &FileError{OfKey: true, Path: f.Key, Err: err}
		return nil, sha256.Sum256([]byte(err.Error())), err
	}
	seen := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(certificate), certificate, key))
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, seen, f.explain(certificate, err)
	}
	if f.Domain != "" && pair.Leaf.VerifyHostname(f.Domain) != nil {
		return nil, seen, &FileError{Path: f.Certificate, Err: fmt.Errorf("is not for %s", f.Domain)}
	}
	return &pair, seen, nil
}

// explain says which of the two is wrong. No text of the key's gets into it.
func (f *Files) explain(certificate []byte, err error) error {
	if !usable(certificate) {
		return &FileError{Path: f.Certificate, Err: errors.New("holds no certificate in PEM that can be used")}
	}
	if err.Error() == "tls: private key does not match public key" || err.Error() == "tls: private key type does not match public key type" {
		return &FileError{OfKey: true, Path: f.Key, Err: errors.New("holds the key of another certificate")}
	}
	return &FileError{OfKey: true, Path: f.Key, Err: errors.New("holds no private key in PEM that can be used")}
}

func readFile(path string) ([]byte, error) {
	const most = 1 << 20
	file, err := os.Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, errors.New("does not exist")
	case err != nil:
		return nil, errors.New("cannot be read")
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	switch {
	case err != nil:
		return nil, errors.New("cannot be read")
	case len(text) > most:
		return nil, errors.New("is too large for a certificate")
	}
	return text, nil
}
