package mirror

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// archives are the tarballs made of Debian's binaries, by name without suffix: files lie flat in them. containerd and
// the plugins want no more than a C library of Debian 12 or later, runc also libseccomp2, which apt and systemd
// depend on.
func archives() map[string][]string {
	a := map[string][]string{}
	for _, p := range strings.Fields("containerd containerd-shim-runc-v2 ctr runc") {
		path, err := exec.LookPath(p)
		if err != nil {
			path = p // archive says what is missing
		}
		a["containerd"] = append(a["containerd"], path)
	}
	for _, p := range strings.Fields("bridge host-local loopback portmap firewall bandwidth tuning") {
		a["cni-plugins"] = append(a["cni-plugins"], "/usr/lib/cni/"+p)
	}
	return a
}

// archive writes a tarball of the files, unless the one that is there was made from the same.
func archive(target string, files []string) error {
	inputs := ""
	for _, f := range files {
		i, err := os.Stat(f)
		if err != nil {
			return fmt.Errorf("for %s: %w", filepath.Base(target), err)
		}
		inputs += fmt.Sprintln(f, i.Size(), i.ModTime().UnixNano())
	}
	if old, err := os.ReadFile(target + ".inputs"); err == nil && string(old) == inputs {
		if _, err := os.Stat(target); err == nil {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	next := target + ".next"
	defer func() { _ = os.Remove(next) }()
	if err := writeArchive(next, files); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(target), err)
	}
	if err := os.Rename(next, target); err != nil {
		return err
	}
	return os.WriteFile(target+".inputs", []byte(inputs), 0o644)
}

func writeArchive(target string, files []string) error {
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	tw := tar.NewWriter(zip)
	for _, f := range files {
		if err = add(tw, f); err != nil {
			break
		}
	}
	return errors.Join(err, tw.Close(), zip.Close(), out.Close())
}

// add writes a file without owner and time, so that the same files make the same archive.
func add(tw *tar.Writer, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	i, err := in.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(file), Mode: 0o755, Size: i.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(tw, in)
	return err
}
