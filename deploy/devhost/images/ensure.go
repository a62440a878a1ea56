package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubebyon/kubebyon/deploy/devhost/build"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// Image is a finished image on disk.
type Image struct {
	Name    string // short name
	Ref     string // the reference it is imported under
	Tarball string // docker-archive
	Inputs  string // changes with what the image holds
}

// format is part of every image's inputs: raise it when the way they are written changes.
const format = "3"

// Ensure writes the named images' tarballs, unless they are there already from the same inputs.
func Ensure(ctx context.Context, l layout.Layout, programs build.Programs, names []string, say func(format string, args ...any)) ([]Image, error) {
	if err := os.MkdirAll(l.Images(), 0o755); err != nil {
		return nil, err
	}
	all := specs()
	var made []Image
	for _, name := range names {
		s, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("no image is called %q; there are %q", name, Names())
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entries, err := s.entries(programs)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		inputs, err := fingerprint(s, entries)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		i := Image{Name: name, Ref: s.ref, Inputs: inputs, Tarball: filepath.Join(l.Images(), name+"-linux-"+layout.Arch()+".tar")}
		made = append(made, i)
		if old, err := os.ReadFile(i.Tarball + ".inputs"); err == nil && string(old) == inputs {
			if _, err := os.Stat(i.Tarball); err == nil {
				continue
			}
		}
		if err := write(i.Tarball, s, entries); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		if err := os.WriteFile(i.Tarball+".inputs", []byte(inputs), 0o644); err != nil {
			return nil, err
		}
		say("image %s", s.ref)
	}
	return made, nil
}

// fingerprint covers names, sizes and times of the files, not their contents: reading all would cost every start a
// second.
func fingerprint(s spec, entries []entry) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, format, s.ref, s.entrypoint)
	for _, e := range entries {
		fmt.Fprintln(h, e.path, e.link, e.text, e.mode)
		if e.source != "" {
			i, err := os.Stat(e.source)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(h, e.source, i.Size(), i.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// entries lists an image's files, sorted by path.
func (s spec) entries(programs build.Programs) ([]entry, error) {
	files := make(map[string]entry)
	add := func(e entry) { files[e.path] = e }
	for path, program := range s.programs {
		if programs.Path(program) == "" {
			return nil, fmt.Errorf("program %s was not asked for", program)
		}
		add(entry{path: path, source: programs.Path(program), mode: 0o755})
	}
	if s.shell {
		for _, e := range shell() {
			add(e)
		}
	}
	if s.iptables {
		tools, err := packetFilter()
		if err != nil {
			return nil, err
		}
		for _, e := range tools {
			add(e)
		}
	}
	var sorted []entry
	for _, e := range files {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b entry) int {
		if a.path < b.path {
			return -1
		}
		return 1
	})
	return sorted, nil
}
