package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

const (
	temporary = ".kubebyon-setup-" // what a run that was killed leaves of a file
	largest   = 1 << 20
)

// identity owns an owner's files; nil leaves them to who runs the setup.
type identity struct{ uid, gid int }

// folder keeps each owner's files in a folder of its own, that one process or container is given.
type folder struct {
	root *os.Root
	ids  map[string]identity
}

// openFolder makes the folder where it is missing, and holds it alone: a second setup waits for the first.
func openFolder(dir string, ids map[string]identity) (*folder, func(), error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	lock, err := root.Open(".")
	if err == nil {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err == nil {
			return &folder{root, ids}, func() { _ = lock.Close(); _ = root.Close() }, nil
		}
		_ = lock.Close()
	}
	_ = root.Close()
	return nil, nil, fmt.Errorf("%s: %w", dir, err)
}

// read gives what is there. A secret that others could read is an error: whether they have is not for a program to decide.
func (f *folder) read() (state, error) {
	have := state{}
	var wrong []error
	for _, owner := range owners() {
		have[owner] = map[string][]byte{}
		for _, file := range known(owner) {
			name := path.Join(owner, file)
			info, err := f.root.Lstat(name)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil:
				wrong = append(wrong, err)
				continue
			case !info.Mode().IsRegular() || info.Size() > largest:
				wrong = append(wrong, fmt.Errorf("%s is no regular file of at most 1 MiB: move it away", name))
				continue
			case info.Mode().Perm()&0o077 != 0:
				wrong = append(wrong, fmt.Errorf("%s can be read or written by others (mode %04o): chmod 600 it if nobody has, else delete it to have another made", name, info.Mode().Perm()))
				continue
			}
			if have[owner][file], err = f.root.ReadFile(name); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	return have, errors.Join(wrong...)
}

// write brings the files to want, each of them whole or not at all, and reports each.
func (f *folder) write(have, want state, report io.Writer) error {
	for _, owner := range owners() {
		if err := f.own(owner); err != nil {
			return err
		}
		if err := f.clean(owner); err != nil {
			return err
		}
		for _, file := range changed(owner, have, want) {
			if err := f.replace(owner, file, want[owner][file]); err != nil {
				return err
			}
			fmt.Fprintf(report, "wrote %s/%s\n", owner, file)
		}
		for file := range want[owner] {
			if err := f.chown(owner, path.Join(owner, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// own makes the owner's folder, and its alone.
func (f *folder) own(owner string) error {
	if err := f.root.Mkdir(owner, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := f.root.Lstat(owner)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder: move it away", owner)
	}
	if info.Mode().Perm() != 0o700 {
		if err := f.root.Chmod(owner, 0o700); err != nil {
			return err
		}
	}
	return f.chown(owner, owner)
}

func (f *folder) chown(owner, name string) error {
	id, ok := f.ids[owner]
	if !ok {
		return nil
	}
	info, err := f.root.Lstat(name)
	if err != nil {
		return err
	}
	if now, ok := info.Sys().(*syscall.Stat_t); ok && int(now.Uid) == id.uid && int(now.Gid) == id.gid {
		return nil
	}
	return f.root.Lchown(name, id.uid, id.gid)
}

// clean removes what a run that was killed has left.
func (f *folder) clean(owner string) error {
	entries, err := fs.ReadDir(f.root.FS(), owner)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			if err := f.root.Remove(path.Join(owner, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace puts the file in its place once it is on the disk.
func (f *folder) replace(owner, file string, text []byte) (err error) {
	name := path.Join(owner, temporary+rand.Text())
	out, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.root.Remove(name)
		}
	}()
	_, err = out.Write(text)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	if err = f.chown(owner, name); err != nil {
		return err
	}
	if err = f.root.Rename(name, path.Join(owner, file)); err != nil {
		return err
	}
	dir, err := f.root.Open(owner)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
