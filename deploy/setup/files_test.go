package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
)

// asSetup makes the test's binary the program itself, which is killed once it has said that it wrote so many files.
const asSetup = "KUBEBYON_TEST_AS_SETUP"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(asSetup)); err == nil {
		os.Exit(Main(context.Background(), os.Args[1:], os.LookupEnv, &mortal{n}, os.Stderr))
	}
	os.Exit(m.Run())
}

type mortal struct{ left int }

func (m *mortal) Write(p []byte) (int, error) {
	if m.left--; m.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return len(p), nil
}

func nothing(string) (string, bool) { return "", false }

// setup runs it and gives what it printed.
func setup(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if status := Main(t.Context(), args, nothing, &stdout, &stderr); status != 0 || stderr.Len() > 0 {
		t.Fatalf("%q ends with %d: %s", args, status, &stderr)
	}
	return stdout.String()
}

// fails runs it and gives its one line.
func fails(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if status := Main(t.Context(), args, nothing, &stdout, &stderr); status != 1 || stdout.Len() > 0 {
		t.Fatalf("%q ends with %d and wrote %q: %s", args, status, &stdout, &stderr)
	}
	return stderr.String()
}

// tree reads all that is below dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		if d.Type() == fs.ModeSymlink {
			found[name], err = os.Readlink(p)
			return err
		}
		text, err := os.ReadFile(p)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var everything = []string{
	"cluster/nats.nk", "cluster/pgpass", "edge/dataplane-password", "edge/nats.nk", "edge/pgpass", "gateway/encryption-key", "gateway/nats.nk",
	"gateway/pgpass", "haproxy/dataplane-password", "nats/nats.conf", "node/nats.nk", "node/pgpass", "postgres/init.sql", "postgres/password",
	"token/nats.nk", "token/pgpass",
}

func TestFilesOfANewInstallation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	said := setup(t, "files", dir)
	made := tree(t, dir)
	if got := slices.Sorted(maps.Keys(made)); !slices.Equal(got, everything) {
		t.Fatalf("it made %q", got)
	}
	for name, text := range made {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		folder, err := os.Stat(filepath.Dir(filepath.Join(dir, name)))
		if err != nil || folder.Mode().Perm() != 0o700 {
			t.Errorf("the folder of %s: %v, %v", name, folder.Mode(), err)
		}
		if !strings.Contains(said, name) || strings.Contains(said, strings.TrimSpace(text)) {
			t.Errorf("it says of %s: %s", name, said)
		}
	}

	// The second run writes nothing, not even the same again.
	before := times(t, dir)
	if said := setup(t, "files", dir); said != "" {
		t.Errorf("the second run says %s", said)
	}
	if !maps.Equal(made, tree(t, dir)) || !maps.Equal(before, times(t, dir)) {
		t.Error("the second run changes something")
	}
}

// times gives each file's inode and time of change.
func times(t *testing.T, dir string) map[string][2]int64 {
	t.Helper()
	found := map[string][2]int64{}
	for name := range tree(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		s := info.Sys().(*syscall.Stat_t)
		found[name] = [2]int64{int64(s.Ino), s.Ctim.Nano()} //nolint:gosec // an inode's number is compared alone
	}
	return found
}

// secretsOf gives the parts of an owner's files that nobody else may have.
func secretsOf(made map[string]string) map[string]string {
	found := map[string]string{}
	for name, text := range made {
		switch file := filepath.Base(name); file {
		case seedFile, keyFile, dataPlaneFile, adminFile:
			found[name] = strings.TrimSpace(text)
		case passFile:
			found[name] = passwordOf(filepath.Dir(name), []byte(text))
		case certKeyFile:
			found[name] = strings.Split(text, "\n")[1]
		}
	}
	return found
}

func TestNoOwnerHoldsAnothersSecret(t *testing.T) {
	dir := t.TempDir()
	setup(t, "files", "-nats-tls", "nats", dir)
	made := tree(t, dir)
	owned := secretsOf(made)
	if len(owned) != 15 {
		t.Fatalf("%d secrets", len(owned))
	}
	for name, secret := range owned {
		if len(secret) < 20 {
			t.Errorf("%s has only %d characters", name, len(secret))
		}
		for other, text := range made {
			shared := filepath.Base(name) == dataPlaneFile && filepath.Base(other) == dataPlaneFile
			if other != name && strings.Contains(text, secret) && !shared {
				t.Errorf("%s holds the secret of %s", other, name)
			}
		}
	}
	if made["edge/dataplane-password"] != made["haproxy/dataplane-password"] {
		t.Error("the edge does not know HAProxy's password")
	}
}

