package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/haproxytech/client-native/v5/models"
)

// fileName is what a map may be called; a path is none.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$`)

// mapPath is where a map lies. Names that the Data Plane API would bend into others are not found.
func (p *Plane) mapPath(name string) (string, error) {
	if !fileName.MatchString(name) {
		return "", refuse(http.StatusNotFound, "missing object: file %s doesn't exist in dir: %s", name, filepath.Join(p.dir, mapsDir))
	}
	return filepath.Join(p.dir, mapsDir, name), nil
}

func (p *Plane) existingMap(r *http.Request) (path string, data []byte, err error) {
	if path, err = p.mapPath(r.PathValue("name")); err != nil {
		return "", nil, err
	}
	data, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, refuse(http.StatusNotFound, "missing object: file %s doesn't exist in dir: %s", r.PathValue("name"), filepath.Join(p.dir, mapsDir))
	}
	return path, data, err
}

func (p *Plane) getMaps(context.Context, *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(p.dir, mapsDir))
	if err != nil {
		return answer{}, fmt.Errorf("list the maps: %w", err)
	}
	out := models.Maps{}
	for _, e := range entries {
		if fileName.MatchString(e.Name()) { // not one that is being written
			out = append(out, &models.Map{Description: "managed map file", File: filepath.Join(p.dir, mapsDir, e.Name()), StorageName: e.Name()})
		}
	}
	return answer{status: http.StatusOK, body: out}, nil
}

func (p *Plane) getMap(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, data, err := p.existingMap(r)
	return answer{status: http.StatusOK, body: data}, err
}

// postMap stores a new map; HAProxy reads it once the configuration names it.
func (p *Plane) postMap(_ context.Context, r *http.Request) (answer, error) {
	upload, head, err := r.FormFile("file_upload")
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return answer{}, err
		}
		return answer{}, refuse(http.StatusBadRequest, "file_upload in formData is required: %s", err)
	}
	defer func() { _ = upload.Close(); _ = r.MultipartForm.RemoveAll() }()
	data, err := io.ReadAll(upload)
	if err != nil {
		return answer{}, err
	}
	name := head.Filename
	if !strings.HasSuffix(name, ".map") {
		name += ".map"
	}
	if !fileName.MatchString(name) {
		return answer{}, refuse(http.StatusBadRequest, "a map's name has letters, digits, dots, - and _")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	path := filepath.Join(p.dir, mapsDir, name)
	if _, err := os.Lstat(path); err == nil {
		return answer{}, refuse(http.StatusConflict, "object already exists: file %s already exists", path)
	}
	if err := writeFile(path, data); err != nil {
		return answer{}, fmt.Errorf("write a map: %w", err)
	}
	return answer{status: http.StatusCreated, body: models.Map{
		Description: "managed but not loaded map file (no runtime ID)", File: path, Size: new(int64(len(data))), StorageName: name,
	}}, nil
}

// putMap replaces a map; HAProxy reads it at the next reload.
func (p *Plane) putMap(ctx context.Context, r *http.Request) (answer, error) {
	skip, err := queryBool(r, "skip_reload")
	if err != nil {
		return answer{}, err
	}
	force, err := queryBool(r, "force_reload")
	if err != nil {
		return answer{}, err
	}
	text, err := readText(r)
	if err != nil {
		return answer{}, err
	}
	one, err := p.change(skip, func() error {
		path, _, err := p.existingMap(r)
		if err != nil {
			return err
		}
		if err := writeFile(path, []byte(text)); err != nil {
			return fmt.Errorf("write a map: %w", err)
		}
		return nil
	})
	switch {
	case err != nil:
		return answer{}, err
	case skip:
		return answer{status: http.StatusNoContent}, nil
	case force:
		return answer{status: http.StatusNoContent}, p.wait(ctx, one.reload)
	}
	return answer{status: http.StatusAccepted, reload: one.reload.ID}, nil
}

// deleteMap refuses a map that the configuration names.
func (p *Plane) deleteMap(_ context.Context, r *http.Request) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.sync(); err != nil {
		return answer{}, err
	}
	path, _, err := p.existingMap(r)
	if err != nil {
		return answer{}, err
	}
	number := 0
	for line := range strings.Lines(p.file.text) {
		number++
		if line = strings.TrimSpace(line); strings.Contains(line, path) && !strings.HasPrefix(line, "#") {
			return answer{}, refuse(http.StatusConflict, "rejecting attempt to delete file %s referenced in haproxy conf at line %d: %s", path, number, line)
		}
	}
	if err := os.Remove(path); err != nil {
		return answer{}, fmt.Errorf("delete a map: %w", err)
	}
	return answer{status: http.StatusNoContent}, nil
}
