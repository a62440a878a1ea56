package haproxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// file is the configuration on disk and its version. Whoever changes the file otherwise does so without our version: it is noticed by
// content, and counts as a version more than any before.
type file struct {
	path, state string
	text        string
	version     int64
}

// remembered is what the state file holds, so that a change made while we were not running is noticed too.
type remembered struct {
	Version int64  `json:"version"`
	Digest  string `json:"digest"`
	Loaded  string `json:"loaded,omitempty"` // of the configuration that HAProxy runs
}

// open reads the file, or makes it of base; it gives the digest of the configuration that HAProxy last took.
func (f *file) open(base string) (loaded string, err error) {
	var was remembered
	if raw, err := os.ReadFile(f.state); err == nil {
		_ = json.Unmarshal(raw, &was) // a torn one only costs a version
	}
	raw, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Versions never start again: somebody may still hold an old one.
		return was.Loaded, f.write(base, was.Version+1, was.Loaded)
	case err != nil:
		return "", fmt.Errorf("read the HAProxy configuration: %w", err)
	}
	f.text, f.version = string(raw), was.Version
	if digest(f.text) == was.Digest {
		return was.Loaded, nil
	}
	f.version = max(was.Version, versionOf(f.text))
	if was.Digest != "" {
		f.version++
	}
	return was.Loaded, f.remember(was.Loaded)
}

// sync reads the file again and tells whether somebody else changed it. A file that is gone was not changed but lost: it is
// written again.
func (f *file) sync(loaded string) (changed bool, err error) {
	raw, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, f.write(f.text, f.version, loaded)
	case err != nil:
		return false, fmt.Errorf("read the HAProxy configuration: %w", err)
	case string(raw) == f.text:
		return false, nil
	}
	f.text, f.version = string(raw), max(f.version, versionOf(string(raw)))+1
	return true, f.remember(loaded)
}

// write replaces the file in one step and gives it that version.
func (f *file) write(text string, version int64, loaded string) error {
	text = withVersion(text, version)
	if err := writeFile(f.path, []byte(text)); err != nil {
		return fmt.Errorf("write the HAProxy configuration: %w", err)
	}
	f.text, f.version = text, version
	return f.remember(loaded)
}

// replace is write where the file must still be what was last read of it: what somebody saves at this very moment is put back,
// and replaced is false.
func (f *file) replace(text string, version int64, loaded string) (replaced bool, err error) {
	text = withVersion(text, version)
	next := f.path + ".next"
	defer func() { _ = os.Remove(next) }()
	if err := writeFile(next, []byte(text)); err != nil {
		return false, fmt.Errorf("write the HAProxy configuration: %w", err)
	}
	exchange := func() error { return unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, f.path, unix.RENAME_EXCHANGE) }
	if err := exchange(); err != nil {
		// Not every file system can; one reading more is all that is left then.
		if raw, err := os.ReadFile(f.path); err != nil || string(raw) != f.text {
			return false, nil // sync finds it out
		}
		return true, f.write(text, version, loaded)
	}
	if was, err := os.ReadFile(next); err != nil || string(was) != f.text {
		if err := errors.Join(err, exchange()); err != nil {
			return false, fmt.Errorf("put a configuration back that was saved meanwhile: %w", err)
		}
		return false, nil
	}
	f.text, f.version = text, version
	return true, f.remember(loaded)
}

func (f *file) remember(loaded string) error {
	raw, err := json.Marshal(remembered{Version: f.version, Digest: digest(f.text), Loaded: loaded})
	if err == nil {
		err = writeFile(f.state, raw)
	}
	if err != nil {
		return fmt.Errorf("remember the version of the HAProxy configuration: %w", err)
	}
	return nil
}

// digest of a configuration without its version: what makes HAProxy behave so.
func digest(text string) string {
	sum := sha256.Sum256([]byte(withoutVersion(text)))
	return hex.EncodeToString(sum[:])
}

const (
	versionPrefix = "# _version="
	hashPrefix    = "# _md5hash="
)

// versionOf is what the comments at the top of text say; 1 where they say nothing, as the Data Plane API has it.
func versionOf(text string) int64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, versionPrefix); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil && n > 0 && n < 1<<62 {
				return n
			}
			return 1
		}
		if !comment(line) {
			break
		}
	}
	return 1
}

// withoutVersion drops the version and the hash from the comments at the top; all else stays byte for byte.
func withoutVersion(text string) string {
	var b strings.Builder
	for rest := text; rest != ""; {
		end := strings.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		line := rest[:end]
		if !comment(line) {
			b.WriteString(rest)
			break
		}
		if !strings.HasPrefix(line, versionPrefix) && !strings.HasPrefix(line, hashPrefix) {
			b.WriteString(line)
		}
		rest = rest[end:]
	}
	return b.String()
}

func withVersion(text string, version int64) string {
	return versionPrefix + strconv.FormatInt(version, 10) + "\n" + withoutVersion(text)
}

func comment(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || strings.HasPrefix(line, "#")
}

// listens tells whether HAProxy would have anything to do with this configuration.
func listens(text string) bool {
	for line := range strings.Lines(text) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word, _, _ = strings.Cut(word, "\t"); word == "frontend" || word == "listen" {
			return true
		}
	}
	return false
}

// writeFile replaces path in one step, for its owner alone, and is through once it is on the disk.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = bytes.NewReader(data).WriteTo(f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