// TestWhatIsMissingIsCompleted takes each file away by itself, and each owner's, and then all but one.
func TestWhatIsMissingIsCompleted(t *testing.T) {
	dir := t.TempDir()
	setup(t, "files", dir)
	whole := tree(t, dir)
	restore := func() {
		for name, text := range whole {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var sets [][]string
	for name := range whole {
		sets = append(sets, []string{name})
		rest := slices.DeleteFunc(slices.Clone(everything), func(other string) bool { return other == name })
		sets = append(sets, rest)
	}
	for _, owner := range owners() {
		sets = append(sets, slices.DeleteFunc(slices.Clone(everything), func(name string) bool { return filepath.Dir(name) != owner }))
	}
	for _, gone := range sets {
		restore()
		for _, name := range gone {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		setup(t, "files", dir)
		got := tree(t, dir)
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, everything) {
			t.Errorf("without %q: %q", gone, names)
		}
		for name := range secretsOf(whole) {
			if !slices.Contains(gone, name) && got[name] != whole[name] {
				t.Errorf("without %q: %s is another", gone, name)
			}
		}
		fit(t, dir)
	}
}

// fit holds the NATS server's and PostgreSQL's users to the services' secrets.
func fit(t *testing.T, dir string) {
	t.Helper()
	made := tree(t, dir)
	for _, s := range natsauth.Services() {
		public, err := natsauth.PublicKey([]byte(made[string(s)+"/"+seedFile]))
		if err != nil || !strings.Contains(made["nats/nats.conf"], public) {
			t.Errorf("the NATS server does not know %s (%v)", s, err)
		}
	}
	again, err := renderRoles(files(made), []byte(made["postgres/init.sql"]))
	if err != nil || string(again) != made["postgres/init.sql"] {
		t.Errorf("PostgreSQL's roles do not fit the passwords (%v)", err)
	}
	if made["edge/dataplane-password"] != made["haproxy/dataplane-password"] {
		t.Error("the edge does not know HAProxy's password")
	}
}

func files(made map[string]string) state {
	out := state{}.clone()
	for name, text := range made {
		out[filepath.Dir(name)][filepath.Base(name)] = []byte(text)
	}
	return out
}

// TestFilesThatAreRefused has each end in an error that names the file, and nothing written.
func TestFilesThatAreRefused(t *testing.T) {
	replace := func(name, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
	}
	for what, c := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"a secret that everybody reads": {func(dir string) error { return os.Chmod(filepath.Join(dir, "token/nats.nk"), 0o644) }, "token/nats.nk can be read or written by others (mode 0644): chmod 600"},
		"a secret that a group writes":  {func(dir string) error { return os.Chmod(filepath.Join(dir, "gateway/encryption-key"), 0o620) }, "gateway/encryption-key can be read or written by others (mode 0620)"},
		"a link": {func(dir string) error {
			name := filepath.Join(dir, "node/nats.nk")
			return errors.Join(os.Rename(name, name+".real"), os.Symlink(name+".real", name))
		}, "node/nats.nk is no regular file"},
		"a folder in its place": {func(dir string) error {
			name := filepath.Join(dir, "edge/pgpass")
			return errors.Join(os.Remove(name), os.Mkdir(name, 0o700))
		}, "edge/pgpass is no regular file"},
		"a file in a folder's place": {func(dir string) error {
			name := filepath.Join(dir, "edge")
			return errors.Join(os.RemoveAll(name), os.WriteFile(name, nil, 0o600))
		}, "edge"},
		"a folder that leads away": {func(dir string) error {
			name := filepath.Join(dir, "node")
			return errors.Join(os.RemoveAll(name), os.Symlink(os.TempDir(), name))
		}, "node"},
		"a seed that is none":     {replace("cluster/nats.nk", "SUAhunter2hunter2\n"), "cluster/nats.nk is no seed of an nkey: put back"},
		"an empty key":            {replace("gateway/encryption-key", "\n"), "gateway/encryption-key is empty: put back"},
		"another role's password": {replace("node/pgpass", "*:*:*:somebody:hunter2\n"), "node/pgpass has no line of kubebyon_node"},
		"an empty password":       {replace("postgres/password", ""), "postgres/password is empty"},
		"two different passwords": {replace("edge/dataplane-password", "hunter2\n"), "edge/dataplane-password and haproxy/dataplane-password differ"},
		"a folder that is a file": {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) }, "not a directory"},
		"two things at once": {func(dir string) error {
			return errors.Join(replace("cluster/nats.nk", "x")(dir), replace("token/nats.nk", "y")(dir))
		}, "token/nats.nk"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "secrets")
			setup(t, "files", dir)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			before := tree(t, dir)
			said := fails(t, "files", dir)
			if !strings.Contains(said, c.want) || strings.Contains(said, "hunter2") {
				t.Errorf("it says %s", said)
			}
			if !maps.Equal(before, tree(t, dir)) {
				t.Error("it wrote something")
			}
		})
	}
}

