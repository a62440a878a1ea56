package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// shell is Debian's static busybox under the names of its usual applets.
func shell() []entry {
	files := []entry{{path: "/bin/busybox", source: "/bin/busybox", mode: 0o755},
		{path: "/etc/passwd", text: "root:x:0:0:root:/root:/bin/sh\n", mode: 0o644}, {path: "/etc/group", text: "root:x:0:\n", mode: 0o644}}
	for _, a := range strings.Fields("sh ash awk basename cat chmod chown cp cut date dd df dirname echo env expr false find grep head hostname httpd id " +
		"ip kill ln ls mkdir mktemp modprobe mount mv nc nslookup ping ps pwd readlink rm rmdir sed seq sleep sort stat sync tail tar tee test timeout touch " +
		"tr true umount uname uniq vi wc wget xargs") {
		files = append(files, entry{path: "/bin/" + a, link: "busybox"})
	}
	return files
}

// chooseIptables stands behind the names iptables, ip6tables and so on. Kernels lack one of the two backends now and
// then; the first call finds out which works, and points the names to it for good.
const chooseIptables = `#!/bin/sh
kind=nft
xtables-nft-multi iptables -t nat -S >/dev/null 2>&1 || { xtables-legacy-multi iptables -t nat -S >/dev/null 2>&1 && kind=legacy; }
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
	ln -sf "xtables-$kind-multi" "/usr/sbin/$name" 2>/dev/null
done
exec "xtables-$kind-multi" "${0##*/}" "$@"
`

// packetFilter is what kube-proxy and flannel run: iptables with both backends and its extensions, nft, conntrack.
func packetFilter() ([]entry, error) {
	var files []entry
	roots := []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi", "/usr/sbin/nft", "/usr/sbin/conntrack", "/usr/sbin/ipset"}
	for _, r := range roots {
		files = append(files, entry{path: r, source: r, mode: 0o755})
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return nil, err
	}
	if len(extensions) == 0 {
		return nil, errors.New("there are no iptables extensions in /usr/lib/*/xtables: reinstall the package iptables")
	}
	for _, e := range extensions {
		files = append(files, entry{path: e, source: e, mode: 0o644})
	}
	libraries, err := libraries(append(roots, extensions...))
	if err != nil {
		return nil, err
	}
	for path, source := range libraries {
		files = append(files, entry{path: path, source: source, mode: 0o755})
	}
	const wrapper = "iptables-wrapper"
	files = append(files, entry{path: "/usr/sbin/" + wrapper, text: chooseIptables, mode: 0o755})
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			files = append(files, entry{path: "/usr/sbin/" + base + suffix, link: wrapper})
		}
	}
	return files, nil
}

// libraries finds the shared libraries that the files load, and the loader, as path in the image → file here. A file
// that is no ELF file needs none.
func libraries(roots []string) (map[string]string, error) {
	found := make(map[string]string)
	dirs := []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib"}
	for todo := roots; len(todo) > 0; {
		file := todo[0]
		todo = todo[1:]
		f, err := elf.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		needed, err := f.ImportedLibraries()
		loader := interpreter(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if loader != "" {
			found[loader] = loader
		}
		for _, lib := range needed {
			path := ""
			for _, d := range dirs {
				if _, err := os.Stat(filepath.Join(d, lib)); err == nil {
					path = filepath.Join(d, lib)
					break
				} else if !errors.Is(err, fs.ErrNotExist) {
					return nil, err
				}
			}
			if path == "" {
				return nil, fmt.Errorf("%s needs %s, which is not on this machine", file, lib)
			}
			if _, ok := found[path]; !ok {
				found[path] = path
				todo = append(todo, path)
			}
		}
	}
	return found, nil
}

func interpreter(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err == nil {
				return strings.TrimRight(string(b), "\x00")
			}
		}
	}
	return ""
}
