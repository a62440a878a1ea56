// Package mirror fills the folder that the gateway serves to workers (KUBEBYON_MIRROR_DIR). It must never put
// anything there that a worker does not need, and never a file that is not whole.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kubebyon/kubebyon/deploy/devhost/build"
	"github.com/kubebyon/kubebyon/deploy/devhost/images"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/prereq"
)

// Images are the images that a worker runs before it can pull any.
func Images() []string {
	return []string{images.Pause, images.Proxy, images.CoreDNS, images.Flannel, images.FlannelCNI, images.Busybox}
}

// Fill puts everything a worker needs into dir: the kubelet, the CNI plugins, containerd with runc, and the images.
// Files come from the cache by hard link where both are on one file system.
func Fill(ctx context.Context, l layout.Layout, dir string, say func(format string, args ...any)) error {
	if err := prereq.Ensure(ctx, say); err != nil {
		return err
	}
	programs, err := build.Ensure(ctx, l, append([]string{"kubelet"}, images.Programs(Images())...), say)
	if err != nil {
		return err
	}
	made, err := images.Ensure(ctx, l, programs, Images(), say)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "images"), 0o755); err != nil {
		return err
	}
	suffix := "-linux-" + layout.Arch()
	if err := link(programs.Path("kubelet"), filepath.Join(dir, "kubelet-"+layout.Kubernetes+suffix)); err != nil {
		return err
	}
	for _, i := range made {
		if err := link(i.Tarball, filepath.Join(dir, "images", filepath.Base(i.Tarball))); err != nil {
			return err
		}
	}
	for name, files := range archives() {
		cached := filepath.Join(l.Cache, "archives", name+suffix+".tgz")
		if err := archive(cached, files); err != nil {
			return err
		}
		if err := link(cached, filepath.Join(dir, filepath.Base(cached))); err != nil {
			return err
		}
	}
	return nil
}

// link makes target the same file as source, by copying where it cannot be linked. A reader of an older target keeps
// what it has opened.
func link(source, target string) error {
	next := target + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(source, next); err != nil {
		if err := copyFile(source, next); err != nil {
			return errors.Join(fmt.Errorf("copy %s to %s: %w", source, target, err), os.Remove(next))
		}
	}
	if err := os.Rename(next, target); err != nil {
		return err
	}
	_ = os.Remove(next) // renaming a file onto itself under another name leaves both names
	return nil
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