// TestKilledInTheMiddle ends the program after each file, and while it writes. What is there is whole, and the next run completes it.
func TestKilledInTheMiddle(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for after := 1; after < 2*len(everything); after++ {
		dir := t.TempDir()
		cmd := exec.Command(self, "files", dir)
		cmd.Env = []string{fmt.Sprintf("%s=%d", asSetup, after)}
		if after >= len(everything) { // these are ended from outside, somewhere after a folder has appeared
			cmd.Env = []string{asSetup + "=1000"}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if after >= len(everything) {
			owner := owners()[after%len(owners())]
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
				if _, err := os.Lstat(filepath.Join(dir, owner)); err == nil {
					break
				}
			}
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()

		kept := map[string]string{}
		for name, text := range tree(t, dir) {
			if !strings.HasPrefix(filepath.Base(name), temporary) {
				kept[name] = text
			}
		}
		if after < len(everything) {
			if len(kept) != after {
				t.Fatalf("killed after %d files, there are %d", after, len(kept))
			}
			// Half a file is what a kill within a write leaves.
			if err := os.WriteFile(filepath.Join(dir, "haproxy", temporary+"x"), []byte("hal"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		setup(t, "files", dir)
		now := tree(t, dir)
		if names := slices.Sorted(maps.Keys(now)); !slices.Equal(names, everything) {
			t.Fatalf("after %d: %q", after, names)
		}
		for name, text := range kept {
			if now[name] != text {
				t.Errorf("after %d: %s was not whole, or is another now", after, name)
			}
		}
		fit(t, dir)
	}
}

func TestTwoAtOnceAgree(t *testing.T) {
	dir := t.TempDir()
	done := make(chan int)
	for range 4 {
		go func() {
			var out bytes.Buffer
			done <- Main(context.Background(), []string{"files", dir}, nothing, &out, &out)
		}()
	}
	for range 4 {
		if status := <-done; status != 0 {
			t.Errorf("one ends with %d", status)
		}
	}
	fit(t, dir)
	if said := setup(t, "files", dir); said != "" {
		t.Errorf("they left this to do: %s", said)
	}
}

func TestFilesBecomeTheirOwners(t *testing.T) {
	dir, id := t.TempDir(), "65532:65533"
	if os.Getuid() != 0 { // who is not root has files of its own alone
		id = ids(t, dir)
	}
	setup(t, "files", dir)
	for range 2 { // those that are there, and again
		setup(t, "files", "-owner", "node="+id, dir)
		for _, name := range []string{"node", "node/nats.nk", "node/pgpass"} {
			if got := ids(t, filepath.Join(dir, name)); got != id {
				t.Errorf("%s is of %s", name, got)
			}
		}
	}
	if got, want := ids(t, filepath.Join(dir, "token/nats.nk")), ids(t, dir); got != want {
		t.Errorf("another's is of %s, not of %s", got, want)
	}
}

func ids(t *testing.T, name string) string {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	s := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", s.Uid, s.Gid)
}

func TestWrongCalls(t *testing.T) {
	for _, args := range [][]string{
		nil, {"files"}, {"files", "a", "b"}, {"other"}, {"files", "-owner", "nobody=1:1", "x"}, {"files", "-owner", "node=a:b", "x"},
		{"files", "-nats-tls", "a b", "x"}, {"files", "-nats-tls", "", "x"}, {"kubernetes"}, {"kubernetes", "-namespace", "a/b"}, {"kubernetes", "-namespace", "a", "x"},
	} {
		var out bytes.Buffer
		if status := Main(t.Context(), args, nothing, &out, &out); status != 2 || out.Len() == 0 {
			t.Errorf("%q ends with %d, says %q", args, status, &out)
		}
	}
}
