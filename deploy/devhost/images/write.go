package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// entry is one file of an image: a copy of source, a symbolic link, or a text.
type entry struct {
	path   string // absolute
	source string
	link   string
	text   string
	mode   int64
}

// write makes a docker-archive of one layer, compressed fast: a node imports it no slower than a plain one, and workers
// download a third.
func write(file string, s spec, entries []entry) error {
	var content bytes.Buffer
	if err := writeLayer(&content, entries); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithCompressedCaching)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Created = "linux", layout.Arch(), v1.Time{Time: time.Unix(0, 0).UTC()}
	cf.Config.Entrypoint = s.entrypoint
	cf.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		return err
	}
	ref, err := name.NewTag(s.ref)
	if err != nil {
		return err
	}
	next := file + ".next"
	defer func() { _ = os.Remove(next) }()
	if err := tarball.WriteToFile(next, ref, img); err != nil {
		return err
	}
	return os.Rename(next, file)
}

func writeLayer(w io.Writer, entries []entry) error {
	tw := tar.NewWriter(w)
	seen := make(map[string]bool)
	err := directory(tw, "/tmp", 0o1777, seen)
	for _, e := range entries {
		if err == nil {
			err = directory(tw, path.Dir(e.path), 0o755, seen)
		}
		if err == nil {
			err = e.write(tw)
		}
	}
	return errors.Join(err, tw.Close())
}

// directory writes dir and what is above it, once.
func directory(tw *tar.Writer, dir string, mode int64, seen map[string]bool) error {
	if dir == "/" || seen[dir] {
		return nil
	}
	if err := directory(tw, path.Dir(dir), 0o755, seen); err != nil {
		return err
	}
	seen[dir] = true
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode})
}

func (e entry) write(tw *tar.Writer) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(e.path, "/"), Mode: e.mode, Size: int64(len(e.text))}
	if e.link != "" {
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return tw.WriteHeader(h)
	}
	if e.source == "" {
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(tw, e.text)
		return err
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	i, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = i.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.Copy(tw, f); err != nil {
		return fmt.Errorf("copy %s: %w", e.source, err)
	}
	return nil
}
